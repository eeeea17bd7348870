"""Weeks that nobody wishes for, through the command line: sensible plans, and one clear reason per waiting job."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.nouns.window import DAY
from jobs.spec import Gate, JobSpec
from scheduler.app import load_app
from scheduler.core.plan import Deferral, KeptHours, Plan
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import Outbid
from scheduler.planner.planner import Planner
from scheduler.planner.verify import verify
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.store import jobs, limits, plans
from scheduler.store.engine import Database

Schedctl = Callable[..., Any]
NOW = 1_790_000_000  # the instant at which the clock of the settings stands
YEAR_OF_STEPS = 100 * 24 * 366


def spec(name: str, **fields: Any) -> JobSpec:
    known: dict[str, Any] = {"role": "manager", "command": ("train",), "target_step": 500, "steps_per_hour": 100.0}
    return JobSpec(name=name, **{**known, **fields})


def plan_week(home: Path, database: Database, *specs: JobSpec) -> Plan:
    """Queue the jobs, plan as the daemon does, and store the plan."""
    app = load_app(home / "config.toml")
    with database.write() as tx:
        for one in specs:
            jobs.add(tx, one, NOW)
    with database.read() as tx:
        snapshot = load_snapshot(tx, app.pools, NOW, app.policy.horizon_seconds)
    plan = Planner(app.planning).plan(snapshot)
    assert verify(snapshot, plan) == []
    with database.write() as tx:
        plans.save(tx, plan, NOW)
    return plan


def test_a_week_without_quota_says_so(home: Path, database: Database, schedctl: Schedctl) -> None:
    """Kaggle grants nothing this week, and the desk is switched off; more hours would help."""
    settings = (home / "config.toml").read_text()
    (home / "config.toml").write_text(settings[: settings.index('[[pools]]\nname = "desk"')])
    quota = "GPU hours of the week"
    with database.write() as tx:
        limits.observe(tx, "kaggle", ObservedLimit(quota, NOW - 6 * DAY, NOW + 30 * DAY, 0, NOW))
    assert plan_week(home, database, spec("ufm")).placements == ()
    for words in (("plan", "show"), ("plan", "explain", "ufm")):
        typed = schedctl(*words)
        assert (typed.code, f"kaggle: no {quota} left" in typed.out) == (0, True), typed
    assert "1 job differs: 1 finish only now" in schedctl("plan", "what-if", "--pool", "kaggle=8").out


def test_no_job_at_all(home: Path, database: Database, schedctl: Schedctl) -> None:
    plan_week(home, database)
    shown = schedctl("plan", "show")
    assert (shown.code, shown.err) == (0, "")
    assert ": value 0.00" in shown.out
    assert schedctl("plan", "what-if", "--pool", "kaggle=5").out.endswith("The plan would be the same.\n")


def test_one_job(home: Path, database: Database, schedctl: Schedctl) -> None:
    plan = plan_week(home, database, spec("ufm"))
    assert len(plan.placements) == 1
    assert "ufm: starts on kaggle at Mon 2026-09-21" in schedctl("plan", "explain", "ufm").out


def test_a_job_larger_than_a_year_takes_what_there_is(home: Path, database: Database, schedctl: Schedctl) -> None:
    """It starts now, has all it can have of the week, and is said not to finish."""
    plan = plan_week(home, database, spec("whale", target_step=YEAR_OF_STEPS, deadline=NOW + 30 * DAY))
    assert {planned_lane.job for placed in plan.placements for planned_lane in placed.lanes} == {"whale"}
    # One job sits in one session at a time; what is left of the day when the desk is closed is kaggle's.
    assert sum(placed.end - placed.start for placed in plan.placements) > 30 * 3_600
    document = schedctl("plan", "what-if", "--pool", "kaggle=down", "--json").document
    (change,) = document["jobs"]
    assert (change["before"]["finish"], change["before"]["on_time"]) == (None, False)


def test_a_thousand_equal_jobs_keep_the_order_of_the_queue(home: Path, database: Database, schedctl: Schedctl) -> None:
    plan = plan_week(home, database, *(spec(f"job-{number:04}") for number in range(1_000)))
    assert sorted(planned_lane.job for placed in plan.due_now for planned_lane in placed.lanes) == [
        f"job-{n:04}" for n in range(4)
    ]
    assert len(plan.deferrals) == 996
    starts: dict[str, int] = {}
    for placed in plan.placements:
        for planned_lane in placed.lanes:
            starts.setdefault(planned_lane.job, placed.start)
    assert sorted(starts) == [f"job-{number:04}" for number in range(len(starts))]
    assert [starts[name] for name in sorted(starts)] == sorted(starts.values())
    (last,) = (line for line in schedctl("plan", "show").out.splitlines() if line.startswith("job-0999"))
    assert re.search(r"(desk|kaggle) goes to job-000\d; (planned on|cannot be planned before) ", last)


def test_all_gates_closed(home: Path, database: Database, schedctl: Schedctl) -> None:
    """A parent that was cancelled short of the gate will never open it; one that is held might."""
    children = (spec(f"child-{number}", gate=Gate("parent", 0.5)) for number in range(3))
    plan = plan_week(home, database, spec("parent"), *children)
    assert {deferral.reason.code for deferral in plan.deferrals} == {"gate"}
    assert schedctl("queue", "hold", "parent", "--why", "data are missing").code == 0
    assert plan_week(home, database).placements == ()
    assert "waits for parent at 50% (now 0.0%)" in schedctl("plan", "explain", "child-1").out


def test_a_week_planned_without_the_solver_warns_everywhere(
    home: Path, database: Database, schedctl: Schedctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child that would solve aborts: the plan is made, and plan show, what-if and status say what it lacks."""
    abort = (sys.executable, "-c", "import os; os.abort()")
    monkeypatch.setattr("scheduler.service.outside.solver_process.COMMAND", abort)
    plan = plan_week(home, database, spec("ufm"), spec("ucm"))
    assert plan.placements
    why = "no linear plan: the solver's process was ended by SIGABRT; planned with rough prices and without a bound"
    for words in (("plan", "show"), ("plan", "what-if", "--weight", "ufm=2"), ("status",)):
        typed = schedctl(*words)
        assert (typed.code, why in typed.err) == (0, True), typed
    assert schedctl("plan", "show", "--json").document["plan"]["warnings"] == [why]
    assert schedctl("status", "--json").document["plan_warnings"] == [why]


