"""Plural: a number with its noun, as people write it."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 session`` or ``2 sessions``; ``many`` where an s does not make it."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
