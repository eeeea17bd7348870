"""How often to ask about each job: one poller for all jobs of a pool, so that a busy account is not asked for more.

SageMaker answers an account only so many times a second, whoever asks. What was seen is passed on until it is time to
ask again; times are spread so that jobs launched together are not asked about together; and when AWS says that it is
asked too often, nothing is asked for a while, twice as long each time.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from platforms.base import SessionState
from platforms.sagemaker.answers import Throttled

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from platforms.base import Observed

_ENDING_SECONDS = 10
_ENDING_WITHIN_SECONDS = 300
_SPREAD = 0.2
_PAUSE_SECONDS = 30
_PAUSE_SECONDS_MAX = 300
_FORGET_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen of a job, and when AWS ends it at the latest (UTC seconds)."""

    observed: Observed
    ends_by: int


class Poller:
    """Remembers what was seen of each job until it is time to look again. All times are UTC seconds."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds  # between two looks at a job that runs; one that waits is looked at half as often
        self._seen: dict[str, tuple[int, Observed]] = {}  # until when it is news enough
        self._quiet_until = 0
        self._pause_seconds = 0
        self._lock = threading.Lock()

    def find(self, keys: Iterable[str], now: int, look: Callable[[str], Look | None]) -> dict[str, Observed]:
        """Return what is known of ``keys``, looking where it is time to; ``look`` returns None for unknown jobs.

        Raises Throttled, also without asking while AWS is left in peace, and what ``look`` raises.
        """
        found: dict[str, Observed] = {}
        wanted = list(keys)
        with self._lock:
            self._seen = {key: seen for key, seen in self._seen.items() if seen[0] > now - _FORGET_SECONDS}
            if now < self._quiet_until:
                why = f"asked too often; it is left in peace until {self._quiet_until}"
                raise Throttled("sagemaker", "find", why)
            for key in wanted:
                fresh_until, observed = self._seen.get(key, (now, None))
                if observed is not None and fresh_until > now:
                    found[key] = observed
                    continue
                seen = self._look(key, now, look)
                if seen is not None:
                    found[key] = seen.observed
                    self._remember(key, seen, now)
            self._pause_seconds = 0
        return found

    def forget(self, key: str) -> None:
        """Look at a job anew when it is next asked for: something was done to it."""
        with self._lock:
            self._seen.pop(key, None)

    def _look(self, key: str, now: int, look: Callable[[str], Look | None]) -> Look | None:
        try:
            return look(key)
        except Throttled:
            self._pause_seconds = min(_PAUSE_SECONDS_MAX, 2 * self._pause_seconds or _PAUSE_SECONDS)
            self._quiet_until = now + self._pause_seconds
            raise

    def _remember(self, key: str, seen: Look, now: int) -> None:
        if seen.observed.state is SessionState.RUNNING:
            ending = now >= seen.ends_by - _ENDING_WITHIN_SECONDS
            seconds = min(self._seconds, _ENDING_SECONDS) if ending else self._seconds
        elif seen.observed.state is SessionState.QUEUED:
            seconds = 2 * self._seconds
        else:
            self._seen.pop(key, None)
            return
        # No chance is needed for that: what counts is that jobs differ, and that no rhythm stays.
        part = int.from_bytes(hashlib.sha256(f"{key} {now}".encode()).digest()[:4], "big") / 0xFFFFFFFF
        self._seen[key] = (now + round(seconds * (1 - _SPREAD + 2 * _SPREAD * part)), seen.observed)
