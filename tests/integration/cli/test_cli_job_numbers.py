"""Every number of a job file, with whatever somebody may write: told by file, key, value and range, and never added."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from jobs.definition import RANGES
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY
from jobs.spec import Gate, JobSpec, Mixture, Needs, Share
from scheduler.core.reasons import BadDefinition
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW, Schedctl, spec

_WRITTEN = {
    "device_speedup": "device_speedup = [1.0, {}]",
    "needs.devices": "needs = {{ devices = [1, {}] }}",
    "needs.vram_gib": "needs = {{ vram_gib = {} }}",
    "mixture.extra_share": 'mixture = {{ domain = "ufm", extra_share = {} }}',
    "after.fraction": 'after = {{ job = "uff-main", fraction = {} }}',
    "after.step": 'after = {{ job = "uff-main", step = {} }}',
    "share.percent": 'share = {{ with = "uff-main", percent = {} }}',
    "stop.least": 'stop = {{ metric = "loss", patience = 3, least = {} }}',
    **{
        f"evaluation.{name}": f'evaluation = {{{{ command = ["x"], set = "/items.jsonl", {name} = {{}} }}}}'
        for name in ("longest", "within")
    },
    **{
        f"stall.{name}": f"stall = {{{{ {name} = {{}} }}}}"
        for name in ("first_progress", "no_progress", "checkpoint", "loss_nan", "same_error")
    },
    **{
        f"halving.{name}": f'sweep = "lr"\nhalving = {{{{ metric = "loss", {rest}{name} = {{}} }}}}'
        for name, rest in {
            "budget": "candidates = 3, rungs = [10, 300], ",
            "candidates": 'budget = "4h", rungs = [10, 300], ',
            "factor": 'budget = "4h", candidates = 3, rungs = [10, 300], ',
        }.items()
    },
    "stop.value": 'stop = {{ metric = "loss", value = {} }}',
}
_NEVER = {
    "far too large": "1e308",
    "infinite": "inf",
    "below": "-1",
    "not a number": "nan",
    "400 digits": "9" * 400,
    "5,000 digits": "9" * 5_000,
    "16,000 bits": "0x" + "f" * 4_000,
    "a truth value": "true",
    "beyond 64 bits": str(2**63),
    "a text": '"many"',
    "an empty text": '""',
    "a list": "[1]",
    "a table": "{ a = 1 }",
    "a time": "07:32:00",
    "lists in lists": "[" * 3_000 + "]" * 3_000,
}
_TINY = {"too small": "1e-310", "zero": "0"}


def job_file(folder: Path, key: str, value: str) -> Path:
    """Write a job whose only fault is one value."""
    lines = {
        "name": 'name = "odd"',
        "role": 'role = "manager"',
        "command": 'command = ["{python}", "train.py"]',
        "target_step": "target_step = 10",
        "steps_per_hour": "steps_per_hour = 100",
    }
    lines[key] = _WRITTEN.get(key, key + " = {}").format(value)
    path = folder / "odd.toml"
    path.write_text("\n".join(lines.values()))
    return path


@pytest.mark.parametrize("key", RANGES)
def test_no_absurd_number_is_added(schedctl: Schedctl, world: Database, home: Path, key: str) -> None:
    absurd = {what: value for what, value in _NEVER.items() if what != "below" or RANGES[key].least > -1}
    if RANGES[key].least > 0:
        absurd |= _TINY
    if key in {"mixture.extra_share", "after.fraction"}:
        absurd["above one"] = "1.000001"
    for what, value in absurd.items():
        path = job_file(home, key, value)
        found = schedctl("queue", "add", str(path))
        assert (found.code, found.out) == (3, ""), (key, what, found.out, found.err)
        assert "unexpected" not in found.err
        assert str(path) in found.err
        if what not in {"5,000 digits", "lists in lists"}:  # which no TOML reader gets past
            assert f"{key} = " in found.err or value.startswith("{"), (key, what, found.err)
            assert all(len(line) < 400 for line in found.err.splitlines()), (key, what)
    with world.read() as tx:
        assert jobs.find(tx, "odd") is None


@pytest.mark.parametrize("key", RANGES)
def test_what_is_out_of_range_says_the_range(schedctl: Schedctl, world: Database, home: Path, key: str) -> None:
    span = RANGES[key].unit == "seconds"
    value = "999w" if span else "1e15" if not RANGES[key].whole else str(10**20)
    found = schedctl("queue", "add", str(job_file(home, key, f'"{value}"' if "w" in value else value)))
    assert found.code == 3
    expected = "between 1970 and 3000" if key in {"not_before", "deadline"} else str(RANGES[key])
    if span:
        expected = '"{}" to "{}"'.format(*expected.split(" to "))
    assert expected in found.err


@pytest.mark.parametrize("words", [("--steps-per-hour", "1e308"), ("--weight", "nan"), ("--vram-gib", "-1")])
def test_options_are_held_to_the_same_ranges(schedctl: Schedctl, world: Database, words: tuple[str, str]) -> None:
    found = schedctl("queue", "add", "--name", "odd", "--command", "x", "--target-step", "5", *words)
    assert found.code == 3
    assert "command line: " in found.err
    assert "unexpected" not in found.err
    assert schedctl("queue", "priority", "ucm", "1e308").code == 2
    assert schedctl("plan", "what-if", "--weight", "ucm=1e308").code == 2
    assert schedctl("plan", "what-if", "--pool", "kaggle=1e308").code == 2


def test_of_a_catalogue_with_one_absurd_number_nothing_is_added(
    schedctl: Schedctl, database: Database, home: Path
) -> None:
    models = (home / "models.toml").read_text()
    (home / "models.toml").write_text(models + "steps_per_hour = 1e308\n".replace("steps_per_hour", "weight"))
    found = schedctl("queue", "add", "--models")
    assert found.code == 3
    assert "jobs.ufm.weight = 1e+308" in found.err
    with database.read() as tx:
        assert jobs.everything(tx) == []
    assert schedctl("plan", "what-if", "--add-job", str(job_file(home, "weight", "1e308"))).code == 3


_CORNERS: list[dict[str, Any]] = [
    {"target_step": target, "steps_per_hour": speed, "weight": weight}
    for target, speed, weight in product(
        (1, RANGES["target_step"].most),
        (RANGES["steps_per_hour"].least, RANGES["steps_per_hour"].most),
        (RANGES["priority"].least, RANGES["priority"].most),
    )
] + [
    {"setup_seconds": RANGES["setup"].most, "checkpoint_seconds": RANGES["checkpoint"].most},
    {"setup_seconds": 0, "checkpoint_seconds": 0, "deadline": 0},
    {"deadline": NOW + 1},
    {"deadline": RANGES["deadline"].most, "not_before": RANGES["not_before"].most - 1},
    {"device_speedup": (1.0, RANGES["device_speedup"].most), "needs": Needs(1, 2)},
    {"device_speedup": (1.0, RANGES["device_speedup"].least), "needs": Needs(1, 1_024, 1e5)},
    {"mixture": Mixture("ufm", 1.0), "seed": RANGES["seed"].most, "gate": Gate("uff-main", 1.0)},
    {"share": Share("uff-main", RANGES["share.percent"].least)},
    {"share": Share("uff-main", RANGES["share.percent"].most)},
]


def test_whatever_is_in_range_can_be_planned(schedctl: Schedctl, world: Database) -> None:
    with world.write() as tx:
        for number, corner in enumerate(_CORNERS):
            jobs.add(tx, spec(f"corner-{number}", **corner), NOW)
    for words in (("plan", "preview"), ("queue", "list"), ("queue", "show", "corner-1"), ("status",)):
        found = schedctl(*words)
        assert found.code == 0, (words, found.err)
        assert "went on without" not in found.err
    # Alone, each is planned as well: the worth of one must not hide what another does.
    with world.read() as tx:
        snapshot = load_snapshot(tx, {"a": Pool("a", "local", "x", vram_gib=1e5, devices_per_session=2)}, NOW, 7 * DAY)
    for view in snapshot.jobs:
        plan = dispatch(replace(snapshot, jobs=(replace(view, gate=None),)))
        assert plan.placements or plan.deferrals or view.running


_OLD: dict[str, dict[str, Any]] = {
    "steps_per_hour": {"steps_per_hour": 1e308},
    "slow": {"steps_per_hour": 1e-310},
    "priority": {"weight": 1e308},
    "needs.devices": {"needs": Needs(10**30, 10**400)},
    "needs.vram_gib": {"needs": Needs(1, 1, 1e308)},
    "device_speedup": {"device_speedup": (1.0, 5e-324)},
    "seed": {"seed": 2**70},
    "setup": {"setup_seconds": 3_162_240_000},
}


def test_what_an_older_version_let_in_waits_for_a_person_and_stops_nobody(schedctl: Schedctl, world: Database) -> None:
    names = {key: f"old-{number}" for number, key in enumerate(_OLD)}
    with world.write() as tx:
        for key, name in names.items():
            jobs.add(tx, spec(name, **_OLD[key]), NOW)
    preview = schedctl("--json", "plan", "preview")
    assert preview.code == 0, preview.err
    waits = {entry["job"]: entry["reason"] for entry in preview.document["plan"]["deferrals"]}
    for key, name in names.items():
        assert waits[name]["code"] == "definition"
        assert f"{'steps_per_hour' if key == 'slow' else key} = " in waits[name]["why"]
        assert f"queue edit {name}" in waits[name]["sentence"]
        for words in (("queue", "show", name), ("--json", "queue", "show", name)):
            assert schedctl(*words).code == 0, words
    assert {waits[name]["code"] for name in waits.keys() - set(names.values())}.isdisjoint({"definition"})
    for line in ("queue list", "status", "queue priority ucm 3"):
        assert schedctl(*line.split()).code == 0, line


def test_a_change_of_another_field_leaves_what_was_stored_as_it_was(world: Database) -> None:
    with world.write() as tx:
        jobs.add(tx, JobSpec("old", "manager", ("x",), 10, 1e308, seed=2**70), NOW)
        jobs.change_spec(tx, "old", NOW, "ann", position=1)
        jobs.change_spec(tx, "old", NOW, "ann", weight=4.0, seed=5)
        found = jobs.get(tx, "old")
    assert (found.spec.weight, found.spec.seed, found.position) == (4.0, 5, 1)
    assert [fault.split()[0] for fault in found.faults] == ["steps_per_hour"]
    with world.read() as tx:
        view = next(job for job in load_snapshot(tx, {}, NOW, 3_600).jobs if job.name == "old")
    assert isinstance(view.blocked, BadDefinition)


def test_the_ranges_are_documented() -> None:
    text = (Path(__file__).parents[3] / "docs/reference/settings.md").read_text(encoding="utf-8")
    for key, rule in RANGES.items():
        if rule.unit != "UTC seconds":
            assert f"- `{key}`: {rule}\n" in text


@pytest.mark.parametrize(("words", "told"), [("--deadline 2026-09-22T00:00:00Z", True), ("", False)])
def test_a_deadline_that_no_plan_can_keep_is_told_when_its_job_is_added(
    schedctl: Schedctl, database: Database, words: str, told: bool
) -> None:
    # 100 hours of work; the next day has ten on kaggle and twelve on the desk.
    add = ("queue", "add", "--name", "late", "--command", "x", "--target-step", "10000", "--steps-per-hour", "100")
    found = schedctl("--json", *add, *words.split())
    assert found.code == 0, found.err
    assert ("No plan can keep it" in found.err) == told
    waits = found.document["jobs"][0]["waits"]
    assert (waits is not None and waits["code"] == "deadline_unreachable") == told
    # A tenth of it can be done in time.
    again = schedctl("queue", "add", "--name", "soon", *add[4:6], "--target-step", "500", *words.split())
    assert again.code == 0
    assert "deadline" not in again.err
