"""When a command makes no progress: the rules that hold without the daemon (pure)."""

from __future__ import annotations

import math
from typing import NamedTuple

from .ending import Stop
from .meter import LaneMeter


class StallLimits(NamedTuple):
    """What a command is given, in scheduled seconds and counts; None switches a rule off.

    ``first_progress_seconds`` from its start to its first report or checkpoint; ``no_progress_seconds`` from one new
    step to the next, once it reports; a command that ran ``checkpoint_seconds`` until the session's end had time to
    save; the ``loss_nan``-th report in a row whose loss is no finite number is the last.
    """

    first_progress_seconds: float | None = None
    no_progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    loss_nan: int | None = None


class StallWatch:
    """Knows since when nothing came of a command. All instants and spans are scheduled seconds.

    Looks that lie more than ``pause_seconds`` apart mean that the machine stood still. That is not the command's fault
    and does not count.
    """

    def __init__(self, limits: StallLimits, pause_seconds: float) -> None:
        self._limits, self._pause = limits, pause_seconds
        self._looked_at = 0.0
        self._began_at: float | None = None
        self._quiet_since = 0.0
        self._furthest = -1
        self._saved = False
        self.longest_quiet = 0.0  # from one new step to the next

    def begin(self, now: float) -> None:
        """Note that the command has started."""
        self._began_at = self._quiet_since = self._looked_at = now

    def hear(self, meter: LaneMeter, now: float) -> None:
        """Note a line of the command; only a step that is new is progress."""
        if meter.step is not None and meter.step > self._furthest:
            if self._furthest >= 0:
                self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
            self._furthest, self._quiet_since = meter.step, now

    def stored(self, now: float) -> None:
        """Note that a checkpoint of the command is in the store."""
        self._saved, self._quiet_since = True, now

    def due_at(self, meter: LaneMeter) -> float:
        """Return when a rule will be broken if nothing comes until then; infinity when none can be."""
        limit = self._limit(meter)
        return math.inf if limit is None or self._began_at is None else self._quiet_since + limit

    def look(self, meter: LaneMeter, now: float) -> Stop | None:
        """Return why the command must end now, if it must."""
        if self._began_at is None:
            return None
        stood_still = max(0.0, now - self._looked_at - self._pause)
        self._looked_at = now
        self._began_at += stood_still
        self._quiet_since += stood_still
        if self._limits.loss_nan is not None and meter.losses_lost >= self._limits.loss_nan:
            why = f"the loss is no number since step {meter.lost_since}, {meter.losses_lost} reports in a row"
            return Stop("failed", why, now, "diverged")
        if now < self.due_at(meter):
            return None
        quiet = minutes(now - self._quiet_since)
        if meter.began_at is None:
            return Stop("failed", f"no first progress: nothing was reported or saved in {quiet}", now, "stalled")
        self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
        return Stop("failed", f"no progress: no new step in {quiet}, the newest is {self._furthest}", now, "stalled")

    def empty_handed(self, stop: Stop | None) -> str:
        """Return how long a command ran that had time to save until its session's end and saved nothing."""
        limit = self._limits.checkpoint_seconds
        if limit is None or self._began_at is None or self._saved or stop is None or not stop.at_deadline:
            return ""
        ran = stop.at - self._began_at
        return minutes(ran) if ran >= limit else ""

    def _limit(self, meter: LaneMeter) -> float | None:
        if meter.began_at is None:
            # A command that saves without a word is judged by what it saves, at the session's end.
            return None if self._saved else self._limits.first_progress_seconds
        return self._limits.no_progress_seconds


def minutes(seconds: float) -> str:
    """Return a span in words for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
