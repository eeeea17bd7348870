"""Scenarios: pools, jobs and a first day, drawn from a seed; and one that is always the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar, DailyHours
from jobs.spec import Halving, JobSpec, Needs, StartFrom, StopRule
from scheduler.core.halving import rungs_of
from scheduler.service.outside.ports import Policy
from tests.lab.simulation.mood import GOOD, Habits, Mood, draw_habits, draw_mood, later_troubles

if TYPE_CHECKING:
    from collections.abc import Callable

# Each changes its clocks on other days, two of them in the southern hemisphere, one by half an hour.
DST_ZONES = ("Europe/Berlin", "America/New_York", "America/Santiago", "Australia/Lord_Howe")
# Mondays shortly before clocks change in one or more of the zones.
_FIRST_DAYS = (1_774_224_000, 1_772_409_600, 1_774_828_800, 1_792_972_800, 1_775_433_600, 1_788_134_400, 1_790_553_600)
_SICK = 0.4
_UNLAUNCHABLE = 0.25
_SWEEPS = 0.25
_BUDGETS = 0.2  # of the jobs that no other waits for
_ANY_DAY = 1_767_571_200


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. ``weeks`` are simulated with faults; then the world is calm until all jobs are done."""

    seed: int
    zone: str  # of days, months and reports
    start: int
    weeks: float
    pools: tuple[Pool, ...]
    jobs: tuple[JobSpec, ...]
    mood: Mood
    habits: Habits
    policy: Policy
    unlaunchable: frozenset[str] = frozenset()  # jobs whose training data can never be made


def draw_scenario(seed: int, weeks: float = 2.0) -> Scenario:
    """Return the scenario of a seed."""
    rng = Random(seed)
    zone = rng.choice(DST_ZONES)
    pools = tuple(_renamed(kind(rng, zone), number) for number, kind in enumerate(_draw_kinds(rng)))
    overdue = rng.choice((120, 300, 900))
    start = (rng.choice(_FIRST_DAYS) if rng.random() < 0.6 else _ANY_DAY + rng.randrange(52) * WEEK) + rng.randrange(
        2 * DAY
    )
    jobs = _with_budgets(seed, _with_stop_rules(seed, _draw_jobs(rng, pools, weeks)))
    return Scenario(
        seed=seed,
        zone=zone,
        start=start,
        weeks=weeks,
        pools=pools,
        jobs=(*jobs, *_draw_sweep(seed)),
        mood=replace(draw_mood(rng), sick=_draw_sick(seed), **later_troubles(Random(f"later troubles of {seed}"))),
        habits=draw_habits(rng),
        policy=_policy(overdue, rng.choice((1, 2, 4)) * DAY),
        unlaunchable=_draw_unlaunchable(seed, jobs),
    )


