"""The listing of `schedctl queue list`. The module does not import the command parser, to start fast."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import share
from scheduler.core.job import Active, Queued
from scheduler.core.why import NOT_RELEASED, in_queue, why
from scheduler.store.listing import ListedJob, list_jobs
from scheduler.views.documents import job_state_json, picked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from scheduler.cli.shell.context import Cli

_SWEEP_MIN = 2  # a sweep with one job is shown as a job
_SYNONYMS = {"running": "active", "waiting": "queued", "pending": "queued", "paused": "held", "completed": "done"}
STATES = ("queued", "active", "held", "done", "failed", "cancelled")


def list_queue(cli: Cli, states: Sequence[str], *, each: bool = False) -> None:
    """Write the jobs in queue order, all or those in ``states``; a sweep is one line unless ``each``."""
    unknown = [state for state in states if state not in STATES]
    if unknown:
        synonym = _SYNONYMS.get(unknown[0])
        remedy = f"{f'Did you mean {synonym}? ' if synonym else ''}Use one of {', '.join(STATES)}"
        raise UsageFault(f'unknown state "{unknown[0]}"', "no job can be in it", remedy)
    listed = list_jobs(cli.paths.database_url, states or None)
    if cli.options.json:
        fields = [name for name in ListedJob.__slots__ if name not in {"state", "sweep", "rung"}]
        documents = [{**picked(job, *fields), "priority": job.weight, **job_state_json(job.state)} for job in listed]
        cli.out.data({"jobs": documents})
        return
    # Only the reason "paused" needs the time. The clock loads all settings, which takes a tenth of a second.
    now = cli.now if any(job.waits and job.waits.get("code") == NOT_RELEASED for job in listed) else 0
    cli.out.table(
        ("-->#", "job", "---role", "state", "-->step", "-->of", ">done", "--->priority", "-pool", "~why"),
        [
            _row(job, cli.out.zone, now) if job else _row_of_sweep(listed, sweep)
            for job, sweep in _lines(listed, each=each)
        ],
    )
    if not listed and not states:
        cli.out.say(empty_queue(cli))


def empty_queue(cli: Cli) -> str:
    """Return the message for an empty queue, with the command that adds jobs."""
    if cli.paths.values.get("models"):
        return "The queue is empty. Add jobs with: schedctl queue add --models"
    return "The queue is empty. See: schedctl submit --help"


def _lines(listed: Sequence[ListedJob], *, each: bool) -> Iterator[tuple[ListedJob | None, str]]:
    """Yield (job, "") for each single job, and (None, sweep) at the position of a sweep's first job."""
    size = Counter(job.sweep for job in listed if job.sweep and not each)
    sweeps = set()
    for job in listed:
        if size[job.sweep] < _SWEEP_MIN:
            yield job, ""
        elif job.sweep not in sweeps:
            sweeps.add(job.sweep)
            yield None, job.sweep


def _row_of_sweep(listed: Sequence[ListedJob], sweep: str) -> tuple[str, ...]:
    """Return the row that sums up the jobs of a sweep."""
    members = [job for job in listed if job.sweep == sweep]
    states = Counter(type(job.state).__name__.lower() for job in members)
    done, target = (sum(getattr(job, field) for job in members) for field in ("done_step", "target_step"))
    return (
        str(members[0].position),
        f"{sweep} ({len(members)} jobs)",
        "/".join(sorted({job.role for job in members})),
        ", ".join(f"{count} {state}" for state, count in states.items()),
        str(done),
        str(target),
        share(done, target),
        "/".join(sorted({f"{job.weight:g}" for job in members})),
        "/".join(sorted({job.last_pool for job in members if job.last_pool})),
        "; ".join([*_rungs(members), "each: schedctl queue list --all"]),
    )


def _rungs(members: Sequence[ListedJob]) -> list[str]:
    counts = Counter(job.rung for job in members if job.rung)
    return [f"{count} at {rung}" for rung, count in sorted(counts.items())]


def _why(job: ListedJob, zone: str, now: int) -> str:
    if job.waiting is None or not isinstance(job.state, Active):
        reason = why(job.state, job.waits, zone, now)
        return f"{job.rung}: {reason}" if job.rung and isinstance(job.state, Active | Queued) else reason
    from scheduler.core.run import Wait

    waiting = job.waiting
    wait = Wait(str(waiting["why"]), waiting["starts_at"], waiting["place"], since=waiting["since"])
    return in_queue(job.last_pool or "", job.state.run, wait, zone)


def _row(job: ListedJob, zone: str, now: int) -> tuple[str, ...]:
    return (
        str(job.position),
        job.name,
        job.role,
        "waiting" if job.waiting else type(job.state).__name__.lower(),
        str(job.done_step),
        str(job.target_step),
        share(job.done_step, job.target_step),
        f"{job.weight:g}",
        job.last_pool or "",
        _why(job, zone, now),
    )
