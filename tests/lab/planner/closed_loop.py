"""A year of stochastic weeks: one Kaggle account and one SageMaker budget, families of seven models, faults.

Assumed as in the study the targets come from: mean time between failures 30 h and 12 h, four in ten SageMaker starts
refused and tried again after ten minutes, set-up 0.35 h and 0.2 h with sigma 0.3, blocking checkpoints of 3 and 1
minutes at the equal-n rule, true speeds off by sigma 0.2 and learned after a session, Kaggle's quota anywhere between
26 and 38 hours in 15 % of the weeks, one to three hours of it used by somebody else on the first day of 5 %. A session
is charged for as long as it lived; one that the quota no longer covers ends at once and keeps what it has saved.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

from jobs.nouns.pool import Pool
from jobs.nouns.quota import RollingQuota
from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.payload.lane.meter import checkpoint_times
from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Plan
from scheduler.core.quota import ObservedLimit
from scheduler.core.snapshot import Arrivals, JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.orders import in_order
from scheduler.planner.model.case import make_case
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.planner import Planner, PlannerOptions
from tests.lab.planner.cases import EPOCH, KAGGLE, SAGEMAKER
from tests.lab.planner.efficiency import efficiency
from tests.lab.planner.limits import window_over_endless
from tests.lab.planner.year import FAILURES, MARGIN_SECONDS, SAVE_SECONDS, Live, Model, Year, saves_of

SETUP_SIGMA = 0.3
SPEED_SIGMA = 0.2
REFUSED = 0.4
RETRY_SECONDS = 600
TAKEN = 0.05  # share of the weeks in which somebody else uses some of Kaggle's quota
MANAGER_WEIGHTS = (4, 4, 3, 3, 2, 2)


def pools(*, rolling: bool) -> dict[str, Pool]:
    """Return the two pools; ``rolling`` counts SageMaker's four hours in any 24 instead of a calendar day."""
    kaggle = replace(KAGGLE, stop_margin_seconds=MARGIN_SECONDS, mtbf_seconds=30 * HOUR)
    sagemaker = replace(SAGEMAKER, stop_margin_seconds=MARGIN_SECONDS, mtbf_seconds=12 * HOUR)
    if rolling:
        sagemaker = replace(sagemaker, quotas=(RollingQuota("day", 4 * HOUR, DAY),))
    return {"kaggle": kaggle, "sagemaker": sagemaker}


Decide = Callable[[Snapshot, Plan | None], Plan]


def planner(options: PlannerOptions) -> Decide:
    """Return the product, replanning with the plan in force at hand."""
    kept = Planner(options)
    return kept.plan


