"""Why: the reason for a job's state in one sentence, for the command line and the status page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, assert_never

from scheduler.core.job import Active, Cancelled, Done, Failed, Held, JobState, Queued

if TYPE_CHECKING:
    from scheduler.core.run import Wait


NOT_RELEASED = "not_released"  # the code of NotReleased; to import its module adds a tenth to the start of a listing


def why(state: JobState, waits: Mapping[str, Any] | None, zone: str, now: int) -> str:
    """Return the reason for a job's state in one sentence; ``waits`` is a stored reason, which may be out of date."""
    match state:
        case Queued():
            return _now(waits, now) or sentence(waits, zone) if waits else ""
        case Active(run=run, wish=None):
            return f"runs as {run}"
        case Active(run=run, wish="finish", why=reason):
            return f"runs as {run}, saves and ends early: {reason}"
        case Active(run=run, wish=wish):
            return f"runs as {run}, {wish} requested"
        case Held(by=by, why=reason):
            return f"by {by}: {reason}" if reason else f"by {by}"
        case Failed(why=reason, message=message):
            return f"{reason}: {message}" if message else reason
        case Cancelled(by=by):
            return f"by {by}"
        case Done(why=reason):
            return f"stopped early: {reason}" if reason else ""
        case _:
            assert_never(state)


def _now(waits: Mapping[str, Any], now: int) -> str:
    """Return the sentence for a stored reason whose instant has passed; empty for any other reason."""
    until = waits.get("until")
    if waits.get("code") != NOT_RELEASED or not isinstance(until, int) or until > now:
        return ""
    return f"{waits.get('why', '')}; due now"


def in_queue(pool: str, run: str, wait: Wait, zone: str) -> str:
    """Return the sentence for a session in its platform's queue: since when, why, and until when it waits."""
    from scheduler.core.reasons import show

    since = f" since {show(wait.since, zone)}" if wait.since is not None else ""
    place = f"; number {wait.place} there" if wait.place is not None else ""
    until = f", expected to start {show(wait.starts_at, zone)}" if wait.starts_at is not None else ""
    return f"{run} waits in the queue of {pool}{since}: {wait.why}{place}{until}"


def sentence(stored: Mapping[str, Any], zone: str) -> str:
    """Return a stored reason as a sentence, with instants in ``zone``.

    A reason that this version does not know keeps its stored sentence, which is in UTC.
    """
    if zone == "UTC" and isinstance(written := stored.get("sentence"), str):
        return written
    from scheduler.core.reasons import from_json

    try:
        return from_json(dict(stored)).sentence(zone)
    except (KeyError, TypeError):
        return str(stored.get("sentence", stored.get("code", "")))
