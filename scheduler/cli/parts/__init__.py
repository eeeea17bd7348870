"""Output shared by several commands: tables, text bars and warnings."""

OVER = "Finished in the last days"
"""Title of the section of finished jobs, the first section that is left out when space is short."""
