"""Every JSON shape: the keys that docs/reference/json.md promises, and no others."""

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.plan import Plan
from scheduler.store import plans
from scheduler.store.engine import Database
from scheduler.views.curve_forecasts import JobForecast

JOB = {
    "name",
    "role",
    "position",
    "state",
    "state_detail",
    "weight",
    "priority",
    "target_step",
    "done_step",
    "attempts",
    "failures",
    "last_pool",
    "not_before",
    "deadline",
    "created_at",
    "waits",
    "waiting",
}
WHOLE_JOB = JOB | {"checkpoint", "spec"}
RUN = {
    "key",
    "run_id",
    "pool",
    "state",
    "state_detail",
    "planned_start",
    "deadline",
    "held_until",
    "started",
    "ended",
    "outcome",
    "lanes",
    "waiting",
}
LANE = {
    "attempt",
    "begun_at",
    "code",
    "devices",
    "end_step",
    "error_class",
    "index",
    "job",
    "message",
    "outcome",
    "restore_step",
    "trees",
}
CHECKPOINT = {
    "key",
    "job",
    "step",
    "attempt",
    "run",
    "parent",
    "created_at",
    "trained_seconds",
    "bytes",
    "metrics",
    "components",
    "state",
    "why",
    "pinned",
    "seen_at",
}
METER = {
    "pool",
    "quota",
    "unit",
    "limit",
    "used",
    "held",
    "waited",
    "free",
    "start",
    "end",
    "resets_at",
    "source",
    "as_of",
}
POOL = {
    "name",
    "image",
    "state",
    "platform",
    "accelerator",
    "devices_per_session",
    "sessions_max",
    "device_counts",
    "devices_max",
    "sessions_live",
    "gpu_memory_bytes",
    "gpu_busy",
    "gpu_watts",
    "gpu_throttled",
    "session_cap_seconds",
    "session_seconds_min",
    "vram_gib",
    "dtypes",
    "price_microdollars_per_hour",
    "hours",
    "quotas",
    "source",
    "as_of",
    "closed_until",
    "closed_why",
}
PLAN = {"made_at", "made_by", "digest", "value", "bound", "warnings", "placements", "deferrals", "kept"}
CHANGES = {"jobs", "pools", "value_before", "value_after"}
OUTLOOK = {"start", "finish", "session_seconds", "steps", "on_time"}
HEAD = {"made_at", "made_by", "digest", "bound"}
EXPLAINED = {"job", "state", "state_detail", "answer", "reason", "share", "planned", "queues", "devices"}
FORECAST = {field.name for field in fields(JobForecast)}
KEY = "uff-uff-main-0001"
MANIFEST = "jobs/ulm/manifests/000000000500-000001.json"

# command -> the keys of its document, of the things in it, and of what those hold
SHAPES: list[tuple[str, Mapping[str, Any]]] = [
    ("queue list", {"jobs": [JOB]}),
    (
        "queue show ufm",
        {"job": WHOLE_JOB | {"generations", "rates", "runs", "share", "stop", "training", "training_data"}},
    ),
    ("queue forecast ufm", {"forecast": FORECAST}),
    (
        "advise hours",
        {"advice": {"start", "end", "hours", "free_hours", "jobs", "for_tpu", "half_empty"}},
    ),
    ("queue add --name new --command train --target-step 5", {"jobs": [WHOLE_JOB]}),
    ("queue hold ucm", {"job": WHOLE_JOB}),
    ("queue release urm", {"job": WHOLE_JOB}),
    ("queue cancel ucm", {"job": WHOLE_JOB}),
    ("queue priority ucm 2", {"job": WHOLE_JOB}),
    ("queue move ucm 1", {"job": WHOLE_JOB}),
    ("plan show", {"plan": PLAN, "week": {"start", "end", "lanes", "gaps", "expected"}}),
    ("plan explain ucm", dict.fromkeys(EXPLAINED)),
    (
        "plan what-if --pool kaggle=down --weight ucm=3",
        {"plan": PLAN, "pools": None, "value_before": None, "value_after": None, "jobs": None},
    ),
    ("quota", {"quotas": [METER]}),
    ("pools", {"pools": [POOL]}),
    ("pools list", {"pools": [POOL]}),
    ("pools open kaggle", {"pool": POOL}),
    ("pools close kaggle", {"pool": POOL}),
    ("runs list", {"runs": [RUN]}),
    (f"runs show {KEY}", {"run": RUN | {"events", "charged_seconds", "waited_seconds"}}),
    (f"runs stop {KEY}", {"run": RUN, "told": None, "unreachable": None}),
    ("checkpoints list", {"checkpoints": [CHECKPOINT]}),
    ("checkpoints retention", {"checkpoints": [{"key", "bytes", "stays", "why", "delete_at"}]}),
    ("checkpoints verify", {"checkpoints": [{"key", "good", "findings"}]}),
    (f"checkpoints pin {MANIFEST}", {"checkpoint": CHECKPOINT}),
    (f"checkpoints unpin {MANIFEST}", {"checkpoint": CHECKPOINT}),
    ("doctor", {"checks": [{"check", "grade", "found", "remedy"}]}),
    ("db init", {"from": None, "to": None}),
    ("db upgrade", {"from": None, "to": None}),
    ("db verify", {"problems": None}),
    ("db restored", {"restored": None}),
    ("config show", {"settings": [{"key", "value", "source"}]}),
    ("config check", {"pools": None, "models": None, "warnings": None}),
    ("version", {"version": None, "python": None}),
]


