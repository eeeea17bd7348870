"""Gather the facts of a week from the database, for the reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.report.week import JobFacts, WeekFacts
from scheduler.store import checkpoints, jobs, ledger, limits, runs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.core.pool import Pool
    from scheduler.store.engine import Database


def week_facts(database: Database, pools: Mapping[str, Pool], start: int, end: int, scale: float) -> WeekFacts:
    """Read everything that touched [start, end) in one read transaction."""
    with database.read() as tx:
        return WeekFacts(
            start=start,
            end=end,
            scale=scale,
            pools=pools,
            observed=limits.observed(tx),
            entries=ledger.entries(tx, since=start),
            runs=[run for run in runs.since(tx, start) if run.planned_start < end],
            manifests=[record.manifest for record in checkpoints.everything(tx) if record.state == "good"],
            jobs=[
                JobFacts(
                    name=record.spec.name,
                    role=record.spec.role,
                    target_step=record.spec.target_step,
                    step=record.done_step,
                    state=type(record.state).__name__.lower(),
                )
                for record in jobs.everything(tx)
            ],
        )
