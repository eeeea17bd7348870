"""How a lane ended, and why: the outcomes the daemon decides by, and the flag with which it asks for an end."""

from __future__ import annotations

import json
from typing import Literal, NamedTuple

from ..store.transport import Transport
from .failure import ErrorClass, Failure, classify

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
