"""Job states and the arrows between them. A job lives over many runs.

::

    Queued --activate--> Active --requeue--> Queued        a run ended, work is left
                         Active --finish---> Done          target step reached
                         Active --fail-----> Failed        retries used up, or hopeless
                         Active --park-----> Held          a hold was requested, or a failure needs a person
                         Active --cancelled> Cancelled     a cancel was requested
    Queued | Active --ask_hold / ask_cancel--> Held / Cancelled, or Active with the wish recorded until its run ends
    Queued | Held | Failed --finish--> Done               its last checkpoint was found late
    Active --ask_finish--> Active with the wish           its stop rule ends it; Done when its run has ended
    Held | Failed | Cancelled --release--> Queued         Held | Failed --ask_cancel--> Cancelled
    Active with a wish --release--> Active                the recorded wish (hold, cancel or finish) is withdrawn
    Done --reopen--> Queued                               the checkpoint of its target step was lost
    Done, stopped early --release--> Queued               a person wants the steps that were left
    Done, stopped early --promote--> Queued               the candidate of a sweep is one of the best of its rung
    Done, stopped early --drop-----> Done                 others of its rung were better
    Failed | Queued after a failure --retry--> Queued     at once, with a fresh count of failures
    Queued | Held | Done | Failed | Cancelled --remove--> Cancelled, and out of the queue: its name is free
    Cancelled --add_again--> Queued                       a new job takes the name of a removed one
"""

from dataclasses import dataclass, replace
from typing import Literal

from jobs.problem import Refusal

Wish = Literal["hold", "cancel", "finish"]


class IllegalArrow(Refusal, ValueError):
    """A transition that the state does not allow."""

    def __init__(self, arrow: str, state: object) -> None:
        place = f"of a version that is {state}" if isinstance(state, str) else f"from {type(state).__name__}"
        super().__init__(f"{arrow} is not possible {place}")
        self.arrow = arrow
        self.state = state


@dataclass(frozen=True, slots=True)
class Queued:
    """The job waits to be planned; after a failure, it does not start before ``retry_at``."""

    since: int
    retry_at: int | None = None


@dataclass(frozen=True, slots=True)
class Active:
    """The job has a lane in the live run ``run``; ``wish`` is carried out when the run has ended."""

    run: str
    since: int
    wish: Wish | None = None
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The job will not start until it is released."""

    by: str
    why: str
    since: int


@dataclass(frozen=True, slots=True)
class Done:
    """The job reached its target step, or stopped early because of ``why``, before its ``full_target_step``.

    The candidate of a sweep stops early at each rung except the last.
    """

    at: int
    why: str = ""
    full_target_step: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The job is not tried again; ``why`` is an error class, ``message`` is for people."""

    why: str
    message: str
    at: int


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A person does not want the job any more."""

    by: str
    at: int


JobState = Queued | Active | Held | Done | Failed | Cancelled


def activate(state: JobState, run: str, now: int) -> Active:
    """Queued -> Active: the job got a lane in ``run``."""
    if isinstance(state, Queued):
        return Active(run, now)
    raise IllegalArrow("activate", state)


def requeue(state: JobState, now: int, retry_at: int | None = None) -> Queued | Held | Cancelled:
    """Active -> Queued, or the state that was requested meanwhile."""
    if not isinstance(state, Active):
        raise IllegalArrow("requeue", state)
    match state.wish:
        case "hold":
            return Held(state.by, state.why, now)
        case "cancel":
            return Cancelled(state.by, now)
        case "finish" | None:
            return Queued(now, retry_at)


def finish(state: JobState, now: int, why: str = "", full_target_step: int | None = None) -> Done:
    """Active -> Done: a verified checkpoint at the target step exists. Other states: it was found late.

    ``why`` and ``full_target_step`` are set if the job stops early, by its stop rule or at a rung of its sweep.
    """
    if isinstance(state, Active | Queued | Held | Failed):
        return Done(now, why, full_target_step)
    raise IllegalArrow("finish", state)


def ask_finish(state: JobState, why: str) -> Active:
    """Record the wish that the running session saves and ends, and the job is then done. A person's wish goes first."""
    if isinstance(state, Active) and state.wish is None:
        return replace(state, wish="finish", by="its stop rule", why=why)
    raise IllegalArrow("finish", state)


