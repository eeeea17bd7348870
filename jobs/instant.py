"""Instants as people write them: a date and time with its offset from UTC."""

from __future__ import annotations

from datetime import datetime

YEAR_3000 = 32_503_680_000
_TEXT_MAX = 100  # characters; more is no instant that a person wrote


def parse_instant(value: object) -> int:
    """Return the UTC seconds of ``2026-12-01T09:00:00Z``, a TOML date-time, or a number of UTC seconds.

    Raises ValueError with the reason.
    """
    moment = value
    if isinstance(value, str) and len(value) > _TEXT_MAX:
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
