"""How a lane ended: the outcomes on which the daemon decides, the stop flag, and the rules for stalled commands."""

import json
import math
from typing import Literal, NamedTuple

from ..store.transport import Transport
from .failure import ErrorClass, Failure, classify
from .meter import LaneMeter

FORMAT = 1  # of heartbeats and results
Phase = Literal["starting", "restoring", "training", "saving", "stopping", "ended"]

DEADLINE = "deadline"  # reason of a stop at the end of the session
Outcome = Literal["finished", "yielded", "preempted", "failed"]


class Stop(NamedTuple):
    """A request to end the command at the scheduled second ``at``. A broken stall rule sets ``error_class``."""

    outcome: Outcome
    why: str
    at: float
    error_class: ErrorClass | None = None
    at_deadline: bool = False


class Ending(NamedTuple):
    """The end of a lane. ``message`` is for people: the last lines of the command, or what failed."""

    outcome: Outcome
    why: str
    error_class: ErrorClass | None = None
    message: str = ""


class EndingFacts(NamedTuple):
    """The facts at the end of a lane. Unknown steps are None; so is ``exit_code`` if no command ended."""

    target_step: int
    reported_step: int | None
    stored_step: int | None
    whole: bool  # a job without checkpoints: it has no partial result
    saved_since_stop: bool
    unstored: bool  # a checkpoint was made or attempted, but is not in the store
    diverged: str  # why the loss ended the training, or why checkpoints are held back; "" if the loss is finite
    unsaved_for: str  # how long it ran, although it could have saved and did not; "" for other commands
    began: bool  # whether the command reported progress
    killed: bool  # killed by the runner after its grace period
    exit_code: int | None
    stop: Stop | None
    failure: Failure | None
    trouble: str
    errors: str  # last lines of the command's standard error


def judge(facts: EndingFacts) -> Ending:
    """Return how the lane ended. The first rule that applies decides; a stored target step precedes any failure."""
    if facts.stored_step is not None and facts.stored_step >= facts.target_step:
        return Ending("finished", "target step", None, facts.errors)
    if facts.failure:
        return Ending("failed", facts.failure.why, facts.failure.error_class, facts.failure.why)
    if facts.stop and facts.stop.outcome == "preempted":
        return Ending("preempted", facts.stop.why, None, facts.errors)
    if facts.stop and facts.whole:
        return _cut_short(facts, facts.stop)
    if facts.diverged:
        return Ending("failed", facts.diverged, "diverged", facts.errors)
    if facts.unstored:
        return Ending("failed", "the last checkpoint could not be stored", "store", facts.trouble or facts.errors)
    if stalled := _stalled(facts):
        return stalled
    if facts.stop and not _is_failure(facts):
        why = facts.stop.why if facts.began or facts.saved_since_stop else f"{facts.stop.why}, before training began"
        return Ending("yielded", why, None, facts.errors)
    if facts.stop and facts.killed:
        why = f"{facts.stop.why}: the command did not end in its grace and was killed"
        return Ending("failed", why, "killed", facts.errors)
    if facts.exit_code:
        verdict = classify(facts.exit_code, facts.errors)
        return Ending("failed", verdict.why, verdict.error_class, facts.errors)
    if facts.exit_code is None and not facts.stop:
        # Without a stop request and an exit status, the preparation used up the session.
        return Ending("yielded", "deadline, before training began", None, facts.errors)
    at = "before it reported a step" if facts.reported_step is None else f"at step {facts.reported_step}"
    stored = "none" if facts.stored_step is None else facts.stored_step
    steps = f"{at} (stored: {stored}, target: {facts.target_step})"
    why = f"the command ended {steps} without having saved" if facts.stop else f"the command ended too early, {steps}"
    return Ending("failed", why, "code", facts.trouble or facts.errors)


def _stalled(facts: EndingFacts) -> Ending | None:
    """Return the end of a command that a stall rule stopped, or that saved nothing in the session; else None."""
    stop = facts.stop
    if stop and stop.error_class:
        if facts.saved_since_stop:
            return Ending("yielded", f"{stop.why}; asked to end, it saved", None, facts.errors)
        return Ending("failed", stop.why, stop.error_class, facts.errors)
    if stop and facts.unsaved_for:
        how = "was killed" if facts.killed else f"ended with exit status {facts.exit_code}"
        why = f"{stop.why}: nothing was saved in {facts.unsaved_for}; asked to save and end, the command {how}"
        return Ending("failed", why, "no_checkpoint", facts.trouble or facts.errors)
    return None


def _cut_short(facts: EndingFacts, stop: Stop) -> Ending:
    """Return the end of a job without checkpoints that was stopped before it finished."""
    if facts.unsaved_for:
        why = f"{stop.why}: it ran {facts.unsaved_for} and did not finish; it starts again, and needs a longer `whole`"
        return Ending("failed", why, "no_checkpoint", facts.errors)
    return Ending("yielded", f"{stop.why}: it had not finished, and starts from scratch", None, facts.errors)


def _is_failure(facts: EndingFacts) -> bool:
    """Return whether a command that was asked to end lost training time that it could have saved."""
    if facts.saved_since_stop or not facts.began:
        return False
    everything_stored = facts.reported_step is None or (facts.stored_step or 0) >= facts.reported_step
    return facts.killed or facts.exit_code != 0 or not everything_stored


