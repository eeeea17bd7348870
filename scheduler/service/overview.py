"""Overview: everything that one screen tells of now, read in one transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.window import WEEK
from scheduler.service.meters import meters
from scheduler.service.reports import needs
from scheduler.store import events, jobs, limits, plans, runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from scheduler.core.plan import Placement
    from scheduler.core.pool import Pool
    from scheduler.core.reasons import Reason
    from scheduler.core.run import Run
    from scheduler.report.report import Need
    from scheduler.service.condition import Condition
    from scheduler.service.meters import Meter
    from scheduler.store.jobs import JobRecord


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool: ``state`` is open, closed or outside hours; ``why`` it is closed, and ``until`` when, None for ever."""

    name: str
    state: str
    live: int
    sessions_max: int
    until: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of things at ``at``. ``waits`` is why jobs wait; ``next`` is the next session of each job."""

    at: int
    daemon: Condition
    read_anew_at: int | None  # when the daemon took new settings over while it ran
    live: tuple[Run, ...]
    jobs: tuple[JobRecord, ...]
    waits: Mapping[str, Reason]
    next: Mapping[str, Placement]
    pools: tuple[PoolNow, ...]
    meters: tuple[Meter, ...]
    needs: tuple[Need, ...]
    plan_warnings: tuple[str, ...]  # layers that the newest plan was made without


def overview(tx: Connection, pools: Mapping[str, Pool], daemon: Condition, now: int) -> Overview:
    """Read it, for the configured ``pools``. Raises StoreFailure."""
    plan = plans.newest(tx)
    live = runs.live(tx)
    closures = limits.closures(tx)
    life = events.tail(tx, limit=1, kinds=("daemon.started", "daemon.reloaded"), subject="daemon")
    coming: dict[str, Placement] = {}
    for placement in sorted(plan.placements, key=lambda each: each.start) if plan else ():
        for seat in placement.seats:
            coming.setdefault(seat.job, placement)
    return Overview(
        at=now,
        daemon=daemon,
        read_anew_at=life[0].at if life and life[0].kind == "daemon.reloaded" else None,
        live=tuple(live),
        jobs=tuple(jobs.everything(tx)),
        waits={deferral.job: deferral.reason for deferral in plan.deferrals} if plan else {},
        next=coming,
        pools=tuple(_pool(pool, live, closures.get(name), now) for name, pool in sorted(pools.items())),
        meters=tuple(meters(tx, pools, now)),
        needs=tuple(needs(tx, now - WEEK, now)),
        plan_warnings=plan.warnings if plan else (),
    )


def _pool(pool: Pool, live: Sequence[Run], closure: tuple[int | None, str] | None, now: int) -> PoolNow:
    closed = closure is not None and (closure[0] is None or closure[0] > now)
    return PoolNow(
        name=pool.name,
        state="closed" if closed else "open" if pool.open_windows(now, now + 1) else "outside hours",
        live=sum(run.pool == pool.name for run in live),
        sessions_max=pool.sessions_max,
        until=closure[0] if closure and closed else None,
        why=closure[1] if closure and closed else "",
    )
