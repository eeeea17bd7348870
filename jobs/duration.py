"""Durations as people write them: 30h, 90m, 1h 30m, 2d."""

from __future__ import annotations

import re

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "m": 60, "s": 1}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(min|[wdhms])\s*")
_SECONDS_MAX = 100 * 366 * 86_400
_TEXT_MAX = 100  # characters; more is no duration that a person wrote


def parse_duration(value: object) -> int:
    """Return the seconds meant by ``"12h"``, ``"1h 30m"`` or a bare number of seconds.

    Raises ValueError with the reason, in words that fit behind "key = value:".
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError('a duration is written like "12h", "90m" or "1h 30m"')
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        raise ValueError("a duration is at most a hundred years")
    if isinstance(value, str) and not value.strip().removeprefix("-").isdecimal():
        seconds = _parse(value.strip().lower())
    else:
        seconds = int(value)
    if seconds < 0:
        raise ValueError("a duration cannot be negative")
    if seconds > _SECONDS_MAX:
        raise ValueError("a duration is at most a hundred years")
    return seconds


def show_duration(seconds: int) -> str:
    """Return the shortest text that :func:`parse_duration` reads back: 5400 is ``1h 30m``."""
    parts = []
    rest = seconds
    for unit in ("w", "d", "h", "m", "s"):
        # 30h and 168h say more than 1d 6h and 1w: platforms count in hours.
        if unit in "wd" and (rest % _UNITS[unit] or rest < 2 * _UNITS[unit]):
            continue
        count, rest = divmod(rest, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return " ".join(parts) or "0s"


def _parse(text: str) -> int:
    if text.startswith("-"):
        raise ValueError("a duration cannot be negative")
    position, total = 0, 0.0
    while match := _PART.match(text, position):
        total += float(match[1]) * _UNITS[match[2]]
        position = match.end()
    if position == 0 or position != len(text):
        raise ValueError('a duration is written like "12h", "90m" or "1h 30m"')
    return round(total)
