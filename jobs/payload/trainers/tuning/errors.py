"""What keeps a training from going on, told to people."""

from __future__ import annotations


class TrainingRefused(Exception):
    """The program will not train like this; the message says what, why and what to do."""


class UnreadableData(Exception):
    """The corpus is missing, too small for one row, or has a record that means nothing."""
