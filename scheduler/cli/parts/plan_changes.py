"""What one plan changes of another, for people and as JSON: shared by `plan diff` and `plan what-if`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scheduler.cli.shell.output import Output, hours
from scheduler.planner import PlanDifference
from scheduler.planner.questions.differ import JobChange, JobOutlook

_NEVER = "not planned"


def difference_json(difference: PlanDifference) -> dict[str, Any]:
    """Return jobs and pools whose plan differs, and the value of both plans."""
    return asdict(difference)


def show_changes(out: Output, difference: PlanDifference) -> None:
    """Write the jobs and the pools whose plan differs, before and after, and in a line what it comes to."""
    if difference.jobs:
        out.line(f"{_summary(difference.jobs)}.")
        out.line()
        out.table(
            ("job", "--~starts", "~finishes", ">finish moves", "-~hours", "-deadline"),
            [_job_row(out, change) for change in difference.jobs],
        )
    if difference.pools:
        out.line()
        out.table(
            ("pool", ">hours before", ">after", ">difference"),
            [
                (
                    change.pool,
                    hours(change.seconds_before),
                    hours(change.seconds_after),
                    signed(change.seconds_after - change.seconds_before),
                )
                for change in difference.pools
            ],
        )


def _summary(changes: Sequence[JobChange]) -> str:
    """Count who finishes when, and the deadlines, of the jobs that differ."""
    pairs = [(_finished(change.before), _finished(change.after)) for change in changes]
    both = [(before, after) for before, after in pairs if before is not None and after is not None]
    counts = {
        "finish earlier": sum(after < before for before, after in both),
        "finish later": sum(after > before for before, after in both),
        "finish only now": sum(before is None and after is not None for before, after in pairs),
        "no longer finish": sum(before is not None and after is None for before, after in pairs),
    }
    words = [f"{count} {what}" for what, count in counts.items() if count]
    met = [
        (bool(change.before and change.before.on_time), bool(change.after and change.after.on_time))
        for change in changes
    ]
    won, lost = sum(after > before for before, after in met), sum(after < before for before, after in met)
    words += [
        f"{count} {'deadline' if count == 1 else 'deadlines'} {what}"
        for what, count in (("won", won), ("lost", lost))
        if count
    ]
    jobs = f"{len(changes)} {'job differs' if len(changes) == 1 else 'jobs differ'}"
    return f"{jobs}: {', '.join(words)}" if words else f"{jobs}, none finishes at another time"


def _finished(outlook: JobOutlook | None) -> int | None:
    return outlook.finish if outlook is not None else None


def signed(seconds: int) -> str:
    """Return a difference in hours, with its sign: ``+1h 30m``."""
    return ("+" if seconds > 0 else "") + hours(seconds)


def _job_row(out: Output, change: JobChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    moves = ""
    if before and after and before.finish is not None and after.finish is not None and before.finish != after.finish:
        moves = signed(after.finish - before.finish)
    return (
        change.job,
        _arrow(out.moment(before.start) if before else "", out.moment(after.start) if after else ""),
        _arrow(_finish(out, before), _finish(out, after)),
        moves,
        _arrow(hours(before.session_seconds if before else 0), hours(after.session_seconds if after else 0)),
        _arrow(_deadline(before), _deadline(after)),
    )


def _arrow(before: str, after: str) -> str:
    return after if before == after else f"{before or _NEVER} -> {after or _NEVER}"


def _finish(out: Output, outlook: JobOutlook | None) -> str:
    if outlook is None:
        return ""
    return "after the horizon" if outlook.finish is None else out.moment(outlook.finish)


def _deadline(outlook: JobOutlook | None) -> str:
    if outlook is None or outlook.on_time is None:
        return ""
    return "met" if outlook.on_time else "missed"
