"""The week as tables for people."""

from __future__ import annotations

from pathlib import Path

from jobs.plural import counted
from scheduler.cli.shell.output import Output
from scheduler.report.week import JobFigures, PoolFigures, Week


def show_week(out: Output, week: Week, folder: Path) -> None:
    """Write pools, jobs, goodput, broken rules and what did not go; all hours are metered hours."""
    out.table(
        ("pool", "-->available h", ">billed h", ">productive h", "->goodput", "-->fullest window", ">cost"),
        [_pool_row(pool) for pool in week.pools],
    )
    out.line()
    out.table(
        (
            *("job", "state", ">step", "->target", "-->runs", "-->resumed", "--->on another pool", "-->saved"),
            *("--initialised from", "held-out loss", "-~pools"),
        ),
        [_job_row(job) for job in week.jobs],
    )
    out.line()
    out.line(
        f"goodput: {week.goodput:.1%} of {_hours(week.charged_seconds)} billed hours were productive; "
        f"{counted(week.shared_runs, 'session')} trained two jobs at once"
    )
    if week.violations:
        out.line(f"{len(week.violations)} rules were broken:")
        for violation in week.violations:
            out.line(f"  {violation}")
    else:
        out.line("no quota exceeded, no checkpoint went backwards")
    for pool in week.pools:
        told = pool.launches
        if told.why_idle:
            out.line(f"{pool.name} did nothing: {told.why_idle}")
        elif told.refused:
            out.line(f"{pool.name} refused {told.refused} of {told.launches} launches, the last: {told.last_refusal}")
    for job in week.jobs:
        if job.why:
            out.line(f"{job.name} is {job.state}: {job.why}")
    out.line(f"figures: {folder / 'week.json'}")
    out.line(f"picture: {folder / 'week.svg'}")


def _pool_row(pool: PoolFigures) -> tuple[str, ...]:
    fullest = max(pool.windows, key=lambda window: window.charged_seconds, default=None)
    return (
        pool.name,
        _hours(pool.quota_seconds),
        _hours(pool.charged_seconds),
        _hours(pool.useful_seconds),
        f"{pool.useful_seconds / pool.charged_seconds:.1%}" if pool.charged_seconds else "-",
        f"{_hours(fullest.charged_seconds)} of {_hours(fullest.limit_seconds)}" if fullest else "-",
        f"${pool.cost_microdollars / 1_000_000:.2f}" if pool.cost_microdollars else "-",
    )


def _job_row(job: JobFigures) -> tuple[str, ...]:
    known = job.loss_first is not None and job.loss_last is not None
    return (
        job.name,
        job.state,
        f"{job.step:,}",
        f"{job.target_step:,}",
        str(job.runs),
        str(job.resumes),
        str(job.resumed_elsewhere),
        str(job.checkpoints),
        _begin(job),
        f"{job.loss_first:.3f} to {job.loss_last:.3f}" if known else "-",
        ", ".join(job.pools),
    )


def _begin(job: JobFigures) -> str:
    if job.starts_from is None:
        return "-"
    return job.starts_from if job.loss_parent is None else f"{job.starts_from} ({job.loss_parent:.3f})"


def _hours(seconds: int) -> str:
    return f"{seconds / 3_600:.1f}"
