"""Plan: the immutable output of every planner."""

import hashlib
import json
from dataclasses import dataclass

from scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class PlannedLane:
    """One job's lane in a placement: its devices, and the steps that it is expected to checkpoint."""

    job: str
    devices: int
    steps: int


@dataclass(frozen=True, slots=True)
class Placement:
    """A session to run on ``pool`` during [start, end); it is charged once for any number of lanes."""

    pool: str
    start: int
    end: int
    lanes: tuple[PlannedLane, ...]

    @property
    def devices(self) -> int:
        """The sum of the devices of all lanes."""
        return sum(lane.devices for lane in self.lanes)


@dataclass(frozen=True, slots=True)
class Deferral:
    """A job that does not start now, and the first reason that applies."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class KeptHours:
    """The next job of ``kind`` is expected at ``expected_at``, with ``seconds`` of work on its fastest pool.

    ``pool`` is set only in plans of older versions, which reserved hours on it. ``sure`` is a probability from 0 to 1;
    it is 1 if the user ``said`` when the job is expected.
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

    ``value`` is in weighted, discounted useful hours; ``bound`` is an upper bound of any plan's value, None without a
    solver. ``warnings`` name layers that failed. ``kept`` is the work expected within the horizon; the plan does not
    reserve hours for it.
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
        """The sessions to launch now."""
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
