"""Overview: the present state for one screen, read in one transaction."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from math import fsum
from statistics import fmean
from typing import Any, Literal

from sqlalchemy import Connection

from jobs.grouping import grouped
from jobs.lane_report import GPU_METRICS, GpuUse, LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import WEEK
from jobs.spec import EVALUATE
from scheduler.core.job import Done
from scheduler.core.plan import Placement
from scheduler.core.quota import Meter
from scheduler.core.reasons import Reason
from scheduler.core.run import Run
from scheduler.report.report import Need
from scheduler.service.quota.usage import meters
from scheduler.store import counts, due, events, jobs, lease, limits, plans, queue_waits, runs
from scheduler.store.jobs import JobRecord
from scheduler.views.long_work import Work, long_work
from scheduler.views.needs import needs
from scheduler.views.training import TrainingProgress, trainings
from scheduler.views.verdict import Verdict, verdict

# A warning needs this many missed cycles, plus real time in which a slow platform may answer.
_CYCLES_MISSED = 3
_SLACK_WALL_SECONDS = 90


@dataclass(frozen=True, slots=True)
class DaemonHealth:
    """The daemon that holds the lease (``leader``) and the time of its newest cycle, in scheduled UTC seconds.

    Both are None if unknown. ``problem`` is a sentence, empty without a problem. ``over``: the rehearsal has ended.
    """

    leader: str | None
    cycled_at: int | None
    problem: str
    over: bool = False


def daemon_health(
    tx: Connection, now: int, cycle_seconds: int, wall_seconds: Callable[[float], float], *, over: bool = False
) -> DaemonHealth:
    """Return the daemon's health; ``wall_seconds`` converts scheduled seconds to real seconds.

    A rehearsal that is ``over`` needs no daemon.
    """
    held = lease.current(tx)
    next_at = due.next_due(tx).get(due.CYCLE)
    cycled_at = None if next_at is None else next_at - cycle_seconds
    if over:
        return DaemonHealth(None, cycled_at, "", over=True)
    if held is None:
        problem = "No daemon runs: nothing is planned, launched or settled. Start it: schedctl daemon"
    elif cycled_at is None:
        problem = "The daemon has not finished its first cycle yet."
    elif wall_seconds(now - cycled_at - _CYCLES_MISSED * cycle_seconds) > _SLACK_WALL_SECONDS:
        problem = f"The daemon holds the lease but finished no cycle for {(now - cycled_at) // 60} minutes."
    else:
        problem = ""
    return DaemonHealth(held.holder if held else None, cycled_at, problem)


@dataclass(frozen=True, slots=True)
class PoolNow(GpuUse):
    """The state of a pool; ``closed_until`` is None if the pool is open or closed without an end.

    Of its live sessions, ``gpu_memory_bytes`` is the peak, ``gpu_watts`` the sum, ``gpu_busy`` and ``gpu_throttled``
    are the means; None if no session has reported the value.
    """

    name: str
    state: Literal["open", "closed", "outside hours"]
    platform: str
    accelerator: str
    sessions_live: int
    sessions_max: int
    closed_until: int | None
    closed_why: str


# The function that combines the values of all sessions of a pool into one.
_COMBINED: Mapping[str, Any] = {"gpu_memory_bytes": max, "gpu_busy": fmean, "gpu_watts": fsum, "gpu_throttled": fmean}


def _gpu_metrics(reports: Collection[LaneReport]) -> dict[str, Any]:
    values = {name: [value for one in reports if (value := getattr(one, name)) is not None] for name in GPU_METRICS}
    return {name: _COMBINED[name](reported) for name, reported in values.items() if reported}


def pools_now(tx: Connection, pools: Mapping[str, Pool], live: Iterable[Run], now: int) -> list[PoolNow]:
    """Return the states of the pools, sorted by name; ``live`` are the live runs."""
    closures, paused = limits.closures(tx), limits.paused(tx)
    live = list(live)
    running = Counter(run.pool for run in live)
    pool_of = {run.key: run.pool for run in live}
    reports = grouped((pool_of[key], report) for (key, _), report in runs.heartbeats(tx, list(pool_of)).items())
    result = []
    for name, pool in sorted(pools.items()):
        until, why = closures.get(name, (0, ""))
        if paused is not None:
            until, why = None, paused.why
        closed = until is None or until > now
        result.append(
            PoolNow(
                name=name,
                state="closed" if closed else "open" if pool.open_windows(now, now + 1) else "outside hours",
                platform=pool.platform,
                accelerator=pool.accelerator,
                sessions_live=running[name],
                sessions_max=pool.sessions_max,
                closed_until=until if closed else None,
                closed_why=why if closed else "",
                vram_gib=pool.vram_gib,
                **_gpu_metrics(reports.get(name, ())),
            )
        )
    return result


@dataclass(frozen=True, slots=True)
class Overview:
    """The state at ``at`` (UTC seconds). By job, ``waits`` is why it waits and ``next`` its next session."""

    at: int
    verdict: Verdict
    daemon: DaemonHealth
    read_anew_at: int | None  # when the running daemon reloaded its settings
    live: tuple[Run, ...]
    jobs: tuple[JobRecord, ...]
    trainings: tuple[TrainingProgress, ...]  # of ``jobs``, in the same order
    waits: Mapping[str, Reason]
    next: Mapping[str, Placement]
    pools: tuple[PoolNow, ...]
    meters: tuple[Meter, ...]
    needs: tuple[Need, ...]
    work: tuple[Work, ...]  # background work of the daemon
    plan_warnings: tuple[str, ...]  # planner layers that failed in the newest plan


def overview(tx: Connection, pools: Mapping[str, Pool], daemon: DaemonHealth, beat_seconds: int, now: int) -> Overview:
    """Return the overview of ``pools``; ``beat_seconds`` is the heartbeat interval. Raises StoreFailure."""
    plan = plans.newest(tx)
    live = queue_waits.attach(tx, runs.live(tx))
    start_or_reload = events.tail(tx, limit=1, kinds=("daemon.started", "daemon.reloaded"), subject="daemon")
    coming: dict[str, Placement] = {}
    for placement in sorted(plan.placements, key=lambda each: each.start) if plan else ():
        for lane in placement.lanes:
            coming.setdefault(lane.job, placement)
    # Finished evaluations are left out, because the version shows their results.
    queue = tuple(one for one in jobs.everything(tx) if one.spec.role != EVALUATE or not isinstance(one.state, Done))
    going = tuple(trainings(tx, queue, live, plan, pools, beat_seconds, now))
    quotas = tuple(meters(tx, pools, now))
    actions = tuple(needs(tx, pools, now - WEEK, now, read_plan=lambda _: plan))
    return Overview(
        at=now,
        verdict=verdict(
            going,
            counts.training_by_state(tx),
            {} if daemon.over else coming,
            actions,
            quotas,
            now,
            paused=limits.paused(tx) is not None,
        ),
        daemon=daemon,
        read_anew_at=next((one.at for one in start_or_reload if one.kind == "daemon.reloaded"), None),
        live=tuple(live),
        jobs=queue,
        trainings=going,
        waits={deferral.job: deferral.reason for deferral in plan.deferrals} if plan else {},
        next=coming,
        pools=tuple(pools_now(tx, pools, live, now)),
        meters=quotas,
        needs=actions,
        work=tuple(long_work(tx)),
        plan_warnings=plan.warnings if plan else (),
    )