def test_hours_kept_for_work_that_is_expected_are_told(home: Path, database: Database, schedctl: Schedctl) -> None:
    """Whoever looks at the plan learns for whom a pool stands still, since when that is known, and how surely."""
    del home
    thursday = NOW + 2 * DAY
    kept = (
        KeptHours("uff-main", "kaggle", thursday, 57_240, 0.667, said=False),
        KeptHours("ufm", "kaggle", thursday + DAY, 3_600, 1.0, said=True),
    )
    waits = Deferral("ucm", Outbid("kaggle", "the next uff-main", None, None))
    with database.write() as tx:
        jobs.add(tx, spec("ucm"), NOW)
        plans.save(tx, Plan(NOW, (), (waits,), made_by="first call", kept=kept), NOW)
    told = schedctl("plan", "show").out
    assert "Reserved on kaggle: 15h 54m for the next uff-main, expected " in told
    assert "67 % sure." in told
    assert "1h 00m for the next ufm" in told
    assert "as its definition says." in told
    assert "the next uff-main" in schedctl("plan", "explain", "ucm").out
    (first, _) = schedctl("plan", "show", "--json").document["plan"]["kept"]
    assert first == {
        "kind": "uff-main", "pool": "kaggle", "expected_at": thursday, "seconds": 57_240, "sure": 0.667, "said": False
    }  # fmt: skip
