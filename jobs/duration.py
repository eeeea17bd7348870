"""Durations, instants and cycles as people write them: 30h, 90m, 1h 30m, 2d."""

import re
from datetime import datetime

_UNITS = {"w": 604_800, "d": 86_400, "h": 3_600, "min": 60, "m": 60, "s": 1}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(min|[wdhms])\s*")
_SECONDS_MAX = 100 * 366 * 86_400
_TEXT_MAX = 100  # characters


def parse_duration(value: object) -> int:
    """Return the seconds of ``"12h"``, ``"1h 30m"`` or a plain number. Raises ValueError with the reason."""
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
        # Platforms count in hours: 30h and 168h are clearer than 1d 6h and 1w.
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


YEAR_3000 = 32_503_680_000  # UTC seconds
_INSTANT_MAX = 100  # characters


def parse_instant(value: object) -> int:
    """Return UTC seconds of ``2026-12-01T09:00:00Z``, a TOML date-time or a number. Raises ValueError."""
    moment = value
    if isinstance(value, str) and len(value) > _INSTANT_MAX:
        raise ValueError("a date and time is written like 2026-12-01T09:00:00Z")
    if isinstance(value, str) and not value.isdecimal():
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("a date and time is written like 2026-12-01T09:00:00Z") from None
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise ValueError("a date and time needs its offset from UTC, as in 2026-12-01T09:00:00Z")
        moment = int(moment.timestamp())
    if isinstance(moment, bool) or not isinstance(moment, int | str):
        raise ValueError("a date and time is written like 2026-12-01T09:00:00Z")
    seconds = int(moment)
    if not 0 <= seconds < YEAR_3000:
        raise ValueError("a date and time lies between 1970 and 3000")
    return seconds


# A cycle says when the next job is expected: "thursday 09:00" is weekly at that time (UTC), "12d" is 12 days after
# the last job.
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY, _WEEK = 86_400, 604_800
_FIRST_MONDAY = 4 * _DAY  # 1970 began on a Thursday
_WEEKLY = re.compile(r"([a-z]+)(?:\s+([01]?\d|2[0-3]):([0-5]\d))?")
_CYCLE_MIN, _CYCLE_MAX = _DAY, 53 * _WEEK


def parse_cycle(value: object) -> str:
    """Return the stored form of a cycle: ``thursday 09:00`` or ``12d``. Raises ValueError with the reason."""
    text = value.strip().lower() if isinstance(value, str) else ""
    weekly = _WEEKLY.fullmatch(text)
    if weekly and weekly[1] in DAYS:
        return f"{weekly[1]} {int(weekly[2] or 0):02d}:{weekly[3] or '00'}"
    try:
        seconds = parse_duration(text)
    except ValueError:
        why = 'a cycle is a day of the week, such as "thursday 09:00" (UTC), or a distance, such as "12d"'
        raise ValueError(why) from None
    if not _CYCLE_MIN <= seconds <= _CYCLE_MAX:
        raise ValueError("a cycle is at least a day and at most 53 weeks")
    return show_duration(seconds)


def coming(cycle: str, last: int | None, now: int, until: int) -> tuple[int, ...]:
    """Return the UTC seconds of a cycle in (now, until); () for a distance without a ``last`` job."""
    weekly = _WEEKLY.fullmatch(cycle)
    if weekly:
        into_week = DAYS.index(weekly[1]) * _DAY + int(weekly[2]) * 3_600 + int(weekly[3]) * 60
        distance, first = _WEEK, _FIRST_MONDAY + into_week
    elif last is None:
        return ()
    else:
        distance = parse_duration(cycle)
        first = last + distance
    passed = max(0, (now - first) // distance + 1)
    return tuple(range(first + passed * distance, until, distance))
