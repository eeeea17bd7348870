"""`schedctl queue list`, apart from its group because it must start fast: it imports no typer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import share
from scheduler.core.why import why
from scheduler.store.listing import list_jobs
from scheduler.views.documents import job_state_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.cli.shell.context import Cli
    from scheduler.store.listing import ListedJob

STATES = ("queued", "active", "held", "done", "failed", "cancelled")


def list_queue(cli: Cli, states: Sequence[str]) -> None:
    """Write all jobs, or those in the named states, in queue order."""
    unknown = [state for state in states if state not in STATES]
    if unknown:
        raise UsageFault(f"no jobs are {unknown[0]}", "there is no such state", f"Use one of {', '.join(STATES)}")
    found = list_jobs(cli.paths.database_url, states or None)
    if cli.options.json:
        cli.out.data({"jobs": [listed_json(job) for job in found]})
        return
    cli.out.table(
        (">#", "job", "role", "state", ">step", ">of", ">done", ">weight", "pool", "~why"),
        [_row(job, cli.out.zone) for job in found],
    )
    if not found and not states:
        cli.out.say("The queue is empty. Add jobs with: schedctl queue add --models")


def listed_json(job: ListedJob) -> dict[str, Any]:
    """Return a job as it stands in ``queue list --json``."""
    return {
        "name": job.name,
        "role": job.role,
        "position": job.position,
        **job_state_json(job.state),
        "weight": job.weight,
        "target_step": job.target_step,
        "done_step": job.done_step,
        "attempts": job.attempts,
        "failures": job.failures,
        "last_pool": job.last_pool,
        "not_before": job.not_before,
        "deadline": job.deadline,
        "created_at": job.created_at,
        "waits": dict(job.waits) if job.waits else None,
    }


def _row(job: ListedJob, zone: str) -> tuple[str, ...]:
    return (
        str(job.position),
        job.name,
        job.role,
        type(job.state).__name__.lower(),
        str(job.done_step),
        str(job.target_step),
        share(job.done_step, job.target_step),
        f"{job.weight:g}",
        job.last_pool or "",
        why(job.state, job.waits, zone),
    )
