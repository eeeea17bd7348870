"""Status: whether the scheduler does its work, and the actions required."""

from __future__ import annotations

from importlib.metadata import version

from sqlalchemy import Connection

from scheduler.core.window import WEEK
from scheduler.report.report import Need
from scheduler.store import counts, queue_waits, runs
from scheduler.store.engine import revision
from scheduler.store.schema import REVISIONS
from scheduler.views.daemon_health import daemon_health
from scheduler.views.long_work import long_work
from scheduler.views.needs import needs
from scheduler.views.pools_now import PoolNow, pools_now
from scheduler.web.shapes import Health, Status
from scheduler.web.source import Source


def status(source: Source) -> Status:
    """Return the whole at a glance."""
    now = source.now
    with source.read() as tx:
        leader, cycled_at, problems = scheduler_health(source, tx, now)
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
            runs_waiting=queue_waits.count(tx),
            plan_made_at=None if plan is None else plan.made_at,
            pools=pools(source, tx, now),
            needs=newest_needs(source, tx, now),
            work=list(long_work(tx)),
        )


def scheduler_health(source: Source, tx: Connection, now: int) -> tuple[str | None, int | None, list[str]]:
    """Return who leads, when the last cycle was, and what keeps the scheduler from its work, in sentences."""
    problems = []
    found = revision(tx, source.app.reading.where)
    if found != REVISIONS[-1]:
        problems.append(
            f"The database is at schema {found}, this page knows {REVISIONS[-1]}. Restart it after upgrades."
        )
    settings = source.app.settings
    told = daemon_health(
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
        problems = scheduler_health(source, tx, source.now)[2]
    return Health(ok=not problems, problems=problems)


def pools(source: Source, tx: Connection, now: int) -> list[PoolNow]:
    """Return the pools as they are now, by name."""
    return pools_now(tx, source.pools, runs.live(tx), now)


def newest_needs(source: Source, tx: Connection, now: int) -> list[Need]:
    """Return what only a person can settle, of the last seven days."""
    return source.kept(
        "needs", source.news(tx), lambda: needs(tx, source.pools, now - WEEK, now, source.alarms(tx), source.plan)
    )
