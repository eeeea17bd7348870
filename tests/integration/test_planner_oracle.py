"""Our plans against the exact optimum: CP-SAT, in a process of its own, on small random cases."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import Gate, Needs
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.model.value import value
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import one_in
from tests.lab.planner.oracle import SCALE, OracleCase, OracleJob, OraclePool

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
NOW = 1_763_769_600 // DAY * DAY
OPTIONS = PlannerOptions(firm_deadlines=False)
# Ours over the optimum, worst and mean, as measured less a little. The worst is a day of three hours in which the
# optimum cuts the parent off at its child's gate, to give the child the last half hour across midnight.
FLOOR, MEAN = 0.69, 0.97
# Of the first 24 all that CP-SAT proves optimal within a few seconds, or some of them.
SEEDS = (6, 1, 2, 3, 5, 8, 11, 12, 13, 14, 15, 19, 20, 21, 22)[:: one_in()]
ROUNDING = 0.02  # worth of the steps that a whole second leaves over


def random_case(seed: int) -> Snapshot:
    """A day or two, one or two pools, two or three jobs; gates, deadlines, speeds of one to three."""
    rng = random.Random(seed)
    days = rng.choice((1, 2, 2))
    pools = tuple(
        Pool(
            f"pool-{number}",
            "fake",
            "gpu",
            (CalendarQuota("day", rng.randrange(3, 9) * HOUR, Calendar("day")),),
            sessions_max=rng.choice((1, 1, 2)),
            session_cap_seconds=rng.choice((3, 4, 6)) * HOUR,
            session_seconds_min=2 * HOUR,
            stop_margin_seconds=0,
        )
        for number in range(rng.choice((1, 2, 2)))
    )
    jobs = []
    for number in range(rng.randrange(2, 4)):
        names = [pool.name for pool in pools if rng.random() < 0.85] or [pools[0].name]
        jobs.append(
            JobView(
                name=f"job-{number}",
                weight=float(rng.randrange(1, 9)),
                target_step=rng.randrange(2 * HOUR, 7 * HOUR),
                done_step=0,
                needs=Needs(),
                rates={name: Rate(float(rng.choice((1, 1, 2, 3)))) for name in names},
                setup_seconds=dict.fromkeys(names, rng.randrange(300, 1_800)),
                checkpoint_seconds=dict.fromkeys(names, 0),
                gate=Gate("job-0", rng.choice((0.2, 0.5))) if number and rng.random() < 0.4 else None,
                deadline=NOW + rng.randrange(4, 48) * HOUR if rng.random() < 0.3 else None,
                reference_rate=1.0,
            )
        )
    return Snapshot(NOW, tuple(jobs), tuple(PoolView(pool) for pool in pools), days * DAY)


def as_oracle_case(snapshot: Snapshot) -> OracleCase:
    """The same case in the oracle's words, written from the definitions."""
    horizon = snapshot.horizon_seconds
    pools = []
    for view in snapshot.pools:
        pool, (quota,) = view.pool, view.pool.quotas
        assert isinstance(quota, CalendarQuota)
        windows = [[day * DAY, (day + 1) * DAY, quota.limit_seconds] for day in range(horizon // DAY + 1)]
        pools.append(
            OraclePool(pool.name, pool.sessions_max, pool.session_cap_seconds, pool.session_seconds_min, windows)
        )
    jobs = []
    for job in snapshot.jobs:
        deadline = horizon if job.deadline is None else min(job.deadline - NOW, horizon)
        edges = sorted({*range(DAY, horizon + 1, DAY), deadline})
        parent = next((found for found in snapshot.jobs if job.gate and found.name == job.gate.parent), None)
        jobs.append(
            OracleJob(
                job.name,
                job.target_step,
                {name: int(rate.steps_per_second) for name, rate in job.rates.items()},
                next(iter(job.setup_seconds.values())),
                [[edge, _worth(job, edge, deadline, horizon // DAY)] for edge in edges],
                parent.name if parent else None,
                -int(-(job.gate.fraction * parent.target_step - 1e-6) // 1) if parent and job.gate else 0,
            )
        )
    return OracleCase(horizon, pools, jobs)


def _worth(job: JobView, edge: int, deadline: int, days: int) -> int:
    """What a step just before ``edge`` is worth: weight, falling to a half, three tenths when late."""
    day = (edge - 1) // DAY
    exact = job.weight * (1 - 0.5 * day / days) * (1.0 if edge <= deadline else 0.3) * SCALE
    assert abs(exact - round(exact)) < 1e-6
    return round(exact)


def ask(cases: Sequence[OracleCase]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.lab.planner.oracle"],
        input="".join(case.to_json() + "\n" for case in cases),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def as_plan(snapshot: Snapshot, found: dict[str, Any]) -> Plan:
    placements = [
        Placement(pool, NOW + start, NOW + end, (PlannedLane(job, 1, steps),))
        for job, pool, start, end, steps in found["sessions"]
    ]
    return Plan(NOW, tuple(sorted(placements, key=lambda placed: placed.start)), ())


@dataclass(frozen=True)
class Compared:
    """One case planned by both, and the oracle's judgement of our plan."""

    snapshot: Snapshot
    ours: Plan
    best: dict[str, Any]
    judged: dict[str, Any]


@pytest.fixture(scope="module")
def compared() -> dict[int, Compared]:
    snapshots = [random_case(seed) for seed in SEEDS]
    plans = [Planner(OPTIONS).plan(snapshot) for snapshot in snapshots]
    cases = [as_oracle_case(snapshot) for snapshot in snapshots]
    fixed = [
        [[placed.lanes[0].job, placed.pool, placed.start - NOW, placed.end - NOW] for placed in plan.placements]
        for plan in plans
    ]
    judged = [replace(case, fixed=sessions) for case, sessions in zip(cases, fixed, strict=True)]
    answers = ask([*cases, *judged])
    best, judgements = answers[: len(cases)], answers[len(cases) :]
    return dict(zip(SEEDS, map(Compared, snapshots, plans, best, judgements), strict=True))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_of_ours_exceeds_the_optimum_nor_that_the_bound(seed: int, compared: dict[int, Compared]) -> None:
    found = compared[seed]
    assert found.best["status"] == "optimal"
    assert found.ours.bound is not None
    assert found.ours.value <= found.best["value"] + ROUNDING
    assert found.best["value"] <= found.ours.bound + ROUNDING


@pytest.mark.parametrize("seed", SEEDS)
def test_both_accept_and_value_each_others_plans(seed: int, compared: dict[int, Compared]) -> None:
    """Two models written apart: what one plans the other judges, rule by rule and to the same value."""
    found = compared[seed]
    assert found.judged["status"] == "optimal"
    assert found.judged["value"] == pytest.approx(found.ours.value, abs=ROUNDING)
    optimum = as_plan(found.snapshot, found.best)
    assert verify(found.snapshot, optimum) == []
    assert value(found.snapshot, optimum.placements) == pytest.approx(found.best["value"], abs=ROUNDING)


def test_the_oracle_refuses_what_breaks_a_rule(compared: dict[int, Compared]) -> None:
    """Two sessions at once where one is allowed."""
    case = as_oracle_case(compared[6].snapshot)
    assert case.pools[0].sessions_max == 1
    one, other = ["job-0", "pool-0", 0, 9_000], ["job-1", "pool-0"]
    first, second = ask([replace(case, fixed=[one, [*other, start, start + 9_000]]) for start in (9_000, 8_999)])
    assert (first["status"], second["status"]) == ("optimal", "infeasible")


def test_our_plans_come_near_the_optimum(compared: dict[int, Compared]) -> None:
    ratios = {seed: found.ours.value / found.best["value"] for seed, found in compared.items()}
    assert min(ratios.values()) >= FLOOR, ratios
    assert mean(ratios.values()) >= MEAN, ratios
