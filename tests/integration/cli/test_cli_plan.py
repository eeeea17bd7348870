"""`schedctl plan diff`, `plan what-if` and the weight in `plan explain`, on a real database."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.spec import JobSpec
from scheduler.app import load_app
from scheduler.cli.shell.exits import Exit
from scheduler.core.job import activate
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.reasons import Outbid
from scheduler.core.run import Lane, Reserved, Run, Wait
from scheduler.planner.questions.orders import POLICIES
from scheduler.planner.questions.whatif import SetHours
from scheduler.service.requests import questions, queue
from scheduler.store import jobs, plans, queue_waits, runs
from scheduler.store.engine import Database

Schedctl = Callable[..., Any]
NOW = 1_790_000_000  # the instant at which the clock of the settings stands
HOUR = 3_600
ONE_SEAT = """
state_dir = "state"
[clock]
epoch = 1790000000.0
origin = 1.5e9
scale = 1e-9
[[pools]]
name = "kaggle"
platform = "local"
session_cap = "10h"
[[pools.quotas]]
name = "week"
kind = "week"
limit = "30h"
"""
JOB = 'name = "new"\nrole = "manager"\ncommand = ["train"]\ntarget_step = 100\nsteps_per_hour = 50\nweight = 9\n'


def job(name: str, **fields: Any) -> JobSpec:
    return JobSpec(
        name=name, role="manager", command=("train",), steps_per_hour=50.0, **{"target_step": 1_000, **fields}
    )


def planned_lane(pool: str, start: int, hours: int, name: str, steps: int = 50) -> Placement:
    return Placement(pool, NOW + start, NOW + start + hours * HOUR, (PlannedLane(name, 1, steps),))


def dump(database: Database) -> list[str]:
    """Everything that the database holds."""
    with database.read() as tx:
        return list(tx.connection.driver_connection.iterdump())  # type: ignore[union-attr]


@pytest.fixture
def contest(home: Path, database: Database) -> Database:
    """One place for one session and two jobs, of which big is worth five times as much as small."""
    (home / "config.toml").write_text(ONE_SEAT)
    with database.write() as tx:
        jobs.add(tx, job("big", weight=5.0), NOW)
        jobs.add(tx, job("small"), NOW)
    return database


@pytest.fixture
def two_plans(contest: Database) -> Database:
    """From plan to plan: big has started and saved, its rest and small moved, gone vanished, late appeared."""
    with contest.write() as tx:
        for name in ("gone", "late", "same"):
            jobs.add(tx, job(name, target_step=50), NOW - 9_000)
        first = (
            planned_lane("kaggle", -7_200, 10, "big", 500),
            planned_lane("kaggle", 40_000, 4, "small", 1_000),
            planned_lane("kaggle", 60_000, 2, "gone"),
            planned_lane("kaggle", 90_000, 2, "same"),
            planned_lane("kaggle", 120_000, 10, "big", 500),
        )
        plans.save(tx, Plan(NOW - 7_200, first, (), value=2.0), NOW - 7_200)
        run = Run(
            "uff-big-0001", "kaggle", (Lane(0, "big", 1, (0,), None),), NOW - 7_200, NOW + 30_000, NOW, Reserved(NOW)
        )
        jobs.note_launch(tx, "big", "kaggle")
        runs.insert(tx, run, NOW - 7_200)
        queued = jobs.get(tx, "big").state
        jobs.change_state(tx, "big", queued, activate(queued, run.key, NOW), "activate", NOW)
        jobs.note_progress(tx, "big", 500, "jobs/big/manifests/000000000500-000001.json")
        second = (
            planned_lane("kaggle", 50_000, 5, "small", 1_000),
            planned_lane("kaggle", 90_000, 2, "same"),
            planned_lane("kaggle", 99_000, 2, "late"),
            planned_lane("kaggle", 130_000, 10, "big", 500),
        )
        plans.save(tx, Plan(NOW - 60, second, (), value=3.0), NOW - 60)
    return contest


def test_preview_shows_what_the_daemon_would_plan_and_stores_nothing(contest: Database, schedctl: Schedctl) -> None:
    assert "schedctl plan preview" in schedctl("plan", "show").err
    before = dump(contest)
    plan = schedctl("plan", "preview", "--json").document["plan"]
    assert plan["made_at"] == NOW
    assert [planned_lane["job"] for planned_lane in plan["placements"][0]["lanes"]] == ["big"]
    assert [found["job"] for found in plan["deferrals"]] == ["small"]
    text = schedctl("plan", "preview").out
    assert f": value {plan['value']:.2f}" in text
    assert "[big=" in text
    assert dump(contest) == before


def test_what_if_tells_what_each_count_of_devices_means(contest: Database, schedctl: Schedctl) -> None:
    before = dump(contest)
    found = schedctl("plan", "what-if", "--devices", "small=1", "--json").document["devices"]["small"]
    assert [one["chosen"] for one in found if one["devices"] == 1] == [True] * len({one["pool"] for one in found})
    text = schedctl("plan", "what-if", "--devices", "small=1").out
    assert "small, trained without a break from now on:" in text
    assert "GPU HOURS" in text
    assert dump(contest) == before


def test_diff_tells_what_became_of_every_session(two_plans: Database, schedctl: Schedctl) -> None:
    document = schedctl("plan", "diff", "--json").document
    changes = [((it["before"] or it["after"])["lanes"][0]["job"], it["change"]) for it in document["sessions"]]
    assert changes == [
        ("big", "started"),
        ("small", "moved"),
        ("gone", "vanished"),
        ("late", "appeared"),
        ("big", "moved"),
    ]
    assert (document["before"]["made_at"], document["after"]["made_at"]) == (NOW - 7_200, NOW - 60)
    assert (document["value_before"], document["value_after"]) == (2.0, 3.0)


def test_diff_compares_finish_times_and_hours_of_the_jobs_that_differ(two_plans: Database, schedctl: Schedctl) -> None:
    found = {change["job"]: change for change in schedctl("plan", "diff", "--json").document["jobs"]}
    assert set(found) == {"big", "small", "gone", "late"}
    assert found["big"]["before"]["finish"] == NOW + 120_000 + 10 * HOUR
    assert found["big"]["after"]["finish"] == NOW + 130_000 + 10 * HOUR
    assert found["small"]["before"]["finish"] == NOW + 40_000 + 4 * HOUR
    assert found["small"]["after"]["finish"] == NOW + 50_000 + 5 * HOUR
    assert (found["gone"]["after"], found["late"]["before"]) == (None, None)
    text = schedctl("plan", "diff").out
    assert "of 4h 00m" in text
    assert "+3h 47m" in text
    assert "4h 00m -> 5h 00m" in text


def test_diff_since_compares_with_the_plan_in_force_then(two_plans: Database, schedctl: Schedctl) -> None:
    with two_plans.write() as tx:
        plans.save(tx, Plan(NOW, (), ()), NOW)
    assert schedctl("plan", "diff", "--json").document["before"]["made_at"] == NOW - 60
    for instant, made_at in ((NOW - 60, NOW - 60), (NOW - 61, NOW - 7_200)):
        assert schedctl("plan", "diff", "--since", str(instant), "--json").document["before"]["made_at"] == made_at


def test_equal_plans_are_said_to_be_equal(two_plans: Database, schedctl: Schedctl) -> None:
    with two_plans.write() as tx:
        newest = plans.newest(tx)
        assert newest is not None
        plans.save(tx, Plan(NOW, newest.placements, ()), NOW)
    assert "Both plan the same sessions." in schedctl("plan", "diff").out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("plan diff", Exit.NOT_FOUND, "there is no plan yet"),
        ("plan diff --since yesterday", Exit.USAGE, "2026-12-01T09:00:00Z"),
        ("plan what-if", Exit.USAGE, "Give --add-job, --pool, --priority, --devices or --policy"),
        ("plan what-if --devices smal=2", Exit.NOT_FOUND, "Did you mean small?"),
        ("plan what-if --devices small=0", Exit.USAGE, "a whole number from 1 to 1,024"),
        ("plan what-if --devices small", Exit.USAGE, "JOB=COUNT"),
        ("plan what-if --pool kagle=3", Exit.NOT_FOUND, "Did you mean kaggle?"),
        ("plan what-if --pool kagle=down", Exit.NOT_FOUND, "Did you mean kaggle?"),
        ("plan what-if --weight smal=3", Exit.NOT_FOUND, "Did you mean small?"),
        ("plan what-if --policy edff", Exit.USAGE, "Did you mean edf?"),
        ("plan what-if --policy random", Exit.USAGE, "random is none of"),
        ("plan what-if --pool kaggle", Exit.USAGE, "NAME=HOURS or NAME=down"),
        ("plan what-if --pool kaggle=lots", Exit.USAGE, "lots is no number"),
        ("plan what-if --pool kaggle=inf", Exit.USAGE, "inf is no number"),
        ("plan what-if --pool kaggle=-1", Exit.USAGE, "hours of a window are from 0 to 100,000"),
        ("plan what-if --weight small=0", Exit.USAGE, "is not in the range 0.001 to 1,000,000"),
        ("plan what-if --weight small=nan", Exit.USAGE, "nan is no number"),
        ("plan what-if --add-job missing.toml", Exit.CONFIG, "there is no such file"),
    ],
)
def test_a_mistake_gets_its_exit_code_and_a_way_out(
    words: str, code: Exit, message: str, contest: Database, schedctl: Schedctl
) -> None:
    typed = schedctl(*words.split())
    assert (typed.code, typed.out) == (code, ""), typed
    assert message in typed.err
    assert "Traceback" not in typed.err


def test_one_plan_alone_cannot_be_compared(contest: Database, schedctl: Schedctl) -> None:
    with contest.write() as tx:
        plans.save(tx, Plan(NOW, (), ()), NOW)
    assert schedctl("plan", "diff", "--json").error["exit_code"] == Exit.NOT_FOUND
    assert "no plan as old as --since" in schedctl("plan", "diff", "--since", str(NOW - 1)).err


def test_fewer_hours_and_more_jobs_at_once_show_what_they_cost(
    contest: Database, home: Path, schedctl: Schedctl
) -> None:
    (home / "job.toml").write_text(JOB)
    queue.change(contest, "big", NOW, "tester", deadline=NOW + 40 * HOUR)
    words = ("plan", "what-if", "--pool", "kaggle=12", "--add-job", str(home / "job.toml"))
    document = schedctl(*words, "--json").document
    assert set(document) == {"plan", "jobs", "pools", "value_before", "value_after"}
    changes = {change["job"]: change for change in document["jobs"]}
    assert changes["new"]["before"] is None
    assert changes["new"]["after"]["finish"] is not None
    assert changes["big"]["before"]["on_time"] is True
    assert changes["big"]["after"]["on_time"] is False
    text = schedctl(*words).out
    assert "met -> missed" in text
    assert "nothing is stored" in text


def test_a_pool_that_is_down_leaves_nothing_to_plan(contest: Database, schedctl: Schedctl) -> None:
    document = schedctl("plan", "what-if", "--pool", "kaggle=down", "--json").document
    assert document["plan"]["placements"] == []
    assert document["value_after"] == 0
    assert [change["seconds_after"] for change in document["pools"]] == [0]


def test_a_weight_may_name_a_job_added_in_the_same_question(contest: Database, home: Path, schedctl: Schedctl) -> None:
    (home / "job.toml").write_text(JOB)
    typed = schedctl("plan", "what-if", "--add-job", str(home / "job.toml"), "--weight", "new=0.001", "--json")
    first = min(typed.document["plan"]["placements"], key=lambda found: found["start"])
    assert [found["job"] for found in first["lanes"]] != ["new"]


def test_a_policy_makes_the_plan_and_the_help_names_them_all(contest: Database, schedctl: Schedctl) -> None:
    said = schedctl("plan", "what-if", "--help").out
    for name in POLICIES:
        assert schedctl("plan", "what-if", "--policy", name, "--json").document["plan"]["made_by"] == name
        assert name in said


def test_what_if_writes_nothing(contest: Database, home: Path, schedctl: Schedctl) -> None:
    (home / "job.toml").write_text(JOB)
    before = dump(contest)
    assert schedctl("plan", "what-if", "--add-job", str(home / "job.toml"), "--pool", "kaggle=5").code == 0
    assert dump(contest) == before


@pytest.mark.parametrize(
    ("changed", "code", "message"),
    [
        ('name = "small"', Exit.REFUSED, "a job of this name exists"),
        ('name = "x"\ngate = { parent = "nobody", fraction = 0.5 }', Exit.REFUSED, "nobody, which is not in the queue"),
    ],
)
def test_a_job_that_could_not_be_added_is_not_supposed_either(
    changed: str, code: Exit, message: str, contest: Database, home: Path, schedctl: Schedctl
) -> None:
    (home / "job.toml").write_text(JOB.replace('name = "new"', changed))
    typed = schedctl("plan", "what-if", "--add-job", str(home / "job.toml"))
    assert typed.code == code
    assert message in typed.err


def test_a_pool_without_a_quota_of_hours_cannot_get_others(world: Database, schedctl: Schedctl) -> None:
    typed = schedctl("plan", "what-if", "--pool", "desk=4")
    assert typed.code == Exit.REFUSED
    assert "desk has no quota of hours" in typed.err


def test_the_weight_that_would_start_an_outbid_job_is_true(contest: Database, schedctl: Schedctl) -> None:
    with contest.write() as tx:
        plans.save(tx, Plan(NOW, (), (Deferral("small", Outbid("kaggle", "big", 1.25, None)),)), NOW)
    document = schedctl("plan", "explain", "small", "--json").document
    weight = document["reason"]["weight_to_start"]
    assert f"would start now at priority {weight:.6g}" in document["answer"]
    assert "kaggle goes to big" in schedctl("plan", "explain", "small").out
    tried = schedctl("plan", "what-if", "--weight", f"small={weight}", "--json").document["plan"]
    now = [found for found in tried["placements"] if found["start"] <= NOW]
    assert [found["job"] for placement in now for found in placement["lanes"]] == ["small"]


def test_hours_asked_of_the_service_count_like_those_of_the_settings(contest: Database, home: Path) -> None:
    app = load_app(home / "config.toml")
    desk = questions.PlanningContext(contest, app.pools, NOW, app.policy.horizon_seconds, app.planning)
    _, same = questions.ask_what_if(desk, [], [SetHours("kaggle", 30.0)], None)
    assert same.nothing
    _, none = questions.ask_what_if(desk, [], [SetHours("kaggle", 0.0)], None)
    assert none.value_after == 0 < none.value_before


def test_a_share_is_told_where_people_ask(two_plans: Database, schedctl: Schedctl) -> None:
    refused = schedctl("queue", "edit", "small", "--set", "share={ with = 'nobody', percent = 30 }")
    assert refused.code != 0
    assert "there is no job nobody to share hours with" in refused.err
    edited = schedctl("queue", "edit", "small", "--set", "share={ with = 'big', percent = 30 }")
    assert edited.code == 0, edited.err
    assert "It shall have 30 % of its hours with big; none yet." in schedctl("plan", "explain", "small").out
    assert "30 % of its hours with big; none yet" in schedctl("queue", "show", "small").out
    share = schedctl("--json", "plan", "explain", "big").document["share"]
    assert share == {"partners": ["small"], "part": 0.7, "so_far": None}
    assert schedctl("plan", "preview").code == 0


def test_explain_says_why_a_session_waits_in_the_queue_of_its_pool(two_plans: Database, schedctl: Schedctl) -> None:
    with two_plans.write() as tx:
        run = runs.live(tx)[0]
        wait = Wait("pending: Priority (other jobs come first)", NOW + 3 * HOUR)
        queue_waits.record(tx, run.key, wait, NOW)
    told = f"{run.key} waits in the queue of kaggle: pending: Priority (other jobs come first), expected to start"
    assert f"big: active, {told}" in schedctl("plan", "explain", "big").out
    document = schedctl("plan", "explain", "small", "--json").document
    told_of = {"why": wait.why, "starts_at": wait.starts_at, "since": None, "place": None}
    assert document["queues"] == [{"pool": "kaggle", "run": run.key, **told_of}]
    (listed,) = (job for job in schedctl("queue", "list", "--json").document["jobs"] if job["name"] == "big")
    assert (listed["state"], listed["waiting"]) == ("active", told_of)
    (shown,) = schedctl("runs", "list", "--live", "--json").document["runs"]
    assert (shown["waiting"], shown["started"]) == (told_of, None)
    for screen in (("queue", "list"), ("runs", "list"), ("runs", "show", run.key), ("status",)):
        assert "wait" in schedctl(*screen).out, screen
    assert f"{told} Mon 21 Sep 17:13 UTC" in schedctl("plan", "explain", "small").out
    with two_plans.write() as tx:
        queue_waits.record(tx, run.key, None, NOW)
    assert "waits in the queue" not in schedctl("plan", "explain", "big").out
