"""Gather the facts of a week from the database, for the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from jobs.payload.store.manifest import Manifest
from scheduler.core.job import Done, Failed, Held
from scheduler.core.ledger import LedgerEntry
from scheduler.core.pool import Pool
from scheduler.core.why import why
from scheduler.report.facts import JobFacts, WeekFacts
from scheduler.store import checkpoints, generations, jobs, ledger, limits, queue_waits, runs
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord


def week_facts(database: Database, pools: Mapping[str, Pool], start: int, end: int, scale: float) -> WeekFacts:
    """Read everything that touched [start, end) in one read transaction."""
    with database.read() as tx:
        # Retention deletes files, not history: an expired checkpoint was useful all the same.
        good = [record.manifest for record in checkpoints.everything(tx) if record.state != "quarantined"]
        return facts_within(tx, pools, start, end, scale, ledger.entries(tx, since=start), good, jobs.everything(tx))


def facts_within(
    tx: Connection,
    pools: Mapping[str, Pool],
    start: int,
    end: int,
    scale: float,
    entries: Sequence[LedgerEntry],
    manifests: Sequence[Manifest],
    queue: Sequence[JobRecord],
) -> WeekFacts:
    """Return the facts of [start, end) from what was read already, and the runs that touched it."""
    week_runs = queue_waits.attach(tx, runs.between(tx, start, end))
    touched = [run for run in week_runs if run.planned_start < end]
    parents = generations.parents(tx)
    firsts = {job: {first for _, first in begun} for job, begun in generations.beginnings(tx).items()}
    for record in queue:  # up to there the attempts are those of a removed job of this name
        firsts.setdefault(record.spec.name, set()).add(record.fenced_attempt + 1)
    signs: dict[str, int] = {}
    for (key, _), report in runs.heartbeats(tx, [run.key for run in touched]).items():
        if report.at is not None:
            signs[key] = max(report.at, signs.get(key, 0))
    return WeekFacts(
        start=start,
        end=end,
        scale=scale,
        pools=pools,
        observed=limits.observed(tx),
        entries=entries,
        runs=touched,
        last_signs=signs,
        firsts={job: sorted(attempts) for job, attempts in firsts.items()},
        closed={
            week_runs.pool: week_runs.why
            for week_runs in limits.standing(tx)
            if week_runs.until is None or week_runs.until > end
        },
        manifests=manifests,
        jobs=[
            JobFacts(
                name=record.spec.name,
                role=record.spec.role,
                target_step=record.spec.target_step,
                step=record.done_step,
                state=type(record.state).__name__.lower(),
                why=why(record.state, None, "UTC", 0) if isinstance(record.state, Done | Failed | Held) else "",
                starts_from=parents.get(record.spec.name),
            )
            for record in queue
        ],
    )
