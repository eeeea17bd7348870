"""Case: a snapshot indexed for planning. Jobs are in queue order, pools sorted by name, equal pools form one class."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil

from jobs.nouns.pool import Pool
from scheduler.core.snapshot import JobView, LiveRun, Snapshot
from scheduler.core.throughput import SURENESS
from scheduler.planner.model.booking import Bookings
from scheduler.planner.model.capacity_state import CapacityState
from scheduler.planner.model.lanes import CandidateSession
from scheduler.planner.model.plan_state import PlanState
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.model.session_yield import (
    TOLERANCE,
    SessionTerms,
    allowed,
    counts_taken,
    fits,
    longest,
    one_step,
    terms,
    too_short,
)
from scheduler.planner.model.turns import Turns
from scheduler.planner.model.value import Discount, SessionValues, reference_rate

SMALL = 800  # jobs x classes: up to this size a walk is cheap enough to try many


@dataclass(frozen=True, slots=True)
class JobOffer:
    """The speed, value and session lengths of one job on one pool class. All times are in seconds.

    ``speeds`` are steps per second by device count (index n - 1; zero for counts that the job cannot use). ``worth`` is
    the value of one step. ``least`` is the shortest useful session while much work is left. ``sigma`` is the relative
    error of the speeds. ``setup_risk`` and ``saving_risk`` are the P90 minus the mean of set-up and checkpoint time.
    ``thrifty`` is the count with the most steps per device hour, on pools where the job chooses its device count.
    """

    terms: SessionTerms
    speeds: tuple[float, ...]
    worth: float
    cap: int
    least: int
    sigma: float = 0.0
    setup_risk: float = 0.0
    saving_risk: float = 0.0
    thrifty: int | None = None

    @property
    def risk(self) -> int:
        """Seconds added to a session, so that a slow set-up does not make it useless."""
        return ceil(self.setup_risk + self.saving_risk)

    @property
    def fewest(self) -> int:
        """The fewest devices that the job can use."""
        return next(count for count, speed in enumerate(self.speeds, 1) if speed > 0)

    def session_for(self, steps: int, devices: int, sharing: float) -> int:
        """Return the seconds of a session that trains ``steps``, at most the cap."""
        return min(self.cap, self.terms.length_for(steps / (self.speeds[devices - 1] * sharing)))

    def spare(self, steps: int, devices: int) -> int:
        """Return the seconds beyond the mean (P90) that a session needs to finish ``steps``."""
        late = SURENESS * self.sigma * steps / self.speeds[devices - 1] + self.setup_risk
        return ceil(late + max(self.terms.checkpoint, self.saving_risk)) if late > 0 else 0

    def time_for(self, steps: int, devices: int = 0) -> int:
        """Return the seconds of all sessions that train ``steps`` on ``devices``; 0 means the largest count."""
        speed = self.speeds[devices - 1]
        whole = self.terms.useful(self.cap) * speed
        if steps <= whole or whole <= 0:
            return self.terms.length_for(steps / speed)
        count, rest = divmod(steps, whole)
        return int(count) * self.cap + (self.terms.length_for(rest / speed) if rest >= 1 else 0)

    def steps_in(self, length: int, devices: int, sharing: float, remaining: int) -> int:
        """Return the whole steps that a session of ``length`` seconds checkpoints, at most ``remaining``."""
        steps = int(self.terms.useful(length) * self.speeds[devices - 1] * sharing + TOLERANCE)
        return min(steps, remaining)

    def density(self, steps: int) -> float:
        """Return the value per second of the longest session for ``steps`` on all devices.

        Where the job chooses its device count, return the value per device second at the ``thrifty`` count.
        """
        if self.thrifty is not None:
            length = self.session_for(steps, self.thrifty, 1.0)
            return self.worth * self.speeds[self.thrifty - 1] * self.terms.useful(length) / length / self.thrifty
        length = self.session_for(steps, len(self.speeds), 1.0)
        return self.worth * self.speeds[-1] * self.terms.useful(length) / length

    def best_rate(self, steps: int) -> tuple[float, int]:
        """Return (steps per second, devices) of the longest session for ``steps`` on the fewest devices."""
        devices = self.fewest
        length = self.session_for(steps, devices, 1.0)
        return self.terms.useful(length) * self.speeds[devices - 1] / length, devices

    def shortest(self, remaining: int) -> int:
        """Return the seconds of the shortest useful session: the pool's minimum, or less if the job finishes in it."""
        if self.terms.minimum * self.speeds[-1] < remaining:
            return self.least
        return min(self.least, self.cap, self.session_for(remaining, len(self.speeds), 1.0) + self.risk)


