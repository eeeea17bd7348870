"""Waits after trouble: exponential with a cap; those of jobs are spread, so that they do not all return at once."""

from __future__ import annotations

import hashlib


def retry_delay(name: str, failures: int, base_seconds: int, cap_seconds: int) -> int:
    """Return the seconds to wait after ``failures`` consecutive failures (at least one).

    The delay lies between 75 % and 125 % of ``base * 2 ** (failures - 1)``, capped; equal input gives equal output.
    """
    if failures < 1:
        raise ValueError(f"a delay needs at least one failure, not {failures}")
    delay: int = min(cap_seconds, base_seconds * 2 ** min(failures - 1, 30))
    spread = hashlib.sha256(f"{name}:{failures}".encode()).digest()[0] / 255
    return max(1, round(delay * (0.75 + 0.5 * spread)))


def rest_seconds(before: tuple[int, int] | None, now: int, first_seconds: int, cap_seconds: int) -> int:
    """Return how long to leave a place alone after trouble at ``now``.

    ``before`` is when the same trouble was met last and how long was waited then: twice as long when it is back at the
    first try or soon after, as long for one that was on its way all the same, and from the beginning after good times.
    """
    if before is None:
        return first_seconds
    met_at, waited = before
    if now < met_at + waited:
        return waited
    if now <= met_at + 3 * waited:
        return min(cap_seconds, 2 * waited)
    return first_seconds
