"""Policy: what bends the dispatcher's plain order, and the sessions it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from scheduler.planner.model.pool_capacity import NEVER

if TYPE_CHECKING:
    from scheduler.core.plan import Placement
    from scheduler.core.snapshot import JobView
    from scheduler.planner.model.lanes import CandidateSession
    from scheduler.planner.model.plan_state import PlanState

# Equal parts of the horizon in which a policy may rank jobs differently.
PHASES = 8


@dataclass(frozen=True, slots=True)
class PinnedSession:
    """A session to repeat from an earlier plan: at ``start``, led by the first of ``jobs`` that can come.

    It was to last ``seconds``; a little more is granted, for a job that has turned out slower.
    """

    start: int
    jobs: tuple[int, ...]
    seconds: int = NEVER


class Admission(Protocol):
    """Tells whether a session of a pool class at an instant is worth its hours."""

    def __call__(self, group: int, instant: int, session: CandidateSession) -> bool:
        """Tell it of ``session``."""

    def least(self, group: int, instant: int) -> tuple[Sequence[float], float]:
        """Return by job the part of its density that counts, and how much that must be: less is admitted never."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What bends the plain order.

    ``factors`` scale densities by (pool class, job), ``phased`` by (pool class, job, equal part of the horizon).
    ``admits(class, instant, session)`` tells whether a session is worth its hours. ``urgent`` jobs go first as long as
    they can make their deadline. ``pinned`` holds by pool what an earlier plan decided, which is done before all else.
    ``order(job, remaining steps)`` takes the place of densities: the smallest goes first, whatever its hours are worth.
    """

    factors: Mapping[tuple[int, int], float] = field(default_factory=dict)
    phased: Mapping[tuple[int, int, int], float] = field(default_factory=dict)
    admits: Admission | None = None
    urgent: frozenset[int] = frozenset()
    foresight_seconds: int = NEVER
    pinned: Mapping[int, tuple[PinnedSession, ...]] = field(default_factory=dict)
    order: Callable[[JobView, int], float] | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """What the dispatcher decided, before reasons are given. ``gate_passes`` holds the expected instants by job.

    ``state_after`` is the state of jobs and pools after these sessions, if a walk has just computed it.
    """

    placements: tuple[Placement, ...]
    gate_passes: dict[int, int]
    state_after: PlanState | None = field(default=None, compare=False, repr=False)


PLAIN = Policy()
