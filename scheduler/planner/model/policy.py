"""Policy: how the dispatcher orders jobs, and the schedule that it makes."""

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
    """A session to repeat from an earlier plan: at ``start``, led by the first of ``jobs`` that can start.

    It was planned for ``seconds``; the dispatcher allows a little more for a job that is slower than expected.
    """

    start: int
    jobs: tuple[int, ...]
    seconds: int = NEVER


class Admission(Protocol):
    """The rule by which a session of a pool class at an instant is admitted or refused."""

    def __call__(self, group: int, instant: int, session: CandidateSession) -> bool:
        """Return whether ``session`` is worth its hours."""

    def least(self, group: int, instant: int) -> tuple[Sequence[float], float]:
        """Return (factor of the density by job, minimum): density x factor below the minimum is never admitted."""


@dataclass(frozen=True, slots=True)
class PlanPolicy:
    """How the dispatcher orders jobs; a policy without any field orders them by density.

    ``factors`` scale densities by (pool class, job), ``phased`` by (pool class, job, phase of the horizon).
    ``admits(class, instant, session)`` decides whether a session is worth its hours. ``urgent`` jobs go first while
    they can meet their deadline. ``pinned`` holds the sessions of an earlier plan by pool, which go before all others.
    ``order(job, remaining steps)`` replaces densities: the smallest goes first.
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
    """The dispatcher's sessions; ``gate_passes`` holds by job the instant at which its gate is expected to pass.

    ``state_after`` is the state of jobs and pools after these sessions, if a walk has just computed it.
    """

    placements: tuple[Placement, ...]
    gate_passes: dict[int, int]
    state_after: PlanState | None = field(default=None, compare=False, repr=False)


PLAIN = PlanPolicy()
