"""Output shared by several commands: tables, text bars and warnings."""

OVER = "Finished in the last days"
"""The section of what is over, which goes first where room is short."""
