"""Bytes and counts as text, equal on all screens."""

from __future__ import annotations


def size(count: int) -> str:
    """Return bytes as text: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"


def gpu_use(memory_bytes: int | None, busy: float | None) -> str:
    """Return the use of GPUs as text, such as ``6.1 GiB, 41 % busy``; "" if unknown."""
    words = ["" if memory_bytes is None else size(memory_bytes), "" if busy is None else f"{busy:.0%} busy"]
    return ", ".join(filter(None, words)).replace("%", " %")


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 session`` or ``2 sessions``; ``many`` is an irregular plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
