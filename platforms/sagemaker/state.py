"""What a description of a training job means for the scheduler. Pure.

``Stopped`` is no success: it is what every stop, time limit and lost spot instance ends in. What a session achieved
is told by its lanes' results in the artifact store, never from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from platforms.base import InQueue, Observed, SessionState

_GOING = frozenset({"InProgress", "Stopping"})
TERMINAL = frozenset({"Completed", "Failed", "Stopped", "Deleting"})  # only what is over can be deleted
NO_MACHINE = "CapacityError"  # the class of a failure that nobody's code had a part in
_INTERRUPTED = frozenset({"Interrupted", "Restarting"})
_AWS_FAILED = frozenset({NO_MACHINE, "InternalServerError"})
# How long after its end a job's bill may take to appear.
_BILL_SECONDS = 600
_REASON_CHARACTERS, _WORD_CHARACTERS = 500, 40
_SECONDS_MAX = 366 * 86_400  # no job of AWS's lasts so long
_NEEDED = {"TrainingJobArn": str, "TrainingJobStatus": str, "CreationTime": datetime}
_OPTIONAL: Mapping[str, type] = {
    "TrainingStartTime": datetime,
    "TrainingEndTime": datetime,
    "LastModifiedTime": datetime,
    "BillableTimeInSeconds": int,
    "SecondaryStatus": str,
    "FailureReason": str,
    "SecondaryStatusTransitions": list,
    "StoppingCondition": dict,
    "Environment": dict,
}
_RUNTIME_SECONDS = 86_400  # AWS's own limit, where none is set


def lacking(description: Mapping[str, Any], key: str) -> str:
    """Return what a description lacks to be an answer about ``key``, nothing when it is one.

    What the client makes of JSON has the fields that came, of whatever type they were.
    """
    if description.get("TrainingJobName") != key:
        return f"it is not about {key}"
    for name, kind in _NEEDED.items():
        if not isinstance(description.get(name), kind):
            return f"{name} is missing or of another type"
    for name, kind in _OPTIONAL.items():
        if not isinstance(description.get(name), kind | None) or isinstance(description.get(name), bool):
            return f"{name} is of another type"
    if not all(isinstance(step, dict) for step in description.get("SecondaryStatusTransitions") or ()):
        return "SecondaryStatusTransitions is of another type"
    if not isinstance((description.get("StoppingCondition") or {}).get("MaxRuntimeInSeconds"), int | None):
        return "StoppingCondition is of another type"
    if not 0 <= (description.get("BillableTimeInSeconds") or 0) <= _SECONDS_MAX:
        return "BillableTimeInSeconds cannot be"
    ran = description["TrainingJobStatus"] == "Completed" or description.get("BillableTimeInSeconds")
    if ran and description.get("TrainingStartTime") is None:
        return "it ran, and when it started is missing"
    return ""


def observed(description: Mapping[str, Any], now: int) -> Observed:
    """Return a training job as the port wants it; UNCLEAR when AWS has a status for it that is not known here.

    ``started`` .. ``ended`` spans exactly the seconds that AWS bills. A job that is over but has no bill yet counts
    as running, for at most ten minutes; then the span from its start to its end stands in for the bill.
    """
    key, arn = str(description["TrainingJobName"]), str(description["TrainingJobArn"])
    status = str(description["TrainingJobStatus"])
    started = _seconds(description.get("TrainingStartTime"))
    if status not in TERMINAL | _GOING:
        return Observed(key, SessionState.UNCLEAR, arn, detail=f"its status {status[:_WORD_CHARACTERS]!r} is not known")
    if status not in TERMINAL:
        # Transitions and times of a spot job that waits again stay as they were: its meter has run already.
        state = SessionState.QUEUED if started is None else SessionState.RUNNING
        waits = InQueue(_waiting(description)) if started is None else None
        return Observed(key, state, arn, started, detail=status, waits=waits)
    if started is None:
        return Observed(key, SessionState.ABSENT, arn, detail=f"never started: {_why(description)}")
    billed, end = description.get("BillableTimeInSeconds"), description.get("TrainingEndTime")
    if billed is None:
        if end is None or now < end.timestamp() + _BILL_SECONDS:
            return Observed(key, SessionState.RUNNING, arn, started, detail=f"{status}, not billed yet")
        billed = round((end - description["TrainingStartTime"]).total_seconds())
    if not billed and failure(description)[0] == NO_MACHINE:
        return Observed(key, SessionState.ABSENT, arn, detail=f"never started: {_why(description)}")
    why, taken = _why(description), _was_taken(description)
    return Observed(key, SessionState.ENDED, arn, started, started + int(billed), why, taken=taken)


def ends_by(description: Mapping[str, Any]) -> int:
    """Return when AWS ends a job at the latest, if it began to run when it was made."""
    runtime = description.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", _RUNTIME_SECONDS)
    return int(description["CreationTime"].timestamp()) + int(runtime)


def lost_its_instance(description: Mapping[str, Any]) -> bool:
    """Tell whether a job that is not over lost its instance, also when it has another by now."""
    return description["TrainingJobStatus"] == "InProgress" and _was_interrupted(description)


def failure(description: Mapping[str, Any]) -> tuple[str, str]:
    """Return the class that AWS puts before a failure's reason, such as ``CapacityError``, and the whole reason."""
    reason = str(description.get("FailureReason") or "")
    kind, colon, _ = reason.partition(":")
    return (kind if colon else "", reason[:_REASON_CHARACTERS])


def _was_interrupted(description: Mapping[str, Any]) -> bool:
    stages = {step.get("Status") for step in description.get("SecondaryStatusTransitions") or ()}
    return not {*stages, description.get("SecondaryStatus")}.isdisjoint(_INTERRUPTED)


def _was_taken(description: Mapping[str, Any]) -> bool:
    """Tell whether AWS took a job's machine away, or failed itself."""
    return _was_interrupted(description) or failure(description)[0] in _AWS_FAILED


def _waiting(description: Mapping[str, Any]) -> str:
    """Return at which stage a job without a machine is, with AWS's own words about that."""
    stage = str(description.get("SecondaryStatus") or description["TrainingJobStatus"])
    last: Mapping[str, Any] = (description.get("SecondaryStatusTransitions") or [{}])[-1]
    message = str(last.get("StatusMessage") or "") if last.get("Status") == stage else ""
    return (f"{stage}: {message}" if message else stage)[:_REASON_CHARACTERS]


def _why(description: Mapping[str, Any]) -> str:
    status, secondary = str(description["TrainingJobStatus"]), str(description.get("SecondaryStatus") or "")
    words = status if secondary in {"", status} else f"{status}, {secondary}"
    reason = str(description.get("FailureReason") or "")[:_REASON_CHARACTERS]
    return f"{words}: {reason}" if reason else words


def _seconds(instant: datetime | None) -> int | None:
    return None if instant is None else int(instant.timestamp())
