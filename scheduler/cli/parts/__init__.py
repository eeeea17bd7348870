"""Pieces that several commands show: tables, pictures in text, warnings."""

OVER = "Finished in the last days"
"""The section of what is over, which goes first where room is short."""
