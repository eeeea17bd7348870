"""Blame: whether the job caused a failed session, and whether the failure will repeat. Pure.

Failures of a platform, a network or the artifact store are not the job's. A job that made no progress in two sessions,
or ended in the same error several times in a row, would fail again; it is put on hold until a person releases it.
"""

import hashlib
import re
from collections.abc import Sequence

from scheduler.core.reconcile import LaneEnd
from scheduler.core.run import PARENT, WRONG_DEVICE, Lane, Outcome

STALLED_CLASSES = {
    "stalled": "let the command report its steps, look at what it waits for, or set stall.first_progress, "
    "stall.no_progress or stall.idle of the job to what it needs",
    "no_checkpoint": "let the command save on SIGTERM, set the job's setup to what it needs before its first step, "
    'or stall.checkpoint to "off"; a single-session job needs a longer `whole`',
    "diverged": 'correct the recipe (rate, precision, data), or set stall.loss_nan to "off"',
}
"""The error classes of sessions without progress, with the remedy."""

_NOT_THE_JOBS = frozenset({"device", WRONG_DEVICE, "store", "network", PARENT})
_LAST_LINE_MAX = 200  # characters
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


def is_the_jobs(outcome: Outcome | None, error_class: str | None) -> bool:
    """Return whether the job caused the failure of its session, as far as is known."""
    return outcome is Outcome.FAILED and error_class not in _NOT_THE_JOBS


def fingerprint(error_class: str | None, message: str) -> tuple[str, str]:
    """Return the key that is equal for equal errors: class and last line, without numbers and addresses."""
    lines = [line for part in message.lower().splitlines() if (line := " ".join(part.split()))]
    return error_class or "", _DIGITS.sub("#", lines[-1]) if lines else ""


def last_line(message: str) -> str:
    """Return the last line of an error, at most 200 characters."""
    return " ".join((message.strip().splitlines() or [""])[-1].split())[-_LAST_LINE_MAX:]


def hold_reason(end: LaneEnd, failures: int, earlier: Sequence[Lane], same_error: int) -> str:
    """Return why a job is put on hold after this end, with the remedy; empty if it is not.

    ``failures`` counts the failed sessions since the job last made progress or was released, this one included.
    ``earlier`` are the job's earlier lanes, newest first. ``same_error`` is the number of equal errors in a row that
    causes a hold; with zero, equal errors never do.
    """
    if not is_the_jobs(end.outcome, end.error_class):
        return ""
    stalled, in_a_row = end.error_class in STALLED_CLASSES, 1
    error_key = fingerprint(end.error_class, end.message)
    for lane in earlier:
        if lane.error_class == WRONG_DEVICE:
            continue  # a failure of the pool, which does not count
        failures -= lane.outcome in {Outcome.FAILED, Outcome.LOST}
        if failures < 1:
            break
        if not is_the_jobs(lane.outcome, lane.error_class):
            if lane.outcome is Outcome.FINISHED:
                break
            continue  # a refused, preempted or stopped session shows neither success nor failure
        lane_key = fingerprint(lane.error_class, lane.message)
        if lane.error_class in STALLED_CLASSES if stalled else lane_key == error_key:
            in_a_row += 1
        elif not stalled:
            break
    error = last_line(end.message)
    if end.error_class in STALLED_CLASSES:
        if in_a_row < 2:
            return ""
        remedy = STALLED_CLASSES[end.error_class]
        return f"{in_a_row} sessions in a row made no progress; the last error: {error}. {remedy}"
    if not same_error or in_a_row < same_error:
        return ""
    return f"{in_a_row} sessions in a row ended in the same error ({end.error_class}), without progress: {error}"


# Delays after failures: exponential with a cap. Delays of jobs have jitter, so that not all retry at once.
def retry_delay(name: str, failures: int, base_seconds: int, cap_seconds: int) -> int:
    """Return the seconds to wait after ``failures`` consecutive failures (at least one).

    The delay is between 75 % and 125 % of ``base * 2 ** (failures - 1)``, capped; equal input gives equal output.
    """
    if failures < 1:
        raise ValueError(f"a delay needs at least one failure, not {failures}")
    delay: int = min(cap_seconds, base_seconds * 2 ** min(failures - 1, 30))
    spread = hashlib.sha256(f"{name}:{failures}".encode()).digest()[0] / 255
    return max(1, round(delay * (0.75 + 0.5 * spread)))


def rest_seconds(before: tuple[int, int] | None, now: int, first_seconds: int, cap_seconds: int) -> int:
    """Return the seconds for which a pool is not used after a failure at ``now``.

    ``before`` is (instant, delay) of the same failure's last occurrence. A failure during that delay repeats the delay.
    A failure within twice the delay after its end doubles it, up to the cap. Otherwise it is ``first_seconds``.
    """
    if before is None:
        return first_seconds
    last_at, last_delay = before
    if now < last_at + last_delay:
        return last_delay
    if now <= last_at + 3 * last_delay:
        return min(cap_seconds, 2 * last_delay)
    return first_seconds
