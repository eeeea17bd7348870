"""Pieces that several commands show: tables, pictures in text, warnings."""
