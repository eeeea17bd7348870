"""Run states, lane outcomes and the arrows between them. A run is one launch on one pool.

::

    Reserved --submit--> Submitting --accept--> Running --stop--> Stopping
        any live state --end(outcome)--> Ended        Submitting --void--> Ended(rejected), only after proof
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

from scheduler.core.job import IllegalArrow


class Outcome(StrEnum):
    """Why a lane ended."""

    FINISHED = "finished"  # target step reached and published
    YIELDED = "yielded"  # saved and left on its own deadline or on our stop
    PREEMPTED = "preempted"  # the platform took the session away, or it ended before its command had begun
    FAILED = "failed"  # the training command, its data or its device failed
    LOST = "lost"  # the platform proves the session is gone and it left no result
    REJECTED = "rejected"  # never started: refused, or proven absent
    CANCELLED = "cancelled"  # a person cancelled the job or the run


# The error class of a session that received another accelerator than its pool declares; a failure of the pool.
WRONG_DEVICE = "wrong_device"
PARENT = "parent"  # the error class of a session that could not start from another job's checkpoint
CLOCKS_SECONDS = 3_600  # how far another machine's clock may be from ours

NextJob = Literal["requeue", "retry", "finish"]


@dataclass(frozen=True, slots=True)
class Consequence:
    """The effect of an outcome on the job, the charge and the retry counter."""

    job: NextJob
    charged: bool
    counts_as_failure: bool


CONSEQUENCES: dict[Outcome, Consequence] = {
    Outcome.FINISHED: Consequence("finish", charged=True, counts_as_failure=False),
    Outcome.YIELDED: Consequence("requeue", charged=True, counts_as_failure=False),
    Outcome.PREEMPTED: Consequence("requeue", charged=True, counts_as_failure=False),
    Outcome.FAILED: Consequence("retry", charged=True, counts_as_failure=True),
    Outcome.LOST: Consequence("retry", charged=True, counts_as_failure=True),
    Outcome.REJECTED: Consequence("requeue", charged=False, counts_as_failure=False),
    Outcome.CANCELLED: Consequence("requeue", charged=True, counts_as_failure=False),
}


@dataclass(frozen=True, slots=True)
class Reserved:
    """Quota is reserved; the platform was not called."""

    at: int


@dataclass(frozen=True, slots=True)
class Submitting:
    """The platform may have been called; it can be queried by the run ID."""

    since: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Running:
    """The platform lists the session as ``remote_id``; its charge began at ``started``."""

    remote_id: str
    started: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The session was asked to save and exit."""

    remote_id: str
    started: int
    why: str
    since: int


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended; ``started`` is None if it never began."""

    outcome: Outcome
    at: int
    started: int | None


RunState = Reserved | Submitting | Running | Stopping | Ended


@dataclass(frozen=True, slots=True)
class Lane:
    """One job's lane in a run. ``restore_step`` is the step that it resumed from; until reported, the planned step.

    ``begun_at`` is set for a lane that was added to a running session, on devices of a lane that had ended: it is when
    the lane was to begin. It is None for a lane that began with the session.
    """

    index: int
    job: str
    attempt: int
    devices: tuple[int, ...]
    restore_step: int | None
    outcome: Outcome | None = None
    end_step: int | None = None
    error_class: str | None = None
    message: str = ""
    code: str | None = None  # the digest of the job's code
    # The job's other folders in the artifact store, by purpose: {"input.base": "input/<digest>"}.
    trees: Mapping[str, str] = field(default_factory=dict)
    begun_at: int | None = None

    def continues(self, other: "Lane") -> bool:
        """Return whether this lane uses devices that ``other`` had before it in the same session."""
        return self.begun_at is not None and other.index < self.index and set(self.devices) <= set(other.devices)


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a session waits in its platform's queue, and when the platform expects to start it (None: not reported).

    ``place`` is its queue position, 1 for the next; ``since`` is when it was first seen waiting. If the platform can
    move the deadline, ``deadline`` is the current deadline and ``length_seconds`` the longest run time.
    """

    why: str
    starts_at: int | None
    place: int | None = None
    length_seconds: int | None = None
    deadline: int | None = None
    since: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One launch. ``planned_start`` .. ``deadline`` is the session, ``held_until`` the end of its hold.

    ``wait`` is why its session waits in the platform's queue, for people only; no decision reads it.
    """

    key: str
    pool: str
    lanes: tuple[Lane, ...]
    planned_start: int
    deadline: int
    held_until: int
    state: RunState
    wait: Wait | None = None

    @property
    def devices(self) -> int:
        """The sum of the devices of all lanes, each device once."""
        return sum(len(lane.devices) for lane in self.lanes if lane.begun_at is None)

    def continued_by(self, job: str) -> str:
        """Return the note that ``job`` continues in another job's session; empty if it began with the session."""
        lane = next((lane for lane in reversed(self.lanes) if lane.job == job), None)
        return f"continues in the session of {self.lanes[0].job}" if lane and lane.begun_at is not None else ""


