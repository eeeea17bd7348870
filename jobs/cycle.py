"""Cycle: when the next job of a kind is expected, as its user writes it.

``expects = "thursday 09:00"`` is every week at that time (UTC), ``expects = "12d"`` so long after the last one came.
"""

from __future__ import annotations

import re

from jobs.duration import parse_duration, show_duration

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_DAY, _WEEK = 86_400, 604_800
_FIRST_MONDAY = 4 * _DAY  # 1970 began on a Thursday
_WEEKLY = re.compile(r"([a-z]+)(?:\s+([01]?\d|2[0-3]):([0-5]\d))?")
_SECONDS_MIN, _SECONDS_MAX = _DAY, 53 * _WEEK


def parse_cycle(value: object) -> str:
    """Return how a cycle is stored: ``thursday 09:00`` or ``12d``.

    Raises ValueError with the reason, in words that fit behind "key = value:".
    """
    text = value.strip().lower() if isinstance(value, str) else ""
    weekly = _WEEKLY.fullmatch(text)
    if weekly and weekly[1] in DAYS:
        return f"{weekly[1]} {int(weekly[2] or 0):02d}:{weekly[3] or '00'}"
    try:
        seconds = parse_duration(text)
    except ValueError:
        why = 'a cycle is a day of the week, such as "thursday 09:00" (UTC), or a distance, such as "12d"'
        raise ValueError(why) from None
    if not _SECONDS_MIN <= seconds <= _SECONDS_MAX:
        raise ValueError("a cycle is at least a day and at most 53 weeks")
    return show_duration(seconds)


def coming(cycle: str, last: int | None, now: int, until: int) -> tuple[int, ...]:
    """Return the instants after ``now`` and before ``until`` at which the next ones are expected.

    ``last`` is when the last one came; without it a distance tells nothing.
    """
    weekly = _WEEKLY.fullmatch(cycle)
    if weekly:
        into_week = DAYS.index(weekly[1]) * _DAY + int(weekly[2]) * 3_600 + int(weekly[3]) * 60
        distance, first = _WEEK, _FIRST_MONDAY + into_week
    elif last is None:
        return ()
    else:
        distance = parse_duration(cycle)
        first = last + distance
    behind = max(0, (now - first) // distance + 1)
    return tuple(range(first + behind * distance, until, distance))