def _with_stop_rules(seed: int, jobs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
    """Return jobs of which some stop early, by dice of their own."""
    rng = Random(f"stop rules in {seed}")
    rules = (StopRule("loss", patience=rng.choice((1, 3)), least=0.02), StopRule("loss", value=0.3))
    return tuple(replace(job, stop=rng.choice(rules)) if rng.random() < 0.25 else job for job in jobs)


def _with_budgets(seed: int, jobs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
    """Return jobs of which some have a budget that may be too small; never the one that others wait for."""
    rng = Random(f"budgets in {seed}")
    return jobs[:1] + tuple(
        replace(
            job, budget_seconds=max(60, round(job.target_step / job.steps_per_hour * HOUR * rng.choice((0.3, 1, 3))))
        )
        if rng.random() < _BUDGETS
        else job
        for job in jobs[1:]
    )


def _draw_sweep(seed: int) -> list[JobSpec]:
    """Draw the candidates of a sweep that is halved, with a budget that may be too small; most worlds have none."""
    rng = Random(f"sweep in {seed}")
    if rng.random() >= _SWEEPS:
        return []
    factor, count, speed, hours = rng.choice((2, 3)), rng.choice((3, 5, 9)), rng.choice((600, 3_600)), rng.uniform(1, 6)
    rungs = rungs_of(int(hours * speed), count, factor)
    budget = round(count * hours * HOUR * rng.choice((0.2, 0.5, 2.0)))
    setup = rng.choice((60, 600))
    rule = Halving("loss", budget, count, rungs, factor)
    spec = JobSpec("", "job", ("train",), rungs[0], speed, setup_seconds=setup, sweep="try", halving=rule)
    return [replace(spec, name=f"try-{number}") for number in range(count)]


def _draw_unlaunchable(seed: int, jobs: tuple[JobSpec, ...]) -> frozenset[str]:
    """Draw a job for which no launch is possible, from dice of its own; never the one that others wait for."""
    rng = Random(f"unlaunchable in {seed}")
    if len(jobs) == 1 or rng.random() >= _UNLAUNCHABLE:
        return frozenset()
    return frozenset({rng.choice(jobs[1:]).name})


def _draw_sick(seed: int) -> float:
    """Draw how many jobs fall sick, from dice of their own: worlds without any stay what they were."""
    rng = Random(f"sick in {seed}")
    return rng.uniform(0.3, 1.0) if rng.random() < _SICK else 0.0


def steady_scenario(weeks: float = 2.0, seed: int = 0) -> Scenario:
    """Return one small scenario without any trouble, for the exhaustive modes."""
    pools = (
        replace(_weekly(Random(1), "UTC"), name="weekly"),
        replace(_daily(Random(1), "America/New_York"), name="daily"),
    )
    return Scenario(
        seed=seed,
        zone="America/New_York",
        start=_FIRST_DAYS[1],
        weeks=weeks,
        pools=pools,
        jobs=_draw_jobs(Random(3), pools, weeks, count=3),
        mood=GOOD,
        habits=Habits(),
        policy=_policy(300, 2 * DAY),
    )


def swarm_scenario(seed: int, weeks: float = 2.0) -> Scenario:
    """Return what the swarm simulates: every second seed has short jobs as well."""
    return draw_scenario(seed, weeks) if seed % 2 else chained_scenario(seed, weeks)


def chained_scenario(seed: int, weeks: float = 2.0) -> Scenario:
    """Return the scenario of a seed with short jobs that come by and by, whose sessions have time for others."""
    drawn = draw_scenario(seed, weeks)
    rng = Random(f"short jobs in {seed}")
    short = [
        JobSpec(
            name=f"short-{number}",
            role="manager",
            command=("train",),
            target_step=max(10, int(600 * rng.uniform(0.1, 1.5))),
            steps_per_hour=600,
            weight=rng.choice((0.5, 1.0, 4.0)),
            not_before=drawn.start + int(rng.random() ** 2 * weeks * WEEK),
            setup_seconds=rng.choice((60, 600)),
        )
        for number in range(rng.choice((3, 6, 12)))
    ]
    return replace(drawn, jobs=(*drawn.jobs, *short))


def counted_scenario(seed: int, weeks: float = 2.0) -> Scenario:
    """Return the scenario of a seed with pools whose sessions ask for their devices, and jobs that are due."""
    drawn = draw_scenario(seed, weeks)
    rng = Random(f"devices in {seed}")
    jobs = tuple(
        replace(
            job,
            needs=Needs(1, rng.choice((1, 2, 4))),
            device_speedup=(1.0, 1.8, 1.8, rng.choice((1.7, 3.2))),
            deadline=rng.choice((None, drawn.start + int(rng.uniform(0.3, weeks) * WEEK))),
        )
        for job in drawn.jobs
    )
    return replace(drawn, pools=tuple(_counted(rng, pool) for pool in drawn.pools), jobs=jobs)


def _counted(rng: Random, pool: Pool) -> Pool:
    """Return the pool with counts of devices and twice the hours, counted by device; as it is where that cannot be."""
    if not all(isinstance(quota, CalendarQuota | RollingQuota) for quota in pool.quotas):
        return pool
    counts, most = rng.choice(((1, 2), (1, 2, 4), (1, 4))), rng.choice((4, 5, 8))
    quotas = tuple(
        replace(quota, limit_seconds=2 * quota.limit_seconds, by_device=True)
        for quota in pool.quotas
        if isinstance(quota, CalendarQuota | RollingQuota)
    )
    return replace(
        pool,
        quotas=quotas,
        device_counts=counts,
        devices_max=most,
        devices_per_session=counts[-1],
        sessions_max=most // counts[0],
        price_microdollars_per_hour=0,
        sharing=1.0,
    )


def _policy(overdue: int, horizon: int) -> Policy:
    return Policy(overdue_seconds=overdue, grace_seconds=overdue // 5, horizon_seconds=horizon)


def _draw_kinds(rng: Random) -> list[Callable[[Random, str], Pool]]:
    kinds: list[Callable[[Random, str], Pool]] = [_weekly, _daily, _rolling, _first_use, _money, _local]
    chosen = rng.sample(kinds, rng.choice((1, 2, 2, 3)))
    # One place at least must be able to finish what the others leave.
    return chosen if any(kind is not _local for kind in chosen) else [*chosen, _weekly]


def _renamed(pool: Pool, number: int) -> Pool:
    return replace(pool, name=f"{pool.name}-{number}")


def _pool(rng: Random, name: str, **fields: Any) -> Pool:
    return Pool(
        name=name,
        platform="simulated",
        accelerator="any",
        setup_seconds=rng.choice((120, 600)),
        start_delay_seconds=rng.choice((0, 180)),
        stop_margin_seconds=180,
        overrun_seconds=rng.choice((60, 300)),
        visibility_seconds=rng.choice((0, 120, 600)),
        options={"expected_device": "any"},
        **fields,
    )


def _weekly(rng: Random, zone: str) -> Pool:
    del zone
    quota = CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", weekday=5))
    lanes = rng.choice((1, 2))
    return _pool(
        rng, "weekly", quotas=(quota,), devices_per_session=lanes, sessions_max=rng.choice((1, 2)), sharing=0.9
    )


def _daily(rng: Random, zone: str) -> Pool:
    quota = CalendarQuota("day", 4 * HOUR, Calendar("day", zone, offset_seconds=rng.choice((0, 9_000))))
    return _pool(rng, "daily", quotas=(quota,), sessions_max=rng.choice((1, 2)))


def _rolling(rng: Random, zone: str) -> Pool:
    del zone
    return _pool(
        rng, "rolling", quotas=(RollingQuota("24 h", 6 * HOUR),), session_cap_seconds=rng.choice((4, 12)) * HOUR
    )


def _first_use(rng: Random, zone: str) -> Pool:
    del zone
    return _pool(rng, "first-use", quotas=(FirstUseQuota("24 h", 4 * HOUR),), session_cap_seconds=4 * HOUR)


def _money(rng: Random, zone: str) -> Pool:
    budget = MoneyQuota("budget", 40_000_000, Calendar("month", zone))
    hours = CalendarQuota("day", 6 * HOUR, Calendar("day", zone))
    return _pool(rng, "paid", quotas=(budget, hours), price_microdollars_per_hour=740_000)


def _local(rng: Random, zone: str) -> Pool:
    nights = DailyHours(zone, 20 * HOUR, 8 * HOUR)
    return _pool(rng, "local", hours=(nights,) if rng.random() < 0.7 else (), session_cap_seconds=8 * HOUR)


def _draw_jobs(rng: Random, pools: tuple[Pool, ...], weeks: float, count: int | None = None) -> tuple[JobSpec, ...]:
    count = count or rng.choice((1, 2, 3, 4, 7))
    hours = weeks * sum(_weekly_hours(pool) for pool in pools) * rng.uniform(0.3, 0.8)
    shares = [rng.uniform(0.3, 1.0) for _ in range(count)]
    jobs = []
    for number, share in enumerate(shares):
        steps_per_hour = rng.choice((100, 600, 3_600))
        two = rng.random() < 0.3 and all(pool.devices_per_session > 1 for pool in pools)
        jobs.append(
            JobSpec(
                name="main" if number == 0 else f"manager-{number}",
                role="main" if number == 0 else "manager",
                command=("train",),
                target_step=max(50, int(hours * share / sum(shares) * steps_per_hour)),
                steps_per_hour=steps_per_hour,
                weight=rng.choice((1.0, 1.0, 4.0)),
                needs=Needs(1, 2 if two else 1),
                **_beginning(number, rng),
                setup_seconds=rng.choice((60, 600)),
                device_speedup=(1.0, 1.8),
            )
        )
    return tuple(jobs)


def _beginning(number: int, rng: Random) -> dict[str, Any]:
    """Of the managers some wait for main, and half of those start from its weights."""
    if number < 2 or rng.random() >= 0.3:
        return {}
    start = StartFrom("main", 0.1)
    return {"gate": start.gate, "start_from": start if number % 2 else None}


def _weekly_hours(pool: Pool) -> float:
    for quota in pool.quotas:
        match quota:
            case CalendarQuota(limit_seconds=limit, calendar=calendar):
                return limit / HOUR * (7 if calendar.period == "day" else 1)
            case RollingQuota(limit_seconds=limit) | FirstUseQuota(limit_seconds=limit):
                return 7 * limit / HOUR
            case MoneyQuota(limit_microdollars=limit):
                return limit / pool.price_microdollars_per_hour / 4.4
    return 60.0
