"""Blame: whose fault a failed session was, and whether it will only happen again. Pure.

What a platform, a network or the artifact store did to a session says nothing about its job. A job that burnt its
session's hours twice with no progress between, whatever else came between, or ended in the very same error twice in a
row, will do so a third time: a person must look first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.core.reconcile import LaneEnd
from scheduler.core.run import PARENT, WRONG_DEVICE, Lane, Outcome

BURNT = {
    "stalled": "let the command report its steps, look at what it waits for, or set stall.first_progress or "
    "stall.no_progress of the job to what it needs",
    "no_checkpoint": "let the command save on SIGTERM, set the job's setup to what it needs before its first step, "
    'or stall.checkpoint to "off"; a job that is run whole needs a longer `whole`',
    "diverged": 'mend the recipe (rate, precision, data), or set stall.loss_nan to "off"',
}
"""What ended a session that burnt hours for nothing, by error class, with the remedy."""

_NOT_THE_JOBS = frozenset({"device", WRONG_DEVICE, "store", "network", PARENT})
_SAID_MAX = 200  # characters of an error's last line
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


def is_the_jobs(outcome: Outcome | None, error_class: str | None) -> bool:
    """Tell whether a failed session was its job's own doing, as far as anybody can tell."""
    return outcome is Outcome.FAILED and error_class not in _NOT_THE_JOBS


def fingerprint(error_class: str | None, message: str) -> tuple[str, str]:
    """Return what makes two errors the same: their class and last line, whatever its numbers and addresses are."""
    lines = [line for part in message.lower().splitlines() if (line := " ".join(part.split()))]
    return error_class or "", _DIGITS.sub("#", lines[-1]) if lines else ""


def last_line(message: str) -> str:
    """Return the last line of an error, which names it, short enough for a table."""
    return " ".join((message.strip().splitlines() or [""])[-1].split())[-_SAID_MAX:]


def again(end: LaneEnd, failures: int, earlier: Sequence[Lane], same_error: int) -> str:
    """Return why a job must wait for a person after this end, with what to do; nothing when it need not.

    ``failures`` counts the failed sessions since the job last made progress or was released, this one included;
    ``earlier`` are its ends before this one, newest first; ``same_error`` sessions in a row may not end in the same
    error, zero: any number may.
    """
    if not is_the_jobs(end.outcome, end.error_class):
        return ""
    alike = 1
    for lane in earlier:
        if lane.error_class == WRONG_DEVICE:
            continue  # its pool's, and never counted
        failures -= lane.outcome in {Outcome.FAILED, Outcome.LOST}
        if failures < 1:
            break
        if not is_the_jobs(lane.outcome, lane.error_class):
            if lane.outcome is Outcome.FINISHED:
                break
            continue  # one that was refused, taken away or told to leave shows by itself neither health nor fault
        if _alike(end, lane):
            alike += 1
        elif end.error_class not in BURNT:
            break
    said = last_line(end.message)
    if end.error_class in BURNT:
        if alike < 2:
            return ""
        remedy = BURNT[end.error_class]
        return f"{alike} sessions burnt hours for nothing with no progress between, the last so: {said}. {remedy}"
    if not same_error or alike < same_error:
        return ""
    return f"{alike} sessions in a row ended in the same error ({end.error_class}), with no progress between: {said}"


def _alike(end: LaneEnd, lane: Lane) -> bool:
    if end.error_class in BURNT:
        return lane.error_class in BURNT
    return fingerprint(end.error_class, end.message) == fingerprint(lane.error_class, lane.message)
