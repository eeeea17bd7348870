"""Run states, lane outcomes and the arrows between them. A run is one launch on one pool.

::

    Reserved --submit--> Submitting --accept--> Running --stop--> Stopping
        any live state --end(outcome)--> Ended        Submitting --void--> Ended(rejected), only after proof
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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


# The class of a failure that is the place's: it gave another accelerator than it promises.
WRONG_DEVICE = "wrong_device"
PARENT = "parent"  # the error class of a session that could not start from another job's checkpoint
CLOCKS_SECONDS = 3_600  # how far another machine's clock may be from ours

NextJob = Literal["requeue", "retry", "finish"]


@dataclass(frozen=True, slots=True)
class Consequence:
    """What an outcome means: for the job, for the charge and for the retry counter."""

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
    """Quota is set aside; nothing was sent anywhere."""

    at: int


@dataclass(frozen=True, slots=True)
class Submitting:
    """The platform may have been called; the launch key tells."""

    since: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Running:
    """The platform knows the session as ``remote_id``; its meter began at ``started``."""

    remote_id: str
    started: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """We asked it to save and leave."""

    remote_id: str
    started: int
    why: str
    since: int


@dataclass(frozen=True, slots=True)
class Ended:
    """Over. ``started`` is None when it never began."""

    outcome: Outcome
    at: int
    started: int | None


RunState = Reserved | Submitting | Running | Stopping | Ended


@dataclass(frozen=True, slots=True)
class Lane:
    """One job's lane in a run. ``restore_step`` is the checkpoint it started from, until it tells the one planned."""

    index: int
    job: str
    attempt: int
    devices: tuple[int, ...]
    restore_step: int | None
    outcome: Outcome | None = None
    end_step: int | None = None
    error_class: str | None = None
    message: str = ""
    code: str | None = None  # the digest of what its command runs in
    # What it is given besides: folders of the artifact store by purpose, as {"input.base": "input/<digest>"}.
    trees: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a run's session waits in its platform's queue, and when that expects to start it (None: not told).

    ``place`` is its place in the queue, 1 for the next; ``since`` is when it was first seen to wait. Where its platform
    can move its deadline on, ``deadline`` is that, and ``length_seconds`` how long it may run at most.
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

    ``wait`` says for people why its session waits in its platform's queue; no decision reads it.
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
        """The devices of all lanes together."""
        return sum(len(lane.devices) for lane in self.lanes)


def launch_key(prefix: str, job: str, attempt: int) -> str:
    """Return the platform-side name of a launch: lower case, digits and hyphens, at most 50 characters.

    The job is the run's first lane. Attempts of a job are never reused, so neither is a key.
    """
    cleaned = "".join(c if c.isascii() and c.isalnum() else "-" for c in job.lower()).strip("-")
    name, tail = f"{prefix}-{cleaned}", f"-{attempt:04d}"
    if cleaned != job or len(name) + len(tail) > 50:
        # Names that look alike once cleaned or cut must not share a key.
        tail = f"-{hashlib.sha256(job.encode()).hexdigest()[:8]}{tail}"
    return name[: 50 - len(tail)].rstrip("-") + tail


def submit(state: RunState, now: int) -> Submitting:
    """Reserved -> Submitting, or one more attempt of the same key."""
    match state:
        case Reserved():
            return Submitting(now, 1)
        case Submitting(since, attempts):
            return Submitting(since, attempts + 1)
        case _:
            raise IllegalArrow("submit", state)


def accept(state: RunState, remote_id: str, started: int) -> Running:
    """Submitting -> Running: the platform confirmed the launch, now or when we found it by its key."""
    if isinstance(state, Submitting):
        return Running(remote_id, started)
    raise IllegalArrow("accept", state)


def begin(state: RunState, started: int) -> RunState:
    """Correct when a session's meter began, which is known only once it has left its platform's queue."""
    return replace(state, started=started) if isinstance(state, Running | Stopping) else state


def stop(state: RunState, why: str, now: int) -> Stopping:
    """Running -> Stopping: a stop flag was set."""
    if isinstance(state, Running):
        return Stopping(state.remote_id, state.started, why, now)
    raise IllegalArrow("stop", state)


def end(state: RunState, outcome: Outcome, at: int, started: int | None) -> Ended:
    """Any live state -> Ended. ``started`` is when the meter began; None says that it never did."""
    never_ran = outcome in {Outcome.REJECTED, Outcome.CANCELLED}
    match state:
        case Running() | Stopping() if started is not None or never_ran:
            return Ended(outcome, at, started)
        case Reserved() | Submitting() if started is None and never_ran:
            return Ended(outcome, at, None)
        case _:
            raise IllegalArrow(f"end({outcome})", state)