def read_stop(transport: Transport, run: str, lane: int) -> str | None:
    """Return the reason of a stop request for this lane, None without one. Raises OSError if the store fails."""
    key = f"runs/{run}/stop"
    try:
        data = transport.read(key)
    except FileNotFoundError:
        return None
    try:
        flag = json.loads(data)
        applies, why = flag["lane"] in (None, lane), str(flag["reason"])
    except (ValueError, KeyError, TypeError):
        # An unreadable flag counts as a stop: to stop costs the rest of the session, to go on could exceed a budget.
        return "the flag is unreadable"
    return why if applies else None


# Stall rules: this process applies them without the daemon.
class StallLimits(NamedTuple):
    """Limits of the stall rules, in scheduled seconds and counts; None switches a rule off.

    ``first_progress_seconds``: from the start to the first report or checkpoint. ``no_progress_seconds``: from one new
    step to the next. ``checkpoint_seconds``: a command that ran this long had time to save. ``loss_nan``: the number of
    reports in a row with a loss that is not finite. ``idle_seconds``: the longest time in which the GPUs may be busy
    less than ``idle_below``, a share from 0 to 1.
    """

    first_progress_seconds: float | None = None
    no_progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    loss_nan: int | None = None
    idle_seconds: float | None = None
    idle_below: float = 0.0


class StallWatch:
    """Tracks a command's progress. A gap of more than ``pause_seconds`` between checks means a suspended machine."""

    def __init__(self, limits: StallLimits, pause_seconds: float) -> None:
        self._limits, self._pause = limits, pause_seconds
        self._checked_at = 0.0
        self._began_at: float | None = None
        self._quiet_since = 0.0
        self._furthest = -1
        self._idle_since: float | None = None
        self._saved = False
        self.longest_quiet = 0.0  # the longest time between two new steps

    def begin(self, now: float) -> None:
        """Record that the command has started."""
        self._began_at = self._quiet_since = self._checked_at = now

    def record_progress(self, meter: LaneMeter, now: float) -> None:
        """Record a progress line of the command; only a new step counts as progress."""
        if meter.step is not None and meter.step > self._furthest:
            if self._furthest >= 0:
                self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
            self._furthest, self._quiet_since = meter.step, now

    def stored(self, now: float) -> None:
        """Record that a checkpoint of the command is in the store."""
        self._saved, self._quiet_since = True, now

    def due_at(self, meter: LaneMeter) -> float:
        """Return when the next rule is broken if no progress follows; infinity if no rule applies."""
        if self._began_at is None:
            return math.inf
        limit, idle = self._limit(meter), self._limits.idle_seconds
        idle_until = math.inf if idle is None or self._idle_since is None else self._idle_since + idle
        return min(idle_until, math.inf if limit is None else self._quiet_since + limit)

    def check(self, meter: LaneMeter, now: float) -> Stop | None:
        """Return a request to end the command if a rule is broken, else None."""
        if self._began_at is None:
            return None
        suspended = max(0.0, now - self._checked_at - self._pause)
        self._checked_at = now
        self._began_at += suspended
        self._quiet_since += suspended
        if idle := self._check_gpus(meter, now, suspended):
            return idle
        if self._limits.loss_nan is not None and meter.losses_lost >= self._limits.loss_nan:
            why = f"the loss is not a finite number since step {meter.lost_since}, {meter.losses_lost} reports in a row"
            return Stop("failed", why, now, "diverged")
        if now < self.due_at(meter):
            return None
        quiet = minutes(now - self._quiet_since)
        if meter.began_at is None:
            return Stop("failed", f"no first progress: nothing was reported or saved in {quiet}", now, "stalled")
        self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
        return Stop("failed", f"no progress: no new step in {quiet}, the newest is {self._furthest}", now, "stalled")

    def _check_gpus(self, meter: LaneMeter, now: float, suspended: float) -> Stop | None:
        """Return a request to end a command whose GPUs were idle for too long, else None; unknown use is not idle."""
        busy, limit = meter.telemetry["gpu_busy"], self._limits.idle_seconds
        if limit is None or busy is None or busy >= self._limits.idle_below:
            self._idle_since = None
            return None
        self._idle_since = now if self._idle_since is None else self._idle_since + suspended
        if now < self._idle_since + limit:
            return None
        share, span = 100 * self._limits.idle_below, minutes(now - self._idle_since)
        return Stop("failed", f"its GPUs were less than {share:.3g} % busy for {span}", now, "stalled")

    def unsaved_for(self, stop: Stop | None) -> str:
        """Return how long a command ran that had time to save and saved nothing; "" for any other command."""
        limit = self._limits.checkpoint_seconds
        if limit is None or self._began_at is None or self._saved or stop is None or not stop.at_deadline:
            return ""
        ran = stop.at - self._began_at
        return minutes(ran) if ran >= limit else ""

    def _limit(self, meter: LaneMeter) -> float | None:
        if meter.began_at is None:
            # For a command that saves but reports nothing, only its checkpoints count, at the end of the session.
            return None if self._saved else self._limits.first_progress_seconds
        return self._limits.no_progress_seconds


def minutes(seconds: float) -> str:
    """Return a span as text, in minutes, or in seconds if shorter than a minute."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
