"""The payload's clock: the only module that is shipped which reads one."""

from __future__ import annotations

import time
from typing import NamedTuple


def stopwatch() -> float:
    """Return wall seconds since some instant: what differs between two readings is how long it took."""
    return time.monotonic()


class Clock(NamedTuple):
    """Scheduled time, in seconds UTC: ``epoch + (wall - origin) * scale``.

    In real life epoch and origin are 0 and scale is 1; a rehearsal lets an hour pass in a second. The wall clock is
    used, not a monotonic one, because the deadline was set on another process's wall clock.
    """

    epoch: float = 0.0
    origin: float = 0.0
    scale: float = 1.0

    def now(self) -> float:
        """Return the scheduled time in seconds UTC."""
        return self.epoch + (time.time() - self.origin) * self.scale

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Convert a span of scheduled seconds to wall seconds."""
        return scheduled_seconds / self.scale

    def wall_seconds_until(self, scheduled_at: float) -> float:
        """Return the wall seconds left before a scheduled instant; negative when it has passed."""
        return (scheduled_at - self.now()) / self.scale
