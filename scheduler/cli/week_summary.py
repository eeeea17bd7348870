"""The week as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.report.week import Week


def print_summary(week: Week, out: Path) -> None:
    """Print pools, jobs, goodput and broken rules to standard output."""
    console = Console(highlight=False)
    pools = Table(title="Pools, in hours", title_justify="left")
    for name in ("pool", "offered", "charged", "useful", "useful / charged", "fullest window"):
        pools.add_column(name, justify="left" if name == "pool" else "right")
    for pool in week.pools:
        fullest = max(
            ((w.charged_seconds, w.limit_seconds) for w in pool.windows), key=lambda pair: pair[0], default=None
        )
        pools.add_row(
            pool.name,
            _hours(pool.quota_seconds),
            _hours(pool.charged_seconds),
            _hours(pool.useful_seconds),
            f"{pool.useful_seconds / pool.charged_seconds:.1%}" if pool.charged_seconds else "-",
            f"{_hours(fullest[0])} of {_hours(fullest[1])}" if fullest else "-",
        )
    console.print(pools)
    jobs = Table(title="Jobs", title_justify="left")
    for name in ("job", "state", "step", "runs", "resumed (elsewhere)", "checkpoints", "held-out loss", "pools"):
        jobs.add_column(name, justify="right" if name in {"step", "runs", "checkpoints"} else "left")
    for job in week.jobs:
        loss = "-" if job.loss_first is None or job.loss_last is None else f"{job.loss_first:.3f} > {job.loss_last:.3f}"
        jobs.add_row(
            job.name,
            job.state,
            f"{job.step:,} / {job.target_step:,}",
            str(job.runs),
            f"{job.resumes} ({job.resumed_elsewhere})",
            str(job.checkpoints),
            loss,
            ", ".join(job.pools),
        )
    console.print(jobs)
    console.print(
        f"goodput: {week.goodput:.1%} of {_hours(week.charged_seconds)} charged hours became kept training; "
        f"{week.shared_runs} sessions trained two jobs side by side"
    )
    if week.violations:
        console.print(f"[bold red]{len(week.violations)} rules were broken:[/]")
        for violation in week.violations:
            console.print(f"  {violation}", markup=False)
    else:
        console.print("no quota exceeded, no checkpoint went backwards")
    console.print(f"details: {out / 'week.json'}, picture: {out / 'week.svg'}", soft_wrap=True)


def _hours(seconds: int) -> str:
    return f"{seconds / 3_600:.1f}"
