"""Plan: the frozen output of every planner."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """One job's share of a placement: how many devices, and the steps it is expected to checkpoint."""

    job: str
    devices: int
    steps: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A session to run on ``pool`` during [start, end); it is charged once whatever the number of lanes."""

    pool: str
    start: int
    end: int
    lanes: tuple[PlannedLane, ...]

    @property
    def devices(self) -> int:
        """The devices of all lanes together."""
        return sum(lane.devices for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Deferral:
    """A job that does not start now, and the first reason that applies."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class KeptHours:
    """The next job of ``kind`` is expected at ``expected_at``, with ``seconds`` of work where it is fastest.

    Plans of older versions name the ``pool`` whose hours they reserved for it; it is empty otherwise. ``sure`` is
    between 0 and 1: how regularly the kind came so far, 1 if its user has ``said`` when it comes.
    """

    kind: str
    pool: str
    expected_at: int
    seconds: int
    sure: float
    said: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements from ``made_at`` to the horizon, and a reason for every job that waits.

    ``value`` is the weighted discounted useful hours of the placements; ``bound`` is what no plan can exceed, when a
    layer that can prove one was at hand. ``warnings`` name layers that failed and were done without.
    ``kept`` is the work that is expected within the horizon; the plan does not reserve hours for it.
    """

    made_at: int
    placements: tuple[Placement, ...]
    deferrals: tuple[Deferral, ...]
    value: float = 0.0
    bound: float | None = None
    made_by: str = "dispatch"
    warnings: tuple[str, ...] = ()
    kept: tuple[KeptHours, ...] = ()

    @property
    def due_now(self) -> tuple[Placement, ...]:
        """The sessions to launch at once."""
        return tuple(placement for placement in self.placements if placement.start <= self.made_at)

    @property
    def digest(self) -> str:
        """Sixteen hex digits that are equal for equal placements and deferrals."""
        body = {
            "placements": [
                [p.pool, p.start, p.end, [[s.job, s.devices, s.steps] for s in p.lanes]] for p in self.placements
            ],
            "deferrals": [[deferral.job, deferral.reason.to_json()] for deferral in self.deferrals],
        }
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