@dataclass(frozen=True, slots=True)
class LiveSession:
    """The remainder of a live run, as a session that continues from the newest checkpoint."""

    terms: SessionTerms
    start: int
    end: int
    speed: float

    def steps(self, remaining: int) -> int:
        """Return the steps that the run will checkpoint by its end, without its work since the newest checkpoint."""
        steps = int(self.terms.useful(max(0, self.end - self.start)) * self.speed + TOLERANCE)
        return min(steps, remaining)

    def reaches(self, before: int, step: int) -> int:
        """Return the instant at which ``step`` is checkpointed; ``before`` is the step of the newest checkpoint."""
        return self.terms.published_at(self.start, self.end - self.start, self.speed, before, step)


@dataclass(frozen=True, slots=True)
class PlannerJob:
    """A job with what the dispatcher needs; ``free_at`` is when its live run ends, None if that is unknown."""

    view: JobView
    index: int
    release: int
    deadline: int | None
    free_at: int | None
    expected_steps: int  # what its live run is expected to checkpoint
    gate_parent: int | None
    gate_step: int
    gate_shut: bool  # the parent is not open and did not reach the gate
    startable: bool
    live: LiveSession | None = None

    def reaches(self, step: int) -> int:
        """Return the instant at which the job's live run checkpoints ``step``, one of its expected steps."""
        return self.free_at or 0 if self.live is None else self.live.reaches(self.view.done_step, step)


@dataclass(slots=True)
class PoolClass:
    """Pools with equal rules and speeds for every job; ``offers`` by job index, None where the job cannot run."""

    pool: Pool
    pools: list[int]
    offers: list[JobOffer | None]
    # Cache of single-job sessions on one device, by (job, steps left, length).
    alone: dict[tuple[int, int, int], CandidateSession | None] = field(default_factory=dict)


@dataclass(slots=True)
class Case:
    """Everything that one planning round needs, computed once and shared by all candidate plans."""

    snapshot: Snapshot
    jobs: list[PlannerJob]
    capacities: list[PoolCapacity]
    classes: list[PoolClass]
    class_of: list[int]
    firm_deadlines: bool = True  # False: lateness only costs value
    children: dict[int, list[int]] = field(default_factory=dict)
    turns: Turns = field(default_factory=lambda: Turns(()))  # of jobs that share hours
    within: SessionValues = field(init=False)  # of sessions within the horizon
    bookings: Bookings = field(init=False)
    beginning: PlanState | None = None  # before any planned session; computed by the first walk
    _columns: "Columns | None" = None

    def __post_init__(self) -> None:
        self.within = SessionValues(self.snapshot)
        self.bookings = Bookings(self.jobs, self.capacities)

    @property
    def columns(self) -> "Columns":
        """The jobs' figures as columns."""
        if self._columns is None:
            self._columns = Columns(self)
        return self._columns

    @property
    def now(self) -> int:
        """The instant the plan is made for."""
        return self.snapshot.now

    @property
    def until(self) -> int:
        """The end of the horizon."""
        return self.snapshot.now + self.snapshot.horizon_seconds

    @property
    def small(self) -> bool:
        """Whether a walk is cheap enough to try many."""
        return len(self.jobs) * len(self.classes) <= SMALL

    @property
    def discount(self) -> Discount:
        """The discount of this horizon."""
        return Discount(self.snapshot.now, self.snapshot.horizon_seconds)


