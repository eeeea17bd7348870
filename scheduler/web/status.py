"""Status: whether the scheduler does its work, and what needs a person."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

from scheduler.core.window import WEEK
from scheduler.service.reports import needs
from scheduler.store import counts, due, lease, limits, runs
from scheduler.store.engine import revision
from scheduler.store.schema import REVISIONS
from scheduler.web.shapes import Health, NeedRow, PoolRow, Status

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.report.report import Need
    from scheduler.web.source import Source

# So many cycles may be missed before something is said; real time, since a platform may take a minute to answer.
_CYCLES_MISSED = 3
_SLACK_WALL_SECONDS = 90


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
    leader = lease.current(tx)
    cycle_seconds = source.app.settings.daemon.cycle_seconds
    next_at = due.next_due(tx).get(due.CYCLE)
    cycled_at = None if next_at is None else next_at - cycle_seconds
    if source.app.settings.clock.stopped_at is not None:
        return None, cycled_at, problems  # a rehearsal that is over needs no daemon
    if leader is None:
        problems.append("No daemon runs: nothing is planned, launched or settled. Start it: schedctl daemon")
    elif cycled_at is None:
        problems.append("The daemon has not finished its first cycle yet.")
    else:
        late = source.app.clock.wall_seconds(now - cycled_at - _CYCLES_MISSED * cycle_seconds)
        if late > _SLACK_WALL_SECONDS:
            problems.append(f"The daemon holds the lease but finished no cycle for {(now - cycled_at) // 60} minutes.")
    return (leader.holder if leader else None), cycled_at, problems


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
    return source.kept("needs", source.news(tx), lambda: needs(tx, now - WEEK, now))
