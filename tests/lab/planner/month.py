"""A small team's month, closed loop: two generations of a main model and six managers on three pools, and short jobs.

Each model has an evaluation. Twelve one-hour jobs come every Friday, an ad hoc job in two of the weeks, and a demo is
due. Kaggle lets sessions wait and gives each two devices, SageMaker has four hours a day and a budget and refuses all
starts on two days, the local GPU is there at night and is off for a week. Nobody knows a speed before a session of that
kind was on that pool (sigma 0.25). About 170 device hours are offered a week, of which the work needs half: nothing
need wait long. ``work`` multiplies the hours of every job.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from statistics import mean

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours, Window
from jobs.payload.lane.meter import checkpoint_times
from jobs.spec import Gate, Needs
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan
from scheduler.core.snapshot import Arrivals, JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH
from tests.lab.planner.churn import churn
from tests.lab.planner.year import saves_of

Decide = Callable[[Snapshot, Plan | None], Plan]

DAYS, LONGEST_DAYS, LOOK_SECONDS, MARGIN_SECONDS = 28, 70, 6 * HOUR, 120
HOLIDAY = Window(EPOCH + 14 * DAY + 8 * HOUR, EPOCH + 21 * DAY + 8 * HOUR)
POOLS = (
    Pool(
        "kaggle", "kaggle", "T4", (CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", 5)),),
        devices_per_session=2, stop_margin_seconds=MARGIN_SECONDS, mtbf_seconds=60 * HOUR,
    ),
    Pool(
        "sagemaker", "sagemaker", "T4",
        (
            CalendarQuota("day", 4 * HOUR, Calendar("day")),
            MoneyQuota("budget", 18_000_000, Calendar("week", "UTC", 0)),
        ),
        session_cap_seconds=4 * HOUR, stop_margin_seconds=MARGIN_SECONDS, mtbf_seconds=40 * HOUR,
        price_microdollars_per_hour=736_000,
    ),
    Pool(
        "local", "local", "3090", hours=(DailyHours("UTC", 20 * HOUR, 8 * HOUR),),
        stop_margin_seconds=MARGIN_SECONDS, mtbf_seconds=200 * HOUR,
    ),
)  # fmt: skip
SPEEDS = {"kaggle": 1.0, "sagemaker": 1.0, "local": 1.3}
SAVES = {"kaggle": 90, "sagemaker": 60, "local": 30}
WAITS = {"kaggle": 300.0, "sagemaker": 60.0, "local": 5.0}  # median seconds in the platform's queue
TWO_DEVICES = (1.0, 1.8)
SPEED_SIGMA, SETUP_SIGMA, WAIT_SIGMA = 0.25, 0.3, 0.8
MANAGERS = (("ufm", 4), ("ucm", 4), ("urm", 3), ("ulm", 3), ("uim", 2), ("uam", 2))


@dataclass(slots=True)
class Task:
    """One job of the month; steps are seconds on one Kaggle device."""

    name: str
    kind: str
    weight: float
    target: int
    arrived: int
    setup: int = 600
    gate: Gate | None = None
    deadline: int | None = None
    devices: int = 1
    done: int = 0
    finished_at: int | None = None
    running: str | None = None
    last_pool: str | None = None


@dataclass(slots=True)
class Lane:
    """One job's part of a session: what it had done, and (instant, step) of each save."""

    task: Task
    devices: int
    saves: list[tuple[int, int]]


@dataclass(slots=True)
class Live:
    """A session that runs: from ``start`` it waits in the queue, from ``begin`` on it is charged."""

    key: str
    pool: str
    start: int
    begin: int
    planned_end: int
    end: int
    lanes: list[Lane]


@dataclass(slots=True)
class Month:
    """What a month came to; times are in hours."""

    jobs: int = 0
    done: int = 0  # by the month's end; the rest is worked off after it
    due: int = 0
    on_time: int = 0
    flow: float = 0.0  # from arrival to completion, mean by weight
    short: float = 0.0  # of one-hour jobs, mean
    short_worst: float = 0.0
    short_beside_gap: float = 0.0  # the longest that one of them waited while hours that fit it were empty
    idle: float = 0.0  # open hours that were lost while a job waited that could use them, over all that are offered
    lanes: float = 0.0  # device hours of Kaggle's lanes per charged hour
    churn: float = 0.0  # of the coming 72 hours from plan to plan, mean
    plans: int = 0
    broken: list[str] = field(default_factory=list)