def park(state: JobState, by: str, why: str, now: int) -> Held | Cancelled:
    """Active -> Held: a failure that needs a person; Cancelled if that was requested meanwhile."""
    if not isinstance(state, Active):
        raise IllegalArrow("park", state)
    return Cancelled(state.by, now) if state.wish == "cancel" else Held(by, why, now)


def fail(state: JobState, why: str, message: str, now: int) -> Failed | Cancelled:
    """Active -> Failed: a retry is useless; Cancelled if that was requested meanwhile."""
    if not isinstance(state, Active):
        raise IllegalArrow("fail", state)
    return Cancelled(state.by, now) if state.wish == "cancel" else Failed(why, message, now)


def ask_hold(state: JobState, by: str, why: str, now: int) -> Held | Active:
    """Queued -> Held; an active job is held after its session has saved and ended."""
    match state:
        case Queued():
            return Held(by, why, now)
        case Active():
            return replace(state, wish="hold", by=by, why=why)
        case _:
            raise IllegalArrow("hold", state)


def ask_cancel(state: JobState, by: str, now: int) -> Cancelled | Active:
    """Queued, Held or Failed -> Cancelled; an active job is cancelled after its session has saved and ended."""
    match state:
        case Queued() | Held() | Failed():
            return Cancelled(by, now)
        case Active():
            return replace(state, wish="cancel", by=by, why="")
        case _:
            raise IllegalArrow("cancel", state)


def release(state: JobState, now: int) -> Queued | Active:
    """Held, Failed, Cancelled or stopped early -> Queued; the wish of an active job is withdrawn."""
    match state:
        case Held() | Failed() | Cancelled() | Done(full_target_step=int()):
            return Queued(now)
        case Active(wish="hold" | "cancel" | "finish"):
            return replace(state, wish=None, by="", why="")
        case _:
            raise IllegalArrow("release", state)


def promote(state: JobState, now: int) -> Queued:
    """Done at a rung -> Queued: the candidate trains on."""
    if isinstance(state, Done) and state.full_target_step is not None:
        return Queued(now)
    raise IllegalArrow("promote", state)


def drop(state: JobState, why: str) -> Done:
    """Done at a rung -> Done with the final reason ``why``: the candidate does not train on."""
    if isinstance(state, Done) and state.full_target_step is not None:
        return replace(state, why=why)
    raise IllegalArrow("drop", state)


def reopen(state: JobState, now: int) -> Queued:
    """Done -> Queued: the checkpoint of the target step was lost."""
    if not isinstance(state, Done):
        raise IllegalArrow("reopen", state)
    return Queued(now)


def retry(state: JobState, now: int) -> Queued:
    """Failed, or Queued with a retry delay -> Queued without a delay."""
    match state:
        case Failed() | Queued(retry_at=int()):
            return Queued(now)
        case _:
            raise IllegalArrow("retry", state)


def restart(state: JobState, now: int) -> Queued:
    """Any state without a session -> Queued: the job starts from scratch, as its next generation."""
    if isinstance(state, Active):
        raise IllegalArrow("restart", state)
    return Queued(now)


def remove(state: JobState, by: str, now: int) -> Cancelled:
    """Any state without a session -> Cancelled; the store removes the job from the queue, which frees its name."""
    if isinstance(state, Active):
        raise IllegalArrow("remove", state)
    return Cancelled(by, now)


def add_again(state: JobState, now: int) -> Queued:
    """Cancelled -> Queued: a new job takes the name of one that was removed."""
    if isinstance(state, Cancelled):
        return Queued(now)
    raise IllegalArrow("add_again", state)
