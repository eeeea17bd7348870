"""Snapshot: the immutable input of every plan, built in one read transaction."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.nouns.pool import Pool
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of one job on one device of one pool, in steps per second of training time.

    ``sigma`` is the relative standard error, zero for an exact speed; ``samples`` is zero for a prior.
    """

    steps_per_second: float
    sigma: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class HourShare:
    """A job's share of the device hours of its ``group``, named after the job that gets the unassigned remainder.

    ``part`` is the target share, from 0 to 1. ``seconds`` are the device seconds of the job so far, with the full
    length of a live run; ``of_seconds`` are those of the whole group.
    """

    group: str
    part: float
    seconds: int = 0
    of_seconds: int = 0

    @property
    def so_far(self) -> float | None:
        """The share received so far; None if the group received nothing."""
        return self.seconds / self.of_seconds if self.of_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class JobView:
    """An open job, possibly running, as the planner's input.

    ``done_step`` counts checkpointed steps only. ``blocked`` is set for a job that must not start at all, for example
    a held job. ``running`` is the run ID of its live run. ``rates``, ``setup_seconds`` (from launch to first step) and
    ``checkpoint_seconds`` are keyed by the pools that the job may use. ``setup_sigma`` and ``checkpoint_sigma`` are
    relative standard deviations between sessions; a pool with exact values has none.
    """

    name: str
    weight: float
    target_step: int
    done_step: int
    needs: Needs
    rates: Mapping[str, Rate]
    setup_seconds: Mapping[str, int]
    checkpoint_seconds: Mapping[str, int]
    device_speedup: tuple[float, ...] = (1.0,)
    allowed_pools: tuple[str, ...] = ()  # as set by the job's owner; empty: any
    gate: Gate | None = None
    not_before: int | None = None
    retry_at: int | None = None
    last_error: str = ""  # last line of the error message after which it waits until ``retry_at``
    deadline: int | None = None
    blocked: Reason | None = None
    running: str | None = None
    last_pool: str | None = None
    share: HourShare | None = None
    position: int = 0  # queue position; breaks ties
    reference_rate: float = 0.0  # steps per second of the reference device; 0: of the fastest pool
    setup_sigma: Mapping[str, float] = field(default_factory=dict)
    checkpoint_sigma: Mapping[str, float] = field(default_factory=dict)
    misfit: str = ""  # why it fits no pool, and the nearest setting that fits; "" if it fits
    urgency: float = 1.0  # factor on the priority, higher for a job that is close to its end
    kind: str = ""  # the key of its history in Arrivals; empty: its name

    def why_not_before(self, release: int) -> str:
        """Return why the job may not start before ``release``; callers append "until" and the instant."""
        if release != self.retry_at:
            return "not to start"
        return f"waits after a failure ({self.last_error})" if self.last_error else "waits after a failure"

    @property
    def importance(self) -> float:
        """The value of a productive hour on the reference device: priority times urgency."""
        return self.weight * self.urgency

    @property
    def remaining_steps(self) -> int:
        """Steps between the newest checkpoint and the target."""
        return max(0, self.target_step - self.done_step)

    def speed(self, pool: str, devices: int) -> float:
        """Return the steps per second on ``devices`` of ``pool``. Raises KeyError if the job may not use the pool."""
        gain = self.device_speedup[min(devices, len(self.device_speedup)) - 1]
        return self.rates[pool].steps_per_second * gain


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run with reserved quota: its session is [start, deadline), and quota is reserved until ``held_until``.

    ``devices`` is the sum over its lanes.
    """

    key: str
    start: int
    deadline: int
    held_until: int
    jobs: tuple[str, ...]
    devices: int = 1


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with its charges, live runs and observed limits. ``closed_until`` is set while the pool is closed."""

    pool: Pool
    charges: tuple[Charge, ...] = ()
    live: tuple[LiveRun, ...] = ()
    observed: tuple[ObservedLimit, ...] = ()
    closed_until: int | None = None
    closed_why: str = ""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The times at which jobs of one kind were added, oldest first, in seconds UTC.

    ``latest`` is the last of these jobs, with no step done. ``expected`` are the times at which the user expects the
    next jobs, soonest first; they replace the forecast.
    """

    kind: str
    instants: tuple[int, ...]
    latest: JobView
    expected: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a plan depends on. ``finished`` has the completed fraction of parents that are not open now.

    ``arrivals`` is the history of the queue, from which the next jobs of each kind are forecast.
    """

    now: int
    jobs: tuple[JobView, ...]
    pools: tuple[PoolView, ...]
    horizon_seconds: int = 604_800
    finished: Mapping[str, float] = field(default_factory=dict)
    arrivals: tuple[Arrivals, ...] = ()

    def progress(self, job: str) -> float | None:
        """Return the checkpointed fraction of a job's target, or None for an unknown name."""
        for view in self.jobs:
            if view.name == job:
                return view.done_step / view.target_step if view.target_step > 0 else 1.0
        return self.finished.get(job)
