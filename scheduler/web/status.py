"""Status: whether the scheduler does its work, and what needs a person."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from scheduler.core.window import WEEK
from scheduler.service.condition import condition as daemon_condition
from scheduler.service.reports import needs
from scheduler.store import counts, limits, runs
from scheduler.store.engine import revision
from scheduler.store.schema import REVISIONS
from scheduler.web.shapes import Health, NeedRow, PoolRow, Status

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.report.report import Need
    from scheduler.web.source import Source


def status(source: Source) -> Status:
    """Return the whole at a glance."""
    now = source.now
    with source.read() as tx:
        leader, cycled_at, problems = condition(source, tx, now)
        plan = source.plan(tx)
        return Status(
            version=version("uff-scheduler"),
            now=now,
            zone=source.zone,
            revision=source.revision(tx),
            leader=leader,
            last_cycle_at=cycled_at,
            problems=problems,
            jobs=counts.jobs_by_state(tx),
            runs_live=counts.live_sessions(tx),
            plan_made_at=None if plan is None else plan.made_at,
            pools=pool_rows(source, tx, now),
            needs=[
                NeedRow(what=need.what, subject=need.subject, why=need.why, remedy=need.remedy)
                for need in newest_needs(source, tx, now)
            ],
        )


def condition(source: Source, tx: Connection, now: int) -> tuple[str | None, int | None, list[str]]:
    """Return who leads, when the last cycle was, and what keeps the scheduler from its work, in sentences."""
    problems = []
    found = revision(tx, source.app.reading.where)
    if found != REVISIONS[-1]:
        problems.append(
            f"The database is at schema {found}, this page knows {REVISIONS[-1]}. Restart it after upgrades."
        )
    settings = source.app.settings
    told = daemon_condition(
        tx,
        now,
        settings.daemon.cycle_seconds,
        source.app.clock.wall_seconds,
        over=settings.clock.stopped_at is not None,
    )
    return told.leader, told.cycled_at, [*problems, *filter(None, [told.problem])]


def health(source: Source) -> Health:
    """Return whether the scheduler is ready. Raises StoreFailure."""
    with source.read() as tx:
        problems = condition(source, tx, source.now)[2]
    return Health(ok=not problems, problems=problems)


def pool_rows(source: Source, tx: Connection, now: int) -> list[PoolRow]:
    """Return the pools as they are now, by name."""
    closures = limits.closures(tx)
    live = [run.pool for run in runs.live(tx)]
    rows = []
    for name, pool in sorted(source.pools.items()):
        until, why = closures.get(name, (0, ""))
        closed = until is None or until > now
        rows.append(
            PoolRow(
                name=name,
                state="closed" if closed else "open" if pool.open_windows(now, now + 1) else "outside hours",
                platform=pool.platform,
                accelerator=pool.accelerator,
                sessions_live=live.count(name),
                sessions_max=pool.sessions_max,
                closed_until=until if closed else None,
                closed_why=why if closed else "",
            )
        )
    return rows


def newest_needs(source: Source, tx: Connection, now: int) -> list[Need]:
    """Return what only a person can settle, of the last seven days."""
    return source.kept("needs", source.news(tx), lambda: needs(tx, now - WEEK, now, source.alarms(tx)))
