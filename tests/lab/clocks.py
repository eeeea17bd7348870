"""Clocks for tests: one that begins at an instant, and one that only a test moves."""

from __future__ import annotations

import time
from dataclasses import dataclass

from scheduler.clock import ScaledClock


def starting_now(epoch: int, scale: float) -> ScaledClock:
    """Return a scaled clock that shows ``epoch`` at this moment."""
    return ScaledClock(epoch=float(epoch), origin=time.time(), scale=scale)


@dataclass
class HandClock:
    """A clock that a test moves; scheduled seconds are real ones."""

    present: int = 1_795_000_000

    def now(self) -> int:
        """Return scheduled seconds."""
        return self.present

    def elapsed(self) -> float:
        """Return scheduled seconds."""
        return float(self.present)

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return them as they are."""
        return scheduled_seconds

    def payload_clock(self) -> dict[str, float]:
        """Return the real clock's figures."""
        return {"epoch": 0.0, "origin": 0.0, "scale": 1.0}