def first_in_first_out(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
    """First in, first out, with sessions as long as they are useful."""
    del incumbent
    case = make_case(snapshot, firm_deadlines=False)
    return dispatch(snapshot, in_order("fifo"), case)


class Simulation:
    """One year under one policy; ``decide`` None is the seeds' static week."""

    def __init__(self, seed: int, weeks: int, decide: Decide | None, *, rolling: bool = False) -> None:
        self.rng = random.Random(seed)
        self.faults = random.Random(seed + 1_000)
        self.weeks, self.decide = weeks, decide
        self.pools = pools(rolling=rolling)
        self.models: list[Model] = []
        self.charges: dict[str, list[Charge]] = {name: [] for name in self.pools}
        self.live: list[Live] = []
        self.closed = dict.fromkeys(self.pools, 0)
        self.year = Year()
        self.launched = 0
        self.history: dict[str, dict[str, tuple[int, JobView]]] = {}  # by kind and name: when it came, and how it was
        self.limits = [
            int(self.rng.uniform(26, 38) * HOUR) if self.rng.random() < 0.15 else 30 * HOUR for _ in range(weeks)
        ]
        others = random.Random(seed + 2_000)
        self.takers = [
            (EPOCH + week * WEEK + int(others.uniform(3 * HOUR, DAY)), int(others.uniform(1, 3) * HOUR))
            for week in range(weeks)
            if others.random() < TAKEN
        ]
        self.taken: list[Charge] = []  # of Kaggle's quota, by somebody else
        self.arrivals = [self._family(EPOCH + int(n * 1.75 * WEEK), n) for n in range(int(weeks / 1.75) + 1)]

    def _family(self, arrived: int, number: int) -> list[Model]:
        def model(name: str, weight: float, hours: float, setup: float, speedup: float) -> Model:
            believed = {"kaggle": speedup, "sagemaker": 1.0}
            error = self.rng.lognormvariate(0.0, SPEED_SIGMA)
            true = {pool: speed * error for pool, speed in believed.items()}
            full = f"family-{number:02d}-{name}"
            steps, seconds = int(hours * HOUR), int(setup * HOUR)
            return Model(full, name == "main", weight, steps, arrived, seconds, believed, true, sigma=SPEED_SIGMA)

        return [model("main", 8, 60, 0.35, 1.6)] + [
            model(f"m{n}", weight, 12, 0.2, 1.2) for n, weight in enumerate(MANAGER_WEIGHTS)
        ]

    def run(self) -> Year:
        """Walk from event to event."""
        now, end = EPOCH, EPOCH + self.weeks * WEEK
        plan: Plan | None = None
        while now < end:
            self._take(now)
            self._settle(now)
            for family in [found for found in self.arrivals if found[0].arrived <= now]:
                self.models += family
                self.arrivals.remove(family)
            if self.decide is not None:
                plan = self.decide(self._snapshot(now), plan)
                for placement in plan.due_now:
                    model = next(m for m in self.models if m.name == placement.lanes[0].job)
                    self._launch(model, placement.pool, now, placement.end)
                following = [placement.start for placement in plan.placements if placement.start > now]
            else:
                following = self._static(now)
            instants = [run.end for run in self.live] + following
            instants += [family[0].arrived for family in self.arrivals]
            instants += [instant for instant, _ in self.takers]
            instants += [until for until in self.closed.values() if until > now]
            instants.append(now + DAY)
            now = min(instant for instant in instants if instant > now)
        self._settle(end)
        return self._close(end)

    def _static(self, now: int) -> list[int]:
        """3 x 10 h of main on Kaggle and 4 h a day of the managers in turn; a refused start is tried again."""
        day, week = (now - EPOCH) // DAY, (now - EPOCH) // WEEK
        into_day = now - EPOCH - day * DAY
        slots = [("sagemaker", 4 * HOUR)]
        if day % 7 in {0, 2, 4}:
            slots.append(("kaggle", 10 * HOUR))
        for pool, longest in slots:
            end = EPOCH + day * DAY + (DAY if pool == "kaggle" else 12 * HOUR)
            used = any(charge.start >= EPOCH + day * DAY for charge in self.charges[pool])
            busy = any(run.pool == pool for run in self.live)
            if used or busy or into_day > 12 * HOUR or self.closed[pool] > now:
                continue
            waiting = [m for m in self.models if m.finished_at is None and m.running is None and self._may(m)]
            mine = [m for m in waiting if m.main == (pool == "kaggle")]
            if mine:
                family = mine[0].name[:9]
                turn = [m for m in mine if m.name.startswith(family)]
                free = self.limits[week] - self.kaggle_used(week, now)
                length = min(longest, free) if pool == "kaggle" else longest
                if length > HOUR:
                    self._launch(turn[day % len(turn)], pool, now, min(end, now + length))
        return [EPOCH + (day + 1) * DAY]

    def _may(self, model: Model) -> bool:
        if model.main:
            return True
        main = next(m for m in self.models if m.name == f"{model.name[:9]}-main")
        return main.done >= 0.4 * main.target

    def kaggle_used(self, week: int, now: int) -> int:
        """Return the seconds of Kaggle's quota that are used in ``week`` by ``now``, by whomever."""
        window = EPOCH + week * WEEK, min(now, EPOCH + (week + 1) * WEEK)
        running = [Charge(run.start, now) for run in self.live if run.pool == "kaggle" and run.start < now]
        return sum(charge.within(*window) for charge in (*self.charges["kaggle"], *self.taken, *running))

    def _take(self, now: int) -> None:
        """Let somebody else use what they use by ``now``; sessions that the rest does not cover end with it."""
        for instant, seconds in [found for found in self.takers if found[0] <= now]:
            self.takers.remove((instant, seconds))
            week = (now - EPOCH) // WEEK
            free = self.limits[week] - self.kaggle_used(week, now)
            used = max(0, min(seconds, free))
            self.taken += [Charge(now - used, now)] if used else []
            live, left, since = [run for run in self.live if run.pool == "kaggle"], free - used, now
            for end in sorted({min(run.end, EPOCH + (week + 1) * WEEK) for run in live}):
                running = [run for run in live if run.end >= end]
                if len(running) * (end - since) > left:
                    for run in running:
                        run.cut(since + left // len(running))
                    break
                left, since = left - len(running) * (end - since), end

    def _launch(self, model: Model, pool: str, now: int, planned_end: int) -> None:
        if self.closed[pool] > now:
            return
        if pool == "sagemaker" and self.faults.random() < REFUSED:
            self.closed[pool] = now + RETRY_SECONDS
            return
        rate = FAILURES[pool]
        setup = model.setup * self.faults.lognormvariate(0.0, SETUP_SIGMA)
        length = planned_end - now - MARGIN_SECONDS
        dies = self.faults.expovariate(rate)
        times = checkpoint_times(length, setup, SAVE_SECONDS[pool], rate)
        speed = model.true[pool]
        saves, complete = saves_of(times, setup, SAVE_SECONDS[pool], (model.target - model.done) / speed, dies)
        lived = min(dies, saves[-1][0] if complete else planned_end - now)
        self.launched += 1
        run = Live(
            f"run-{self.launched}",
            model,
            pool,
            now,
            planned_end,
            now + max(1, math.ceil(lived)),
            setup,
            saves,
            complete,
        )
        model.running, model.last_pool = run.key, pool
        self.live.append(run)

    def _settle(self, now: int) -> None:
        for run in [found for found in self.live if found.end <= now]:
            self.live.remove(run)
            model, pool = run.model, run.pool
            length = run.end - run.start
            self.charges[pool].append(Charge(run.start, run.end))
            self.year.charged_seconds += length
            self.year.useful_seconds += run.useful_seconds
            for name, seconds in run.spent.items():
                self.year.spent[name] = self.year.spent.get(name, 0.0) + seconds
            cap = self.pools[pool].session_cap_seconds
            self.year.limit_seconds += length * efficiency(cap, model.setup, SAVE_SECONDS[pool], FAILURES[pool])
            kept = int(run.useful_seconds * model.true[pool])
            model.done = model.target if run.complete else min(model.target - 1, model.done + kept)
            model.running = None
            if run.useful_seconds > 0:
                model.believed = {name: model.true[name] for name in model.believed}
                model.sigma = 0.0
            if model.done >= model.target:
                model.finished_at = run.end
                self.year.finished += 1

    def _snapshot(self, now: int) -> Snapshot:
        jobs = []
        for position, model in enumerate(self.models):
            if model.finished_at is not None:
                continue
            jobs.append(
                JobView(
                    name=model.name,
                    weight=model.weight,
                    target_step=model.target,
                    done_step=model.done,
                    needs=Needs(),
                    rates={name: Rate(speed, model.sigma) for name, speed in model.believed.items()},
                    setup_seconds=dict.fromkeys(model.believed, model.setup),
                    checkpoint_seconds=SAVE_SECONDS,
                    gate=None if model.main else Gate(f"{model.name[:9]}-main", 0.4),
                    running=model.running,
                    last_pool=model.last_pool,
                    position=position,
                    reference_rate=1.0,
                    setup_sigma=dict.fromkeys(model.believed, SETUP_SIGMA),
                    kind=model.name[10:],
                )
            )
        for job in jobs:
            instants = self.history.setdefault(job.kind, {})
            instants.setdefault(job.name, (next(m.arrived for m in self.models if m.name == job.name), job))
        arrivals = tuple(
            Arrivals(kind, tuple(at for at, _ in found.values()), max(found.values(), key=lambda one: one[0])[1])
            for kind, found in self.history.items()
        )
        views = []
        for name, pool in self.pools.items():
            runs = tuple(
                LiveRun(run.key, run.start, run.planned_end, run.planned_end, (run.model.name,))
                for run in self.live
                if run.pool == name
            )
            held = tuple(Charge(run.start, run.deadline, held=True, run=run.key) for run in runs)
            others = self.taken if name == "kaggle" else []
            recent = tuple(charge for charge in (*self.charges[name], *others) if charge.end > now - 8 * DAY)
            observed: tuple[ObservedLimit, ...] = ()
            if name == "kaggle":
                week = (now - EPOCH) // WEEK
                start = EPOCH + week * WEEK
                limit = self.limits[min(week, self.weeks - 1)]
                observed = (ObservedLimit("week", start, start + WEEK, limit, now),)
            closed = self.closed[name] if self.closed[name] > now else None
            views.append(PoolView(pool, recent + held, runs, observed, closed, "refused"))
        finished = {m.name: 1.0 for m in self.models if m.finished_at is not None}
        return with_urgency(Snapshot(now, tuple(jobs), tuple(views), WEEK, finished, arrivals))

    def _close(self, end: int) -> Year:
        taken = sum(charge.end - charge.start for charge in self.taken)
        self.year.quota_seconds = sum(self.limits) + self.weeks * 7 * 4 * HOUR - taken
        for model in self.models:
            days = ((model.finished_at or end) - model.arrived) / DAY
            self.year.flow.append((model.weight, days))
        return self.year


def windows_over_endless() -> float:
    """Return what the ends of quota windows cost of the stochastic limit at the least, the two pools by their hours."""
    kaggle = window_over_endless(30 * HOUR, 12 * HOUR, 0.35 * HOUR, SAVE_SECONDS["kaggle"], FAILURES["kaggle"], 150)
    sagemaker = window_over_endless(4 * HOUR, 4 * HOUR, 0.2 * HOUR, SAVE_SECONDS["sagemaker"], FAILURES["sagemaker"])
    return (30 * kaggle + 28 * sagemaker) / 58


def overdrawn(simulation: Simulation) -> int:
    """Return how many quota windows of the year were charged more than they hold."""
    broken = 0
    for week, limit in enumerate(simulation.limits):
        start = EPOCH + week * WEEK
        charges = [*simulation.charges["kaggle"], *simulation.taken]
        broken += sum(charge.within(start, start + WEEK) for charge in charges) > limit
    charges = simulation.charges["sagemaker"]
    for quota in simulation.pools["sagemaker"].quotas:
        if isinstance(quota, RollingQuota):
            ends = {edge for c in charges for edge in (c.end, c.start + DAY, c.end + DAY)}
            spans = [(edge - DAY, edge) for edge in ends]
        else:
            spans = [(EPOCH + day * DAY, EPOCH + (day + 1) * DAY) for day in range(simulation.weeks * 7)]
        broken += sum(sum(charge.within(*span) for charge in charges) > 4 * HOUR for span in spans)
    return broken
