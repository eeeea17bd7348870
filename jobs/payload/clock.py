"""The payload's clock: the only module of the payload that reads a clock."""

import time
from typing import NamedTuple


def stopwatch() -> float:
    """Return monotonic wall seconds, for measuring durations."""
    return time.monotonic()


class Clock(NamedTuple):
    """Scheduled time, in seconds UTC: ``epoch + (wall - origin) * scale``.

    Normally epoch and origin are 0 and scale is 1. In a rehearsal scheduled time is faster: an hour passes in a second.
    The source is the wall clock, not a monotonic one, because another process set the deadline by its wall clock.
    """

    epoch: float = 0.0
    origin: float = 0.0
    scale: float = 1.0

    def now(self) -> float:
        """Return the current scheduled time in seconds UTC."""
        return self.epoch + (time.time() - self.origin) * self.scale

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Convert a span of scheduled seconds to wall seconds."""
        return scheduled_seconds / self.scale

    def wall_seconds_until(self, scheduled_at: float) -> float:
        """Return the wall seconds left before a scheduled instant; negative when it has passed."""
        return (scheduled_at - self.now()) / self.scale