def tasks(seed: int, work: float) -> list[Task]:
    """Return all jobs of the month."""
    rng = random.Random(seed)

    def task(name: str, kind: str, weight: float, hours: float, day: float, **others: object) -> Task:
        found = Task(name, kind, weight, round(hours * work * HOUR), EPOCH + round(day * DAY))
        for what, value in others.items():
            setattr(found, what, value)
        return found

    found = []
    for generation, day in enumerate((0.4, 12.4)):
        main = f"main-{generation}"
        due = EPOCH + 27 * DAY if generation else None
        models = [task(main, "main", 8, 70 * rng.uniform(0.9, 1.1), day, setup=1_200, devices=2, deadline=due)]
        models += [
            task(
                f"{name}-{generation}", name, weight, 12.5 * rng.uniform(0.8, 1.2), day,
                gate=Gate(main, 0.1), devices=2, deadline=due,
            )
            for name, weight in MANAGERS
        ]  # fmt: skip
        found += models
        found += [
            task(f"{model.name}-eval", "eval", model.weight, 0.7, day, gate=Gate(model.name, 1.0), deadline=due)
            for model in models
        ]
    for week in range(3):
        friday = 7 * week + 6 + rng.uniform(0.4, 0.7)
        found += [task(f"sweep-{week}-{number}", "sweep", 1, 1.0, friday, setup=300) for number in range(12)]
    found += [task(f"ad-hoc-{n}", "ad hoc", 3, rng.uniform(2, 8), 7 * n + rng.uniform(2, 5)) for n in (1, 2)]
    found.append(task("demo", "demo", 4, 6, 8.5, deadline=EPOCH + 11 * DAY))
    return found