def lane_seconds(lanes: Sequence[Lane], start: int, end: int) -> dict[int, int]:
    """Return by index the device seconds of each lane within [start, end) of a session.

    On each device a lane has the time until the next lane continues there, so that nothing is counted twice.
    """
    seconds = dict.fromkeys((lane.index for lane in lanes), 0)
    for lane in lanes:
        since = start if lane.begun_at is None else lane.begun_at
        for device in lane.devices or (None,):
            later = [other.begun_at for other in lanes if other.continues(lane) and device in other.devices]
            until = min((at for at in later if at is not None), default=end)
            seconds[lane.index] += max(0, min(until, end) - max(since, start))
    return seconds


def launch_key(prefix: str, job: str, attempt: int) -> str:
    """Return the run ID: lower case, digits and hyphens, at most 50 characters. Platforms list the session under it.

    ``job`` is that of the run's first lane. Attempt numbers of a job are never reused, so IDs are unique.
    """
    cleaned = "".join(c if c.isascii() and c.isalnum() else "-" for c in job.lower()).strip("-")
    name, tail = f"{prefix}-{cleaned}", f"-{attempt:04d}"
    if cleaned != job or len(name) + len(tail) > 50:
        # Different names that are equal after cleaning or cutting must not share an ID.
        tail = f"-{hashlib.sha256(job.encode()).hexdigest()[:8]}{tail}"
    return name[: 50 - len(tail)].rstrip("-") + tail


def submit(state: RunState, now: int) -> Submitting:
    """Reserved -> Submitting, or another attempt to submit under the same run ID."""
    match state:
        case Reserved():
            return Submitting(now, 1)
        case Submitting(since, attempts):
            return Submitting(since, attempts + 1)
        case _:
            raise IllegalArrow("submit", state)


def accept(state: RunState, remote_id: str, started: int) -> Running:
    """Submitting -> Running: the platform confirmed the launch, or lists the run ID."""
    if isinstance(state, Submitting):
        return Running(remote_id, started)
    raise IllegalArrow("accept", state)


def begin(state: RunState, started: int) -> RunState:
    """Return the state with the real start of the charge, which is known after the platform's queue."""
    return replace(state, started=started) if isinstance(state, Running | Stopping) else state


def stop(state: RunState, why: str, now: int) -> Stopping:
    """Running -> Stopping: a stop flag was set."""
    if isinstance(state, Running):
        return Stopping(state.remote_id, state.started, why, now)
    raise IllegalArrow("stop", state)


def end(state: RunState, outcome: Outcome, at: int, started: int | None) -> Ended:
    """Any live state -> Ended. ``started`` is when the charge began, None if it never did."""
    never_ran = outcome in {Outcome.REJECTED, Outcome.CANCELLED}
    match state:
        case Running() | Stopping() if started is not None or never_ran:
            return Ended(outcome, at, started)
        case Reserved() | Submitting() if started is None and never_ran:
            return Ended(outcome, at, None)
        case _:
            raise IllegalArrow(f"end({outcome})", state)
