"""The headline of a report: on track or not, what was spent, and the actions required. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from jobs.plural import counted
from jobs.spec import EVALUATE
from scheduler.report.report import JobReport, Report

_OPEN = {"queued", "active"}


def hours(seconds: int) -> str:
    """Return seconds as decimal hours."""
    return f"{seconds / 3_600:.1f}"


def money(microdollars: int) -> str:
    """Return micro-dollars as dollars."""
    return f"${microdollars / 1_000_000:.2f}"


def subject(report: Report) -> str:
    """Return the subject of the message: ``Training W48: 4 done, 2 on track, 1 action``."""
    counts = _counts(report)
    parts = [f"{count} {word}" for word, count in counts.items() if count]
    actions = [counted(len(report.needs), "action")] if report.needs else []
    week = report.label.rpartition("-")[2] or report.label
    return f"Training {week}: {', '.join([*parts, *actions]) or 'no jobs'}"


def headline(report: Report) -> Iterator[str]:
    """Yield the sentences that a reader looks for first."""
    counts = _counts(report)
    troubles = [f"{counts[word]} {word}" for word in ("at risk", "failed", "on hold") if counts[word]]
    if counts:
        total = sum(counts.values())
        verdict = f"Not on track: {', '.join(troubles)}" if troubles else "On track"
        on_track = f", {counts['on track']} on track" if counts["on track"] else ""
        yield f"{verdict}. {counts['done']} of {counted(total, 'job')} done{on_track}."
    total_spent, before = report.total, report.total_before
    yield (
        f"Spent {hours(total_spent.charged)} of {hours(total_spent.offered)} h available and "
        f"{money(total_spent.cost_microdollars)} (last week {hours(before.charged)} h and "
        f"{money(before.cost_microdollars)})."
    )
    yield f"{counted(len(report.needs), 'action')} required." if report.needs else "No action is required."


def _counts(report: Report) -> Counter[str]:
    """Return how many jobs are done, on track, at risk, failed and on hold."""
    found = Counter(word for job in report.jobs if job.role != EVALUATE and (word := _word(job)))
    return Counter({word: found[word] for word in ("done", "on track", "at risk", "failed", "on hold") if found[word]})


def _word(job: JobReport) -> str:
    if job.at_risk:
        return "at risk"
    return {"done": "done", "failed": "failed", "held": "on hold"}.get(
        job.state, "on track" if job.state in _OPEN else ""
    )
