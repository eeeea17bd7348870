"""What if: edits of a snapshot, and how they change the plan. Pure functions; nothing is stored."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import assert_never

from jobs.nouns.pool import Pool
from jobs.nouns.quota import MoneyQuota, Quota
from jobs.nouns.window import HOUR
from jobs.problem import NotFound
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, PoolView, Snapshot
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.planner import ALL_LAYERS, Planner, PlannerOptions
from scheduler.planner.questions.differ import PlanComparison, differences
from scheduler.planner.questions.orders import POLICIES, plan_by


@dataclass(frozen=True, slots=True)
class InsertJob:
    """Add a job."""

    job: JobView


@dataclass(frozen=True, slots=True)
class SetHours:
    """Set every time quota of the pool to ``hours`` per window."""

    pool: str
    hours: float


@dataclass(frozen=True, slots=True)
class TakeDown:
    """Close the pool for the whole horizon."""

    pool: str


@dataclass(frozen=True, slots=True)
class SetWeight:
    """Set the priority of the job."""

    job: str
    weight: float


@dataclass(frozen=True, slots=True)
class SetDevices:
    """Set the job's minimum and maximum of devices to ``devices``."""

    job: str
    devices: int


Edit = InsertJob | SetHours | TakeDown | SetWeight | SetDevices


class UnknownName(NotFound):
    """An edit names a job, pool or policy that does not exist; ``names`` are those that do."""

    def __init__(self, kind: str, name: str, names: Sequence[str]) -> None:
        super().__init__(f"no {kind} is called {name!r}; known: {', '.join(sorted(names)) or 'none'}")
        self.kind = kind
        self.name = name
        self.names = tuple(sorted(names))


def what_if(
    snapshot: Snapshot,
    edits: Sequence[Edit],
    policy: str | None = None,
    options: PlannerOptions = ALL_LAYERS,
    incumbent: Plan | None = None,
) -> tuple[Plan, PlanComparison]:
    """Return the plan of the edited snapshot and how it differs from the plan of ``snapshot`` itself.

    Both keep ``incumbent``, the current plan, unless a clearly better one is found, as the daemon does. With ``policy``
    the edited snapshot is planned by a simpler order (see ``orders.POLICIES``). Raises UnknownName.
    """
    if policy is not None and policy not in POLICIES:
        raise UnknownName("policy", policy, list(POLICIES))
    edited = snapshot
    for edit in edits:
        edited = apply(edited, edit)
    before = Planner(options).plan(snapshot, incumbent)
    after = Planner(options).plan(edited, incumbent) if policy is None else plan_by(edited, policy)
    return after, differences(edited, before, after)


def apply(snapshot: Snapshot, edit: Edit) -> Snapshot:
    """Return ``snapshot`` with one edit made; raises UnknownName."""
    match edit:
        case InsertJob(job):
            return with_urgency(replace(snapshot, jobs=(*snapshot.jobs, job)))
        case SetWeight(name, weight):
            edited = _with_job(snapshot, name, lambda job: replace(job, weight=weight))
            # The priority also affects the urgency of parents and the common scale.
            return with_urgency(edited) if any(job.urgency != 1.0 for job in snapshot.jobs) else edited
        case SetDevices(name, devices):
            return _with_job(
                snapshot,
                name,
                lambda job: replace(job, needs=replace(job.needs, devices_min=devices, devices_max=devices)),
            )
        case SetHours(name, hours):
            limit = round(hours * HOUR)
            return _with_pool(
                snapshot,
                name,
                lambda view: replace(view, observed=(), pool=replace(view.pool, quotas=_limited(view.pool, limit))),
            )
        case TakeDown(name):
            until = snapshot.now + snapshot.horizon_seconds
            return _with_pool(snapshot, name, lambda view: replace(view, closed_until=until, closed_why="down"))
        case _:
            assert_never(edit)


def _with_job(snapshot: Snapshot, name: str, change: Callable[[JobView], JobView]) -> Snapshot:
    names = [job.name for job in snapshot.jobs]
    if name not in names:
        raise UnknownName("job", name, names)
    return replace(snapshot, jobs=tuple(change(job) if job.name == name else job for job in snapshot.jobs))


def _with_pool(snapshot: Snapshot, name: str, change: Callable[[PoolView], PoolView]) -> Snapshot:
    names = [view.pool.name for view in snapshot.pools]
    if name not in names:
        raise UnknownName("pool", name, names)
    return replace(snapshot, pools=tuple(change(view) if view.pool.name == name else view for view in snapshot.pools))


def _limited(pool: Pool, limit_seconds: int) -> tuple[Quota, ...]:
    """Return the quotas of ``pool`` with the limit; a money quota keeps its own limit."""
    return tuple(
        quota if isinstance(quota, MoneyQuota) else replace(quota, limit_seconds=limit_seconds) for quota in pool.quotas
    )


# Device counts of a job: time and cost of each, and the count that meets the deadline with the fewest device hours.
@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """One device count on a pool: seconds of training to the target, and device seconds.

    ``left`` is the number of unused devices of the session, or of the pool if it has ``device_counts``. ``in_time`` is
    None without a deadline.
    """

    pool: str
    devices: int
    seconds: int
    device_seconds: int
    left: int
    in_time: bool | None
    chosen: bool = False


def device_choices(view: JobView, pool: Pool, now: int) -> tuple[DeviceChoice, ...]:
    """Return the device counts that are faster than all smaller ones, as if one session ran from now to the target.

    Chosen is the count in time (without a deadline: any) with the fewest device hours, or the fastest if none is in
    time. Empty for a pool that the job may not use.
    """
    if pool.name not in view.rates:
        return ()
    most = min(view.needs.devices_max, pool.devices_per_session, max(len(view.device_speedup), view.needs.devices_min))
    counts = [n for n in pool.device_counts or range(1, most + 1) if view.needs.devices_min <= n <= most]
    choices: list[DeviceChoice] = []
    quickest = 0.0
    for devices in counts:
        speed = view.speed(pool.name, devices)
        if speed <= quickest:
            continue
        quickest = speed
        seconds = ceil(view.remaining_steps / speed)
        in_time = None if view.deadline is None else now + seconds <= view.deadline
        spare = (pool.devices_max or pool.devices_per_session) - devices
        choices.append(DeviceChoice(pool.name, devices, seconds, seconds * devices, spare, in_time))
    chosen = _chosen(choices)
    return tuple(replace(choice, chosen=choice is chosen) for choice in choices)


def _chosen(choices: Sequence[DeviceChoice]) -> DeviceChoice | None:
    in_time = [choice for choice in choices if choice.in_time is not False]
    if in_time:
        return min(in_time, key=lambda choice: (choice.device_seconds, choice.devices))
    return min(choices, key=lambda choice: choice.seconds, default=None)
