"""Byte sizes and counts as text, in one form for all commands and pages."""


def size(count: int) -> str:
    """Return bytes as text: ``1.5 MiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1_024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1_024
    return f"{amount:.1f} TiB"


def counted(number: int, one: str, many: str = "") -> str:
    """Return ``1 session`` or ``2 sessions``; ``many`` is an irregular plural."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"