def make_case(snapshot: Snapshot, *, firm_deadlines: bool = True) -> Case:
    """Return the case of ``snapshot``; the order of its jobs and pools does not matter."""
    views = sorted(snapshot.jobs, key=lambda view: (view.position, view.name))
    pool_views = sorted(snapshot.pools, key=lambda view: view.pool.name)
    classes, class_of = _classes(views, [view.pool for view in pool_views])
    index = {view.name: number for number, view in enumerate(views)}
    pool_index = {view.pool.name: number for number, view in enumerate(pool_views)}
    runs = {name: (pool_index[view.pool.name], run) for view in pool_views for run in view.live for name in run.jobs}
    states: dict[Hashable, CapacityState] = {}
    case = Case(
        snapshot=snapshot,
        jobs=[],
        capacities=[
            PoolCapacity(view, snapshot.now, snapshot.now + snapshot.horizon_seconds, states) for view in pool_views
        ],
        classes=classes,
        class_of=class_of,
        firm_deadlines=firm_deadlines and any(view.deadline is not None for view in views),
        turns=Turns(views),
    )
    for number, view in enumerate(views):
        live = runs.get(view.name)
        free_at: int | None = snapshot.now
        session: LiveSession | None = None
        if live is not None:
            pool, run = live
            free_at = max(run.deadline, snapshot.now + 1)
            session = _live_session(view, classes[class_of[pool]].offers[number], run, snapshot.now)
        elif view.running is not None:
            free_at = None
        parent, step, shut = _gate(view, index, views, snapshot)
        if parent is not None:
            case.children.setdefault(parent, []).append(number)
        usable = any(group.offers[number] is not None for group in classes)
        case.jobs.append(
            PlannerJob(
                view=view,
                index=number,
                release=max(snapshot.now, view.not_before or 0, view.retry_at or 0),
                deadline=view.deadline,
                free_at=free_at,
                expected_steps=session.steps(view.remaining_steps) if session else 0,
                gate_parent=parent,
                gate_step=step,
                gate_shut=shut,
                startable=usable and view.blocked is None and not shut,
                live=session,
            )
        )
    return case


def _gate(
    view: JobView, index: dict[str, int], views: list[JobView], snapshot: Snapshot
) -> tuple[int | None, int, bool]:
    """Return (parent's index, step at which the gate opens, whether it never will); None if no parent is awaited."""
    if view.gate is None:
        return None, 0, False
    number = index.get(view.gate.parent)
    if number is None:
        reached = snapshot.finished.get(view.gate.parent, 0.0)
        return None, 0, reached + TOLERANCE < view.gate.fraction
    parent = views[number]
    step = ceil(view.gate.fraction * parent.target_step - TOLERANCE)
    return (number, step, False) if parent.done_step < step else (None, 0, False)