@pytest.mark.parametrize(("words", "shape"), SHAPES, ids=[words for words, _ in SHAPES])
def test_a_command_answers_in_the_shape_it_promises(
    words: str, shape: Mapping[str, Any], world: Database, schedctl: Callable[..., Any]
) -> None:
    document = schedctl(*words.split(), "--json").document
    assert set(document) == set(shape)
    for key, promised in shape.items():
        match promised:
            case [keys]:
                assert document[key]
                assert all(set(entry) == keys for entry in document[key])
            case set():
                assert set(document[key]) == promised


@pytest.mark.parametrize("words", [words for words, _ in SHAPES])
def test_json_may_be_asked_for_before_the_command_too(
    words: str, world: Database, schedctl: Callable[..., Any]
) -> None:
    assert schedctl("--json", *words.split()).document


def test_the_lanes_of_a_run_have_one_shape(world: Database, schedctl: Callable[..., Any]) -> None:
    listed = schedctl("runs", "list", "--json").document["runs"]
    shown = schedctl("runs", "show", KEY, "--json").document["run"]
    assert all(set(lane) == LANE for run in listed for lane in run["lanes"])
    assert all(set(lane) == LANE | {"heartbeat", "parent"} for lane in shown["lanes"])
    assert shown["lanes"][0]["heartbeat"]["step"] == 120


def test_pull_says_what_it_copied(world: Database, home: Path, schedctl: Callable[..., Any]) -> None:
    target = home / "copy"
    document = schedctl("checkpoints", "pull", "ulm", str(target), "--json").document
    assert document == {
        "key": MANIFEST,
        "step": 500,
        "folder": str(target),
        "files": ["weights.npz", "optimizer/state.json"],
        "code": None,
    }


def test_backup_and_restore_say_what_they_wrote(world: Database, home: Path, schedctl: Callable[..., Any]) -> None:
    copy = home / "copy.db"
    written = schedctl("db", "backup", str(copy), "--json").document
    assert written == {"file": str(copy), "bytes": copy.stat().st_size}
    world.close()
    assert schedctl("db", "restore", str(copy), "--json").document == {"restored": str(copy)}


def test_logs_are_one_object_a_line(world: Database, schedctl: Callable[..., Any]) -> None:
    words = ("runs", "logs", KEY, "--lane", "1", "--json")
    assert schedctl(*words).out.splitlines() == ['{"line": "step 7"}', '{"line": "[agent lane 1] saved"}']
    raw = schedctl(*words, "--raw").out.splitlines()
    assert raw == ['{"line": "\\u001b[31mstep 7\\u001b[0m"}', '{"line": "[agent lane 1] saved"}']


def test_a_log_into_a_pipe_or_a_file_steers_no_terminal_unless_asked(
    world: Database, schedctl: Callable[..., Any]
) -> None:
    """Standard output is no terminal here: what stands in a file is shown on one sooner or later."""
    assert schedctl("runs", "logs", KEY, "--lane", "1").out == "step 7\n[agent lane 1] saved\n"
    assert schedctl("runs", "logs", KEY, "--lane", "1", "--raw").out == "\x1b[31mstep 7\x1b[0m\n[agent lane 1] saved\n"


def test_without_a_plan_the_plan_is_null(database: Database, schedctl: Callable[..., Any]) -> None:
    assert schedctl("plan", "show", "--json").document == {"plan": None, "week": None}


def test_a_comparison_has_both_plans_their_sessions_and_the_changes(
    world: Database, schedctl: Callable[..., Any]
) -> None:
    with world.write() as tx:
        plans.save(tx, Plan(1_790_000_100, (), ()), 1_790_000_100)
    document = schedctl("plan", "diff", "--json").document
    assert set(document) == CHANGES | {"before", "after", "sessions"}
    assert set(document["before"]) == set(document["after"]) == HEAD
    assert [set(found) for found in document["sessions"]] == [{"change", "before", "after"}]
    assert [set(found["before"]) for found in document["jobs"]] == [OUTLOOK]
    assert [set(found) for found in document["pools"]] == [{"pool", "seconds_before", "seconds_after"}]


def test_instants_are_whole_utc_seconds(world: Database, schedctl: Callable[..., Any]) -> None:
    run = schedctl("runs", "list", "--json").document["runs"][0]
    assert run["started"] == 1_790_000_000 - 3_600
    assert isinstance(run["deadline"], int)


def test_the_reference_names_every_key(repository: Path) -> None:
    """Users build on docs/reference/json.md: every promised key is listed there."""
    reference = (repository / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
    named = set(re.findall(r"""[`"]([a-z_]+)[`"]""", reference))
    promised = WHOLE_JOB | RUN | LANE | CHECKPOINT | METER | POOL | PLAN | EXPLAINED | CHANGES | OUTLOOK
    top = {key for _, shape in SHAPES for key in shape}
    assert promised | top <= named
