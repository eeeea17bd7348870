"""Size: bytes as people read them, on every screen alike."""

from __future__ import annotations


def size(count: int) -> str:
    """Return bytes as people read them: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"
