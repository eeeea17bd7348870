"""How a lane ended, and why: the outcomes the daemon decides by, and the flag with which it asks for an end."""

from __future__ import annotations

import json
import math
from typing import Literal, NamedTuple

from ..store.transport import Transport
from .failure import ErrorClass, Failure, classify
from .meter import LaneMeter

FORMAT = 1  # of heartbeats and results
Phase = Literal["starting", "restoring", "training", "saving", "stopping", "ended"]

DEADLINE = "deadline"  # why a session ends when nothing else ends it
Outcome = Literal["finished", "yielded", "preempted", "failed"]


class Stop(NamedTuple):
    """Why and when (scheduled seconds) the command was asked to end; ``outcome`` is what follows if it does.

    ``error_class`` names the rule that the command broke, if it was stopped for that; ``at_deadline`` tells that the
    session's time was over.
    """

    outcome: Outcome
    why: str
    at: float
    error_class: ErrorClass | None = None
    at_deadline: bool = False


class Ending(NamedTuple):
    """How a lane ended. ``message`` is for people: the last lines of the command, or what went wrong."""

    outcome: Outcome
    why: str
    error_class: ErrorClass | None = None
    message: str = ""


class EndingFacts(NamedTuple):
    """What is known at the end. Steps are None where there is none; ``exit_code`` where no command ended."""

    target_step: int
    reported_step: int | None
    stored_step: int | None
    whole: bool  # there is but one step, and nothing before its end is worth anything
    saved_since_stop: bool
    unstored: bool  # a checkpoint was made, or tried, that is not in the store
    diverged: str  # why it cannot go on, or what it made last is not kept: its loss is no number
    empty_handed: str  # it had time to save and saved nothing; how long
    began: bool  # the command reported
    killed: bool  # by us, when its grace was over
    exit_code: int | None
    stop: Stop | None
    failure: Failure | None
    trouble: str
    errors: str  # the end of the command's standard error


def judge(facts: EndingFacts) -> Ending:
    """Judge: the target first, then what kept us from going on, then who asked for the end, then the command."""
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
        # Nobody asked for the end and no command came to one: what came before it took all the time there was.
        return Ending("yielded", "deadline, before training began", None, facts.errors)
    steps = f"at step {facts.reported_step} (stored: {facts.stored_step}, target: {facts.target_step})"
    why = f"the command ended {steps} without having saved" if facts.stop else f"the command ended too early, {steps}"
    return Ending("failed", why, "code", facts.trouble or facts.errors)


def _stalled(facts: EndingFacts) -> Ending | None:
    """Return how a command ended that was stopped for a rule, or left the session with nothing."""
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
    """Return how a whole job ended that had to leave before it was through."""
    if facts.empty_handed:
        why = f"{stop.why}: it ran {facts.empty_handed} and did not finish; it starts again, and needs a longer `whole`"
        return Ending("failed", why, "no_checkpoint", facts.errors)
    return Ending("yielded", f"{stop.why}: it was not through, and starts from scratch", None, facts.errors)


def _is_failure(facts: EndingFacts) -> bool:
    """Whether a command that was asked to end lost what it had trained."""
    if facts.saved_since_stop or not facts.began:
        return False
    everything_stored = facts.reported_step is None or (facts.stored_step or 0) >= facts.reported_step
    return facts.killed or facts.exit_code != 0 or not everything_stored


def read_stop(transport: Transport, run: str, lane: int) -> str | None:
    """Return why this lane shall end, or None when it shall not. Raises OSError when the store does not tell."""
    key = f"runs/{run}/stop"
    try:
        data = transport.read(key)
    except FileNotFoundError:
        return None
    try:
        flag = json.loads(data)
        meant, why = flag["lane"] in (None, lane), str(flag["reason"])
    except (ValueError, KeyError, TypeError):
        # Whoever wrote it wanted an end; ending costs a session's rest, going on may cost its budget.
        return "the flag is unreadable"
    return why if meant else None


# When a command makes no progress: the rules that hold without the daemon (pure).
class StallLimits(NamedTuple):
    """What a command is given, in scheduled seconds and counts; None switches a rule off.

    ``first_progress_seconds`` from its start to its first report or checkpoint; ``no_progress_seconds`` from one new
    step to the next, once it reports; a command that ran ``checkpoint_seconds`` until the session's end had time to
    save; the ``loss_nan``-th report in a row whose loss is no finite number is the last.
    """

    first_progress_seconds: float | None = None
    no_progress_seconds: float | None = None
    checkpoint_seconds: float | None = None
    loss_nan: int | None = None


class StallWatch:
    """Knows since when nothing came of a command. All instants and spans are scheduled seconds.

    Looks that lie more than ``pause_seconds`` apart mean that the machine stood still. That is not the command's fault
    and does not count.
    """

    def __init__(self, limits: StallLimits, pause_seconds: float) -> None:
        self._limits, self._pause = limits, pause_seconds
        self._looked_at = 0.0
        self._began_at: float | None = None
        self._quiet_since = 0.0
        self._furthest = -1
        self._saved = False
        self.longest_quiet = 0.0  # from one new step to the next

    def begin(self, now: float) -> None:
        """Note that the command has started."""
        self._began_at = self._quiet_since = self._looked_at = now

    def hear(self, meter: LaneMeter, now: float) -> None:
        """Note a line of the command; only a step that is new is progress."""
        if meter.step is not None and meter.step > self._furthest:
            if self._furthest >= 0:
                self.longest_quiet = max(self.longest_quiet, now - self._quiet_since)
            self._furthest, self._quiet_since = meter.step, now

    def stored(self, now: float) -> None:
        """Note that a checkpoint of the command is in the store."""
        self._saved, self._quiet_since = True, now

    def due_at(self, meter: LaneMeter) -> float:
        """Return when a rule will be broken if nothing comes until then; infinity when none can be."""
        limit = self._limit(meter)
        return math.inf if limit is None or self._began_at is None else self._quiet_since + limit

    def look(self, meter: LaneMeter, now: float) -> Stop | None:
        """Return why the command must end now, if it must."""
        if self._began_at is None:
            return None
        stood_still = max(0.0, now - self._looked_at - self._pause)
        self._looked_at = now
        self._began_at += stood_still
        self._quiet_since += stood_still
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

    def empty_handed(self, stop: Stop | None) -> str:
        """Return how long a command ran that had time to save until its session's end and saved nothing."""
        limit = self._limits.checkpoint_seconds
        if limit is None or self._began_at is None or self._saved or stop is None or not stop.at_deadline:
            return ""
        ran = stop.at - self._began_at
        return minutes(ran) if ran >= limit else ""

    def _limit(self, meter: LaneMeter) -> float | None:
        if meter.began_at is None:
            # A command that saves without a word is judged by what it saves, at the session's end.
            return None if self._saved else self._limits.first_progress_seconds
        return self._limits.no_progress_seconds


def minutes(seconds: float) -> str:
    """Return a span in words for people."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
