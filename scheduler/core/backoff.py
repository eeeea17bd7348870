"""Retry delays: exponential with a cap, spread by a hash so that jobs that failed together do not return together."""

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