class Simulation:
    """One month under one rule. ``clear``: speeds are known, and nothing fails, waits or is refused."""

    def __init__(self, seed: int, decide: Decide, work: float = 1.0, *, clear: bool = False) -> None:
        self.decide, self.clear = decide, clear
        self.faults = random.Random(seed + 1_000)
        self.tasks = tasks(seed, work)
        self.pools = {pool.name: pool for pool in POOLS}
        rng = random.Random(seed + 2_000)
        kinds = sorted({task.kind for task in self.tasks})
        self.true = {
            (kind, pool): SPEEDS[pool] * rng.lognormvariate(0.0, SPEED_SIGMA) for kind in kinds for pool in self.pools
        }
        self.refused = {EPOCH // DAY + day for day in rng.sample(range(2, 26), 2)} if not clear else set()
        self.known = set(self.true) if clear else set[tuple[str, str]]()
        self.charges: dict[str, list[Charge]] = {name: [] for name in self.pools}
        self.closed = dict.fromkeys(self.pools, 0)
        self.live: list[Live] = []
        self.launched = 0
        self.gaps: dict[tuple[str, int], float] = {}  # by pool and window, hours empty beside a job that waited
        self.beside: dict[str, float] = {}
        self.lane_seconds = 0
        self.month = Month()

    def run(self) -> Month:
        """Walk from event to event."""
        now, end = EPOCH, EPOCH + LONGEST_DAYS * DAY
        plan: Plan | None = None
        moved: list[float] = []
        while now < end and any(task.finished_at is None for task in self.tasks):
            self._settle(now)
            snapshot = self._snapshot(now)
            before, plan = plan, self.decide(snapshot, plan)
            self.month.plans += 1
            self.month.broken += verify(snapshot, plan)
            if before is not None:
                moved.append(churn(before, plan, now, now + 3 * DAY))
            for placement in plan.due_now:
                self._launch(placement, now)
            following = [found.start for found in plan.placements] + list(self._instants()) + list(self.closed.values())
            following += [task.arrived for task in self.tasks]
            following += [
                HOLIDAY.start,
                HOLIDAY.end,
                *(now // DAY * DAY + hour * HOUR for hour in (8, 20, 32)),
                now + LOOK_SECONDS,
            ]
            after = min(instant for instant in following if instant > now)
            self._count_gaps(now, after)
            now = after
        self._settle(end)
        return self._close(end, moved)

    def _instants(self) -> Iterator[int]:
        """Yield when sessions end, lanes are done and gates pass."""
        gates = [task.gate for task in self.tasks if task.gate is not None]
        for run in self.live:
            yield run.end
            for lane in run.lanes:
                steps = {math.ceil(g.fraction * lane.task.target) for g in gates if g.parent == lane.task.name}
                for step in steps | {lane.task.target}:
                    yield from [instant for instant, done in lane.saves if done >= step][:1]

    def _launch(self, placement: Placement, now: int) -> None:
        pool = self.pools[placement.pool]
        if pool.name == "sagemaker" and now // DAY in self.refused:
            self.closed[pool.name] = now + HOUR
            return
        self.launched += 1
        wait = 0 if self.clear else min(HOUR, int(WAITS[pool.name] * self.faults.lognormvariate(0.0, WAIT_SIGMA)))
        dies = math.inf if self.clear else self.faults.expovariate(1 / pool.mtbf_seconds)
        length = placement.end - now - wait - MARGIN_SECONDS
        lanes, complete, lasts = [], True, 0.0
        for planned in placement.lanes:
            task = next(found for found in self.tasks if found.name == planned.job)
            if task.running is not None or task.finished_at is not None:
                self.month.broken.append(f"{task.name} was launched twice")
            setup = task.setup * (1.0 if self.clear else self.faults.lognormvariate(0.0, SETUP_SIGMA))
            times = checkpoint_times(length, setup, SAVES[pool.name], 1 / pool.mtbf_seconds)
            speed = self.true[task.kind, pool.name] * TWO_DEVICES[planned.devices - 1]
            left = (task.target - task.done) / speed
            saves, finishes = saves_of(times, setup, SAVES[pool.name], left, dies)
            steps = [
                (now + wait + math.ceil(second), min(task.target - 1, task.done + int(useful * speed)))
                for second, useful in saves
            ]
            if finishes:
                steps[-1] = steps[-1][0], task.target
            complete &= finishes
            lasts = max([lasts, *[second for second, _ in saves]])
            task.running, task.last_pool = f"run-{self.launched}", pool.name
            lanes.append(Lane(task, planned.devices, steps))
        lived = min(dies, lasts if complete else placement.end - now - wait)
        begin = now + wait
        ends = min(placement.end, begin + max(1, math.ceil(lived)))
        self.live.append(Live(f"run-{self.launched}", pool.name, now, begin, placement.end, ends, lanes))

    def _settle(self, now: int) -> None:
        for run in list(self.live):
            for lane in run.lanes:
                for instant, step in lane.saves:
                    if instant <= min(now, run.end):
                        lane.task.done = max(lane.task.done, step)
                        self.known.add((lane.task.kind, run.pool))
                        if step >= lane.task.target and lane.task.finished_at is None:
                            lane.task.finished_at, lane.task.running = instant, None
            if run.end > now:
                continue
            self.live.remove(run)
            self.charges[run.pool].append(Charge(run.begin, max(run.begin + 1, run.end)))
            for lane in run.lanes:
                lane.task.running = None
                if run.pool == "kaggle":
                    self.lane_seconds += lane.devices * (min(lane.task.finished_at or run.end, run.end) - run.begin)

    def _view(self, task: Task, position: int) -> JobView:
        names = list(self.pools)
        guesses = {pool: Rate(SPEEDS[pool], SPEED_SIGMA) for pool in names}
        learned = {pool: Rate(self.true[task.kind, pool]) for pool in names if (task.kind, pool) in self.known}
        return JobView(
            name=task.name,
            weight=task.weight,
            target_step=task.target,
            done_step=task.done,
            needs=Needs(1, task.devices),
            rates=guesses | learned,
            setup_seconds={pool: task.setup + int(WAITS[pool]) for pool in names},
            checkpoint_seconds=SAVES,
            device_speedup=TWO_DEVICES[: task.devices],
            gate=task.gate,
            deadline=task.deadline,
            running=task.running,
            last_pool=task.last_pool,
            position=position,
            reference_rate=1.0,
            setup_sigma={} if self.clear else dict.fromkeys(names, SETUP_SIGMA),
            kind=task.kind,
        )

    def _waiting(self, now: int) -> list[Task]:
        """Return the jobs that could start now."""
        done = {task.name: task.done / task.target for task in self.tasks}
        return [
            task
            for task in self.tasks
            if task.arrived <= now
            and task.finished_at is None
            and task.running is None
            and (task.gate is None or done[task.gate.parent] >= task.gate.fraction)
        ]

    def _pool_views(self, now: int) -> list[PoolView]:
        views = []
        for name, pool in self.pools.items():
            price = pool.price_microdollars_per_hour
            runs = tuple(
                LiveRun(
                    run.key, run.start, run.planned_end, run.planned_end,
                    tuple(lane.task.name for lane in run.lanes if lane.task.finished_at is None),
                    sum(lane.devices for lane in run.lanes),
                )
                for run in self.live
                if run.pool == name
            )  # fmt: skip
            held = [Charge(r.start, r.deadline, held=True, price_microdollars_per_hour=price, run=r.key) for r in runs]
            past = [replace(one, price_microdollars_per_hour=price) for one in self.charges[name]]
            closed = self.closed[name] if self.closed[name] > now else None
            if name == "local" and HOLIDAY.start <= now < HOLIDAY.end:
                closed = HOLIDAY.end
            views.append(PoolView(pool, (*past, *held), runs, (), closed, "off" if name == "local" else "refused"))
        return views

    def _snapshot(self, now: int) -> Snapshot:
        come = [task for task in self.tasks if task.arrived <= now]
        views = [self._view(task, position) for position, task in enumerate(come) if task.finished_at is None]
        finished = {task.name: 1.0 for task in come if task.finished_at is not None}
        kinds: dict[str, list[Task]] = {}
        for task in come:
            kinds.setdefault(task.kind, []).append(task)
        arrivals = tuple(
            Arrivals(kind, tuple(one.arrived for one in found), replace(self._view(found[-1], 0), done_step=0))
            for kind, found in kinds.items()
        )
        return with_urgency(Snapshot(now, tuple(views), tuple(self._pool_views(now)), WEEK, finished, arrivals))

    def _count_gaps(self, now: int, after: int) -> None:
        """Write down which pools stand empty until ``after`` beside a job that could start there."""
        waiting = self._waiting(now)
        empty: set[str] = set()
        for view in self._pool_views(now):
            pool = view.pool
            if view.live or view.closed_until is not None:
                continue
            seconds = room(pool, view.charges, [], now).seconds
            fitting = [task for task in waiting if seconds >= self._least(task, pool)]
            if fitting:
                key = (pool.name, (now - EPOCH) // (WEEK if pool.name == "kaggle" else DAY))
                self.gaps[key] = self.gaps.get(key, 0.0) + min(after - now, seconds) / HOUR
                empty |= {task.name for task in fitting if task.kind == "sweep"}
        for name in empty:
            self.beside[name] = self.beside.get(name, 0.0) + (after - now) / HOUR

    def _least(self, task: Task, pool: Pool) -> float:
        """Return the shortest session of ``task`` that is worth a launch, as the planner may reckon it."""
        left = (task.target - task.done) / SPEEDS[pool.name] * math.exp(SPEED_SIGMA)
        setup = task.setup * (1 + 1.3 * SETUP_SIGMA) + WAITS[pool.name] * 2
        return setup + min(left, pool.session_seconds_min + 60) + 2 * SAVES[pool.name] + MARGIN_SECONDS

    def _close(self, end: int, moved: list[float]) -> Month:
        month = self.month
        hours = {task.name: ((task.finished_at or end) - task.arrived) / HOUR for task in self.tasks}
        weights = sum(task.weight for task in self.tasks)
        month.done = sum((task.finished_at or end) <= EPOCH + DAYS * DAY for task in self.tasks)
        due = [task for task in self.tasks if task.deadline is not None]
        month.jobs, month.due, month.churn = len(self.tasks), len(due), mean(moved)
        month.on_time = sum((task.finished_at or end) <= (task.deadline or 0) for task in due)
        month.flow = sum(task.weight * hours[task.name] for task in self.tasks) / weights
        short = [hours[task.name] for task in self.tasks if task.kind == "sweep"]
        month.short, month.short_worst = mean(short), max(short)
        month.short_beside_gap = max([0.0, *self.beside.values()])
        kaggle = sum(charge.end - charge.start for charge in self.charges["kaggle"])
        month.lanes = self.lane_seconds / max(1, kaggle)
        lost, offered = 0.0, 0.0
        for pool, window, hours_there in self._windows():
            length = WEEK if pool == "kaggle" else DAY
            begin = EPOCH + window * length
            used = sum(charge.within(begin, begin + length) for charge in self.charges[pool]) / HOUR
            if used > hours_there + 1e-9:
                month.broken.append(f"{pool} has {used} of {hours_there} h used in window {window}")
            offered += hours_there
            lost += min(self.gaps.get((pool, window), 0.0), hours_there - used)
        month.idle = lost / offered
        return month

    def _windows(self) -> Iterator[tuple[str, int, float]]:
        """Yield (pool, window, hours it offers) of the month."""
        yield from (("kaggle", week, 30.0) for week in range(DAYS // 7))
        for day in range(DAYS):
            yield "sagemaker", day, 4.0
            begin = EPOCH + day * DAY
            nights = [(begin, begin + 8 * HOUR), (begin + 20 * HOUR, begin + DAY)]
            yield "local", day, sum(end - start - HOLIDAY.overlap(start, end) for start, end in nights) / HOUR
