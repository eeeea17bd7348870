"""Snapshot: the frozen input of every decision. Built in one read transaction; nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.pool import Pool
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class Rate:
    """Speed of one job on one device of one pool, in steps per second of training time.

    ``sigma`` is the relative standard error, zero for a speed known exactly; ``samples`` is zero for a prior.
    """

    steps_per_second: float
    sigma: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class HourShare:
    """What a job shall have of the device hours of its ``group``, named after the job that keeps the rest.

    ``part`` is between 0 and 1; ``seconds`` are the device seconds that it had so far, those of a live run in full, and
    ``of_seconds`` those of all together.
    """

    group: str
    part: float
    seconds: int = 0
    of_seconds: int = 0

    @property
    def so_far(self) -> float | None:
        """What part of the hours it had; None when nobody had any."""
        return self.seconds / self.of_seconds if self.of_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as the planner sees it: every open job, running ones included.

    ``done_step`` counts checkpointed steps only. ``blocked`` is set for jobs that must not start whatever the
    hours are (held by a person). ``running`` is the launch key of its live run. ``rates``, ``setup_seconds`` (from the
    launch to the first step) and ``checkpoint_seconds`` are per pool name and hold every pool the job may use; the
    sigmas are their relative spreads between sessions, and hold those pools where they are not known exactly.
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
    allowed_pools: tuple[str, ...] = ()  # as the job's owner wrote it; empty: any
    gate: Gate | None = None
    not_before: int | None = None
    retry_at: int | None = None
    last_error: str = ""  # one line of the failure after which it waits until ``retry_at``
    deadline: int | None = None
    blocked: Reason | None = None
    running: str | None = None
    last_pool: str | None = None
    share: HourShare | None = None
    position: int = 0  # place in the queue: breaks ties between jobs of equal worth
    reference_rate: float = 0.0  # steps per second of the reference device, the unit of value; 0: the fastest pool's
    setup_sigma: Mapping[str, float] = field(default_factory=dict)
    checkpoint_sigma: Mapping[str, float] = field(default_factory=dict)
    misfit: str = ""  # what is too big for every pool, and what would fit, where the adviser knows
    urgency: float = 1.0  # how much more than its weight an hour is worth because it brings a finished model nearer
    kind: str = ""  # what Arrivals know it by; empty: its name

    def why_not_before(self, release: int) -> str:
        """Return why the job may not start before ``release``, to be followed by "until" and that instant."""
        if release != self.retry_at:
            return "not to start"
        return f"waits after a failure ({self.last_error})" if self.last_error else "waits after a failure"

    @property
    def importance(self) -> float:
        """What a useful hour on the reference device is worth."""
        return self.weight * self.urgency

    @property
    def remaining_steps(self) -> int:
        """Steps between the newest checkpoint and the target."""
        return max(0, self.target_step - self.done_step)

    def speed(self, pool: str, devices: int) -> float:
        """Return steps per second on ``devices`` devices of ``pool``; raises KeyError for a pool it may not use."""
        gain = self.device_speedup[min(devices, len(self.device_speedup)) - 1]
        return self.rates[pool].steps_per_second * gain


@dataclass(frozen=True, slots=True)
class LiveRun:
    """A run that holds quota now: its session is [start, deadline), its hold ends at ``held_until``.

    ``devices`` are those of its lanes together.
    """

    key: str
    start: int
    deadline: int
    held_until: int
    jobs: tuple[str, ...]
    devices: int = 1


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool with what counts against it. ``closed_until`` is set while it must not be used at all."""

    pool: Pool
    charges: tuple[Charge, ...] = ()
    live: tuple[LiveRun, ...] = ()
    observed: tuple[ObservedLimit, ...] = ()
    closed_until: int | None = None
    closed_why: str = ""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """When jobs of one kind came into the queue, oldest first; ``latest`` is the last of them, with nothing trained.

    ``said`` holds when its user expects the next ones, soonest first; they count instead of what is learned.
    """

    kind: str
    instants: tuple[int, ...]
    latest: JobView
    said: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a plan may depend on. ``finished`` holds the done fraction of parents that are no longer open.

    ``arrivals`` are the queue's history: of kinds that come again and again what comes next is expected.
    """

    now: int
    jobs: tuple[JobView, ...]
    pools: tuple[PoolView, ...]
    horizon_seconds: int = 604_800
    finished: Mapping[str, float] = field(default_factory=dict)
    arrivals: tuple[Arrivals, ...] = ()

    def progress(self, job: str) -> float | None:
        """Return the checkpointed fraction of a job's target, or None for a name nobody knows."""
        for view in self.jobs:
            if view.name == job:
                return view.done_step / view.target_step if view.target_step > 0 else 1.0
        return self.finished.get(job)
