"""Delays after failures: exponential with a cap. Delays of jobs have jitter, so that not all retry at once."""

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
    """Return the seconds for which a pool is not used after a failure at ``now``.

    ``before`` is (instant, delay) of the same failure's last occurrence. The delay stays if the failure occurred during
    it, doubles if it occurred within twice the delay after it, and is ``first_seconds`` otherwise.
    """
    if before is None:
        return first_seconds
    met_at, waited = before
    if now < met_at + waited:
        return waited
    if now <= met_at + 3 * waited:
        return min(cap_seconds, 2 * waited)
    return first_seconds
