"""Overview: everything that one screen tells of now, read in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from jobs.spec import EVALUATE
from scheduler.core.job import Done
from scheduler.core.plan import Placement
from scheduler.core.pool import Pool
from scheduler.core.quota import Meter
from scheduler.core.reasons import Reason
from scheduler.core.run import Run
from scheduler.core.window import WEEK
from scheduler.report.report import Need
from scheduler.service.quota.usage import meters
from scheduler.store import counts, events, jobs, limits, plans, queue_waits, runs
from scheduler.store.jobs import JobRecord
from scheduler.views.daemon_health import DaemonHealth
from scheduler.views.long_work import Work, long_work
from scheduler.views.needs import needs
from scheduler.views.pools_now import PoolNow, pools_now
from scheduler.views.training import Training, trainings
from scheduler.views.verdict import Verdict, verdict


@dataclass(frozen=True, slots=True)
class Overview:
    """The state of things at ``at``. ``waits`` is why jobs wait; ``next`` is the next session of each job."""

    at: int
    verdict: Verdict
    daemon: DaemonHealth
    read_anew_at: int | None  # when the daemon took new settings over while it ran
    live: tuple[Run, ...]
    jobs: tuple[JobRecord, ...]
    trainings: tuple[Training, ...]  # of these jobs, in the same order
    waits: Mapping[str, Reason]
    next: Mapping[str, Placement]
    pools: tuple[PoolNow, ...]
    meters: tuple[Meter, ...]
    needs: tuple[Need, ...]
    work: tuple[Work, ...]  # what the daemon does beside its cycles
    plan_warnings: tuple[str, ...]  # layers that the newest plan was made without


def overview(tx: Connection, pools: Mapping[str, Pool], daemon: DaemonHealth, beat_seconds: int, now: int) -> Overview:
    """Read it, for the configured ``pools``, whose sessions speak every ``beat_seconds``. Raises StoreFailure."""
    plan = plans.newest(tx)
    live = queue_waits.shown(tx, runs.live(tx))
    life = events.tail(tx, limit=1, kinds=("daemon.started", "daemon.reloaded"), subject="daemon")
    coming: dict[str, Placement] = {}
    for placement in sorted(plan.placements, key=lambda each: each.start) if plan else ():
        for planned_lane in placement.lanes:
            coming.setdefault(planned_lane.job, placement)
    # What scored a version and is over says no more than the version does.
    queue = tuple(one for one in jobs.everything(tx) if one.spec.role != EVALUATE or not isinstance(one.state, Done))
    going = tuple(trainings(tx, queue, live, plan, pools, beat_seconds, now))
    quotas = tuple(meters(tx, pools, now))
    found = tuple(needs(tx, pools, now - WEEK, now, read_plan=lambda _: plan))
    return Overview(
        at=now,
        verdict=verdict(
            going,
            counts.training_by_state(tx),
            {} if daemon.over else coming,
            found,
            quotas,
            now,
            paused=limits.paused(tx) is not None,
        ),
        daemon=daemon,
        read_anew_at=life[0].at if life and life[0].kind == "daemon.reloaded" else None,
        live=tuple(live),
        jobs=queue,
        trainings=going,
        waits={deferral.job: deferral.reason for deferral in plan.deferrals} if plan else {},
        next=coming,
        pools=tuple(pools_now(tx, pools, live, now)),
        meters=quotas,
        needs=found,
        work=tuple(long_work(tx)),
        plan_warnings=plan.warnings if plan else (),
    )
