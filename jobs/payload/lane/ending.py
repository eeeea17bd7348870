"""How a lane ended: the outcomes on which the daemon decides, the stop flag, and the rules for stalled commands."""

import json
import math
from typing import Literal, NamedTuple

from ..store.transport import Transport
from .failure import ErrorClass, Failure, classify
from .meter import LaneMeter

FORMAT = 1  # of heartbeats and results
Phase = Literal["starting", "restoring", "training", "saving", "stopping", "ended"]

DEADLINE = "deadline"  # reason of a session that reaches its end
Outcome = Literal["finished", "yielded", "preempted", "failed"]


class Stop(NamedTuple):
    """A request to end: reason, scheduled second, ``outcome``, the broken rule if any, and if the time was over."""

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
    """The facts at the end of a lane. Steps are None if there are none; ``exit_code`` is None if no command ended."""

    target_step: int
    reported_step: int | None
    stored_step: int | None
    whole: bool  # a job of one step: no partial result
    saved_since_stop: bool
    unstored: bool  # a checkpoint was made or attempted, but is not in the store
    diverged: str  # why it cannot continue, or why its last checkpoint is not kept: the loss is not finite
    empty_handed: str  # seconds in which it could have saved, but saved nothing
    began: bool  # the newest step that the command reported
    killed: bool  # killed by the runner after its grace period
    exit_code: int | None
    stop: Stop | None
    failure: Failure | None
    trouble: str
    errors: str  # last lines of the command's standard error


def judge(facts: EndingFacts) -> Ending:
    """Return how the lane ended, by precedence: target reached, fatal failure, stop request, exit of the command."""
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
        # No stop request and no end of a command: the preparation took all the time.
        return Ending("yielded", "deadline, before training began", None, facts.errors)
    at = "before it reported a step" if facts.reported_step is None else f"at step {facts.reported_step}"
    stored = "none" if facts.stored_step is None else facts.stored_step
    steps = f"{at} (stored: {stored}, target: {facts.target_step})"
    why = f"the command ended {steps} without having saved" if facts.stop else f"the command ended too early, {steps}"
    return Ending("failed", why, "code", facts.trouble or facts.errors)


def _stalled(facts: EndingFacts) -> Ending | None:
    """Return the end of a command that was stopped by a rule, or that saved nothing in the session."""
    stop = facts.stop
    if stop and stop.error_class:
        if facts.saved_since_stop:
            return Ending("yielded", f"{stop.why}; asked to end, it saved", None, facts.errors)
        return Ending("failed", stop.why, stop.error_class, facts.errors)
    if stop and facts.empty_handed:
        how = "was killed" if facts.killed else f"ended with exit status {facts.exit_code}"
        why = f"{stop.why}: nothing was saved in {facts.empty_handed}; asked to save and end, the command {how}"
        return Ending("failed", why, "no_checkpoint", facts.trouble or facts.errors)
    return None


def _cut_short(facts: EndingFacts, stop: Stop) -> Ending:
    """Return the end of a job without checkpoints that was stopped before it finished."""
    if facts.empty_handed:
        why = f"{stop.why}: it ran {facts.empty_handed} and did not finish; it starts again, and needs a longer `whole`"
        return Ending("failed", why, "no_checkpoint", facts.errors)
    return Ending("yielded", f"{stop.why}: it was not through, and starts from scratch", None, facts.errors)


def _is_failure(facts: EndingFacts) -> bool:
    """Return whether a command that was asked to end lost its training."""
    if facts.saved_since_stop or not facts.began:
        return False
    everything_stored = facts.reported_step is None or (facts.stored_step or 0) >= facts.reported_step
    return facts.killed or facts.exit_code != 0 or not everything_stored


def read_stop(transport: Transport, run: str, lane: int) -> str | None:
    """Return the stop request for this lane, None if there is none. Raises OSError if the store does not answer."""
    key = f"runs/{run}/stop"
    try:
        data = transport.read(key)
    except FileNotFoundError:
        return None
    try:
        flag = json.loads(data)
        meant, why = flag["lane"] in (None, lane), str(flag["reason"])
    except (ValueError, KeyError, TypeError):
        # An unreadable flag counts as a stop: ending loses the rest of a session, going on could exceed a budget.
        return "the flag is unreadable"
    return why if meant else None


