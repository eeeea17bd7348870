"""The only module that reads a clock.

All other modules get ``now`` as an argument, so that a week can be replayed in seconds and tested without sleeping.
"""

import math
import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

_STARTED_AT = 19  # the field of /proc/self/stat, counted after the name, with the start of the process


def at_least(clock: "SchedulerClock", scheduled_seconds: int, wall_seconds: float) -> int:
    """Return a span of scheduled seconds that lasts at least ``wall_seconds`` of real time.

    Answers, commits and process starts need real time even if the clock is fast, so a bound must hold on both clocks.
    """
    return max(scheduled_seconds, math.ceil(wall_seconds / clock.wall_seconds(1.0)))


class SchedulerClock(Protocol):
    """Scheduled time: UTC seconds as the scheduler sees them."""

    def now(self) -> int:
        """Return scheduled UTC seconds."""

    def elapsed(self) -> float:
        """Return scheduled seconds since some instant, by the monotonic clock, which stops in a suspend."""

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return how many seconds of real time pass in ``scheduled_seconds``."""

    def payload_clock(self) -> dict[str, float]:
        """Return the ``clock`` part of the launch contract, so that payloads use the same clock."""


_LONGEST_WAIT_SECONDS = 10 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class ScaledClock:
    """A clock that runs ``scale`` times as fast as real time and showed ``epoch`` at the real instant ``origin``.

    Its time follows from real time alone, so processes with the same parameters agree, also after a crash. It stops at
    ``stopped_at`` if that is set.
    """

    epoch: float
    origin: float
    scale: float
    stopped_at: int | None = None

    def now(self) -> int:
        """Return scheduled UTC seconds."""
        running = int(self.epoch + (time.time() - self.origin) * self.scale)
        return running if self.stopped_at is None else min(running, self.stopped_at)

    def elapsed(self) -> float:
        """Return scheduled seconds since some instant, by the monotonic clock, which stops in a suspend."""
        return time.monotonic() * self.scale

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return the real seconds of a scheduled span; at most as many as a timer can hold."""
        return min(scheduled_seconds / self.scale, _LONGEST_WAIT_SECONDS)

    def payload_clock(self) -> dict[str, float]:
        """Return the ``clock`` part of the launch contract."""
        return {"epoch": self.epoch, "origin": self.origin, "scale": self.scale}


def system_clock() -> ScaledClock:
    """Return the real clock: scale one, no shift."""
    return ScaledClock(epoch=0.0, origin=0.0, scale=1.0)


def real_now() -> float:
    """Return real UTC seconds, for progress displays and file ages, which do not depend on scheduled time."""
    return time.time()


def process_began() -> float:
    """Return when this process began, in real UTC seconds; the present if the system has no /proc.

    Relative times on its command line count from this instant.
    """
    try:
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[_STARTED_AT])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - max(0.0, uptime - ticks / os.sysconf("SC_CLK_TCK"))


def stopwatch() -> float:
    """Return monotonic real seconds, for measuring durations."""
    return time.monotonic()


def utc_datetime() -> datetime:
    """Return the real instant in UTC as a datetime, the type that APScheduler needs."""
    return datetime.now(UTC)


class JumpDetector:
    """Detects that somebody set the time: the wall clock then moves by another amount than the monotonic clock."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def jump(self) -> float:
        """Return by how many seconds the wall clock was set, forward or back, since the last call."""
        before, self._ahead = self._ahead, time.time() - time.monotonic()
        return self._ahead - before


def pause(wall_seconds: float) -> None:
    """Sleep for real seconds, for displays that are refreshed."""
    time.sleep(wall_seconds)