def _live_session(view: JobView, offer: JobOffer | None, run: LiveRun, now: int) -> LiveSession | None:
    """Return the remainder of a live run; None if the job's speed on that pool is unknown."""
    if offer is None:
        return None
    devices = max(1, min(view.needs.devices_max, len(offer.speeds) // len(run.jobs), len(offer.speeds)))
    devices = max(devices, min(view.needs.devices_min, len(offer.speeds)))
    if offer.thrifty is not None:
        devices = min(run.devices, len(offer.speeds))
    # A job of one step is all or nothing: the time that has passed counts.
    start = run.start if view.target_step == 1 else max(run.start, now - offer.terms.setup)
    return LiveSession(offer.terms, start, run.deadline, offer.speeds[devices - 1])


def expected_of_live_runs(snapshot: Snapshot) -> dict[str, tuple[LiveRun, int]]:
    """Return, by name of each open job in a live run, the run and the steps that it will still checkpoint."""
    jobs = {view.name: view for view in snapshot.jobs}
    return {
        name: (run, session.steps(jobs[name].remaining_steps) if session else 0)
        for pool_view in snapshot.pools
        for run in pool_view.live
        for name in run.jobs
        if name in jobs
        for session in [_live_session(jobs[name], _offer(jobs[name], pool_view.pool), run, snapshot.now)]
    }


def _offer(view: JobView, pool: Pool) -> JobOffer | None:
    if not allowed(view, pool) or not fits(view, pool) or view.remaining_steps <= 0:
        return None
    job_terms = terms(view, pool)
    if too_short(view, pool):
        return None
    least = max(job_terms.length_for(job_terms.minimum), one_step(view, pool))
    setup_risk = SURENESS * view.setup_sigma.get(pool.name, 0.0) * job_terms.setup
    saving_risk = SURENESS * view.checkpoint_sigma.get(pool.name, 0.0) * job_terms.checkpoint
    if setup_risk + saving_risk > 0:
        # The longest possible session stays allowed, or nothing could be measured on the pool again.
        least = max(least, min(least + ceil(setup_risk + saving_risk), longest(pool)))
    speeds, thrifty = _speeds(view, pool)
    return JobOffer(
        terms=job_terms,
        speeds=speeds,
        worth=view.importance / reference_rate(view) / 3_600,
        cap=pool.session_cap_seconds,
        least=least,
        sigma=view.rates[pool.name].sigma,
        setup_risk=setup_risk,
        saving_risk=saving_risk,
        thrifty=thrifty,
    )


def _speeds(view: JobView, pool: Pool) -> tuple[tuple[float, ...], int | None]:
    """Return ``speeds`` and ``thrifty`` of an offer."""
    needs, counts = view.needs, counts_taken(view, pool)
    if counts:
        speeds = tuple(view.speed(pool.name, n) if n in counts else 0.0 for n in range(1, counts[-1] + 1))
        return speeds, max(counts, key=lambda count: (speeds[count - 1] / count, -count))
    return tuple(
        view.speed(pool.name, min(devices, needs.devices_max)) if devices >= needs.devices_min else 0.0
        for devices in range(1, pool.devices_per_session + 1)
    ), None


def _classes(views: list[JobView], pools: list[Pool]) -> tuple[list[PoolClass], list[int]]:
    """Return the pool classes and each pool's class; pools of a class have equal rules and terms for every job."""
    distinguishing = list(_distinguishing_jobs(views, pools))
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, pool in enumerate(pools):
        key: tuple[object, ...] = (
            pool.devices_per_session,
            pool.device_counts,
            pool.session_cap_seconds,
            pool.session_seconds_min,
            pool.kind,
            pool.vram_gib,
            tuple(sorted(pool.dtypes)),
            pool.stop_margin_seconds,
            pool.mtbf_seconds,
            pool.sharing,
            *(_terms_on(view, pool) for view in distinguishing),
        )
        groups.setdefault(key, []).append(number)
    classes = [
        PoolClass(pools[members[0]], members, [_offer(view, pools[members[0]]) for view in views])
        for members in groups.values()
    ]
    class_of = [0] * len(pools)
    for number, members in enumerate(groups.values()):
        for member in members:
            class_of[member] = number
    return classes, class_of


def _distinguishing_jobs(views: list[JobView], pools: list[Pool]) -> Iterator[JobView]:
    """Yield the jobs for which pools may differ. Most jobs have no measurements, and see equal pools."""
    names, equal = [pool.name for pool in pools], dict[int, bool]()  # by id of a table, which many jobs share
    for view in views:
        tables = view.rates, view.setup_seconds, view.checkpoint_seconds, view.setup_sigma, view.checkpoint_sigma
        for table in tables:
            if id(table) not in equal:
                equal[id(table)] = len(set(map(table.get, names))) < 2
        # A job of one step may exceed one pool's longest session.
        if view.allowed_pools or view.target_step == 1 or not all(equal[id(table)] for table in tables):
            yield view


def _terms_on(view: JobView, pool: Pool) -> tuple[float, ...] | None:
    name = pool.name
    rate = view.rates.get(name)
    if rate is None or not allowed(view, pool):
        return None
    spreads = view.setup_sigma.get(name, 0.0), view.checkpoint_sigma.get(name, 0.0)
    never = too_short(view, pool)
    return rate.steps_per_second, view.setup_seconds[name], view.checkpoint_seconds[name], never, *spreads


# The figures of all jobs that a walk reads, by job index, computed once per case.
# A job in the queue of a pool class: tier, rank, Smith ratio, job, shortest useful session, density, offer. Urgent jobs
# come first, by their latest start; then the others by density and Smith ratio (both negated). Ties go by job index,
# which is the queue position.
Entry = tuple[int, float, float, int, int, float, JobOffer]
# Pool class, the job's entry by density, the seconds of all sessions that the job needs there.
Shape = tuple[int, Entry, int]
URGENT, ORDINARY = 0, 1
# The cache of shapes is cleared when it holds this many.
SHAPES_MAX = 50_000


class Columns:
    """Lists by job index: ``whole`` has target steps, ``last_pool`` the pools of last sessions (-1: none of this case).

    ``startable`` has (job, earliest start), ``due`` (job, deadline), ``live`` the jobs whose live run will checkpoint
    steps. ``shapes_by_steps`` caches the shapes of each job by its steps left.
    """

    __slots__ = (
        "_count", "_importance", "_usable", "deadline", "due", "last_pool", "live", "remaining", "shapes_by_steps",
        "startable", "whole",
    )  # fmt: skip

    def __init__(self, case: Case) -> None:
        jobs = case.jobs
        pools = {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
        self.remaining = [job.view.remaining_steps - job.expected_steps for job in jobs]
        self.whole = [job.view.done_step + job.view.remaining_steps for job in jobs]
        self.last_pool = [pools.get(job.view.last_pool or "", -1) for job in jobs]
        self.deadline = [job.deadline for job in jobs]
        self.due = [(job.index, job.deadline) for job in jobs if job.deadline is not None]
        self.startable = [
            (job.index, max(job.release, job.free_at)) for job in jobs if job.startable and job.free_at is not None
        ]
        self.live = [job.index for job in jobs if job.expected_steps and job.free_at is not None]
        self._importance = [job.view.importance for job in jobs]
        self._usable = [
            [(number, offer) for number, group in enumerate(case.classes) if (offer := group.offers[job.index])]
            for job in jobs
        ]
        self.shapes_by_steps: list[dict[int, Sequence[Shape]]] = [{} for _ in jobs]
        self._count = 0

    def shapes(self, job: int, remaining: int) -> Sequence[Shape]:
        """Return the shapes of ``job`` with ``remaining`` steps left, one per pool class that it may use."""
        job_shapes = self.shapes_by_steps[job].get(remaining)
        if job_shapes is None:
            if self._count >= SHAPES_MAX:
                self._count = 0
                for shapes in self.shapes_by_steps:
                    shapes.clear()
            ratio = -self._importance[job] / remaining
            job_shapes = self.shapes_by_steps[job][remaining] = [
                (number, _entry(job, offer, remaining, ratio), offer.time_for(remaining))
                for number, offer in self._usable[job]
            ]
            self._count += len(job_shapes)
        return job_shapes


def _entry(job: int, offer: JobOffer, remaining: int, ratio: float) -> Entry:
    density = offer.density(remaining)
    return ORDINARY, -density, ratio * offer.speeds[-1], job, offer.shortest(remaining), density, offer