# Stall rules, applied by the runner without the daemon. Pure.
class StallLimits(NamedTuple):
    """Limits of the stall rules, in scheduled seconds and counts; None switches a rule off.

    ``first_progress_seconds``: from the start to the first report or checkpoint. ``no_progress_seconds``: from one new
    step to the next. ``checkpoint_seconds``: a command that ran so long had time to save. ``loss_nan``: so many reports
    in a row with a loss that is not finite end the command. ``idle_seconds``: the longest time in which the GPUs are
    less than ``idle_below`` busy, a share.
    """

    first_progress_seconds: float | None = None
    no_progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    loss_nan: int | None = None
    idle_seconds: float | None = None
    idle_below: float = 0.0


class StallWatch:
    """Tracks a command's progress in scheduled seconds; a gap above ``pause_seconds`` was a suspended machine."""

    def __init__(self, limits: StallLimits, pause_seconds: float) -> None:
        self._limits, self._pause = limits, pause_seconds
        self._looked_at = 0.0
        self._began_at: float | None = None
        self._quiet_since = 0.0
        self._furthest = -1
        self._idle_since: float | None = None
        self._saved = False
        self.longest_quiet = 0.0  # durations between new steps

    def begin(self, now: float) -> None:
        """Note that the command has started."""
        self._began_at = self._quiet_since = self._looked_at = now

    def hear(self, meter: LaneMeter, now: float) -> None:
        """Note a progress line of the command; only a new step counts as progress."""
        if meter.step is not None and meter.step > self._furthest:
            if self._furthest >= 0:
                self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
            self._furthest, self._quiet_since = meter.step, now

    def stored(self, now: float) -> None:
        """Note that a checkpoint of the command is in the store."""
        self._saved, self._quiet_since = True, now

    def due_at(self, meter: LaneMeter) -> float:
        """Return when a rule is broken without further progress; infinity if no rule applies."""
        if self._began_at is None:
            return math.inf
        limit, idle = self._limit(meter), self._limits.idle_seconds
        idle_until = math.inf if idle is None or self._idle_since is None else self._idle_since + idle
        return min(idle_until, math.inf if limit is None else self._quiet_since + limit)

    def look(self, meter: LaneMeter, now: float) -> Stop | None:
        """Return why the command must end now, None if it may go on."""
        if self._began_at is None:
            return None
        stood_still = max(0.0, now - self._looked_at - self._pause)
        self._looked_at = now
        self._began_at += stood_still
        self._quiet_since += stood_still
        if idle := self._look_at_gpus(meter, now, stood_still):
            return idle
        if self._limits.loss_nan is not None and meter.losses_lost >= self._limits.loss_nan:
            why = f"the loss is no number since step {meter.lost_since}, {meter.losses_lost} reports in a row"
            return Stop("failed", why, now, "diverged")
        if now < self.due_at(meter):
            return None
        quiet = minutes(now - self._quiet_since)
        if meter.began_at is None:
            return Stop("failed", f"no first progress: nothing was reported or saved in {quiet}", now, "stalled")
        self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
        return Stop("failed", f"no progress: no new step in {quiet}, the newest is {self._furthest}", now, "stalled")

    def _look_at_gpus(self, meter: LaneMeter, now: float, stood_still: float) -> Stop | None:
        """Return why a command that leaves its GPUs idle must end; None where their use is unknown."""
        busy, limit = meter.telemetry["gpu_busy"], self._limits.idle_seconds
        if limit is None or busy is None or busy >= self._limits.idle_below:
            self._idle_since = None
            return None
        self._idle_since = now if self._idle_since is None else self._idle_since + stood_still
        if now < self._idle_since + limit:
            return None
        share, span = 100 * self._limits.idle_below, minutes(now - self._idle_since)
        return Stop("failed", f"its GPUs were less than {share:.3g} % busy for {span}", now, "stalled")

    def empty_handed(self, stop: Stop | None) -> str:
        """Return how long a command ran that had time to save and saved nothing; None for any other."""
        limit = self._limits.checkpoint_seconds
        if limit is None or self._began_at is None or self._saved or stop is None or not stop.at_deadline:
            return ""
        ran = stop.at - self._began_at
        return minutes(ran) if ran >= limit else ""

    def _limit(self, meter: LaneMeter) -> float | None:
        if meter.began_at is None:
            # A command that saves without reporting is judged by its checkpoints at the end of the session.
            return None if self._saved else self._limits.first_progress_seconds
        return self._limits.no_progress_seconds


def minutes(seconds: float) -> str:
    """Return a span as text."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
