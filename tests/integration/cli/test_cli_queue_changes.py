"""A mistyped job: edited, removed, tried again, and a cancel that is undone."""

import json
import stat
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.catalogue import job_from_table
from jobs.definition import RANGES, table_of, toml_of
from jobs.spec import Gate, Input, JobSpec, Mixture, Needs, Requirements, Stall
from platforms.artifacts.directory import DirectoryStore
from scheduler.core import job as arrows
from scheduler.core.job import Cancelled, Failed, Queued
from scheduler.core.retention import Retention
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.upkeep.housekeeping import judge
from scheduler.store import checkpoints, events, jobs, rates, runs
from scheduler.store.engine import Database
from scheduler.store.verify import verify
from tests.integration.cli.conftest import NOW, Schedctl, spec, stored_checkpoint
from tests.lab.hub import COMMIT, NAME, TOKEN, StandInHub

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8)
plain = words.filter(lambda text: "{" not in text and bool(text.strip()))
spans = st.none() | st.just(0) | st.integers(60, 2_592_000)
specs = st.builds(
    JobSpec,
    name=st.just("a"),
    role=st.sampled_from(["main", "manager"]),
    command=st.lists(plain, min_size=1, max_size=3).map(tuple),
    target_step=st.integers(1, 10**12 - 1),
    steps_per_hour=st.floats(RANGES["steps_per_hour"].least, RANGES["steps_per_hour"].most),
    weight=st.floats(RANGES["priority"].least, RANGES["priority"].most),
    needs=st.builds(Needs, st.just(1), st.integers(1, 8), st.floats(0, 1e5), st.sampled_from(["fp16", "bf16"])),
    mixture=st.sampled_from([None, Mixture()]) | st.builds(Mixture, plain, st.floats(0, 1)),
    gate=st.none() | st.builds(Gate, plain.filter(lambda text: text != "a"), st.floats(0, 1)),
    pools=st.lists(words, max_size=2).map(tuple),
    seed=st.integers(0, 2**63 - 1),
    setup_seconds=st.integers(0, 604_800),
    checkpoint_seconds=st.integers(0, 604_800),
    device_speedup=st.lists(st.floats(0.01, 1_024), max_size=2).map(lambda gains: (1.0, *gains)),
    environment=st.dictionaries(st.from_regex(r"\AV[a-z]{1,5}\Z"), words, max_size=2),
    not_before=st.none() | st.integers(0, 10**9),
    deadline=st.none() | st.integers(10**9 + 1, 32_503_679_999),
    inputs=st.just(()) | st.just((Input("base", "hf:org/name@main"), Input("tests", "/data/tests"))),
    requirements=st.none() | st.just(Requirements("/srv/trainer/requirements.txt")),
    stall=st.builds(Stall, spans, spans, spans, st.just(0) | st.integers(1, 9), st.just(0) | st.integers(2, 9)),
)


@given(specs)
def test_a_definition_survives_the_way_through_its_file(found: JobSpec) -> None:
    import tomllib

    assert job_from_table(tomllib.loads(toml_of(table_of(found))), "f") == found


def test_one_key_is_changed_and_the_rest_stays(schedctl: Schedctl, world: Database) -> None:
    told = schedctl("--json", "queue", "edit", "ucm", "--set", "target_step=800", "--set", "needs.vram_gib=9.5")
    assert told.code == 0, told.err
    assert told.document["changed"] == ["target_step", "needs"]
    with world.read() as tx:
        found = jobs.get(tx, "ucm").spec
        last = events.tail(tx, limit=1)[0]
    assert found == replace(spec("ucm"), target_step=800, needs=Needs(1, 1, 9.5, "fp32"))
    assert (last.kind, last.subject, last.by, last.data["new"]["target_step"]) == ("job.changed", "ucm", "tester", 800)
    assert schedctl("queue", "edit", "ucm", "--set", "target_step=800").out == "ucm is unchanged.\n"
    schedctl("queue", "edit", "ucm", "--set", "deadline=2026-12-01T09:00:00Z", "--set", "environment.MODE=fast")
    cleared = schedctl("--json", "queue", "edit", "ucm", "--set", "deadline=", "--set", "environment.MODE=")
    assert cleared.document["job"]["deadline"] is None
    assert cleared.document["job"]["spec"]["environment"] == {}
    assert verify(world) == []


@pytest.mark.parametrize(
    ("job", "change", "code", "told"),
    [
        ("ucm", "target_step=0", 3, "queue edit ucm: target_step = 0: this number is out of range"),
        ("ucm", "wieght=3", 3, "did you mean weight?"),
        ("ucm", "weight", 2, "Write it as KEY=VALUE"),
        ("ucm", "seed.x=3", 2, "seed is no table"),
        ("ucm", "name=ucn", 6, "its name stays ucm"),
        ("ucm", "gate.parent=ucm", 3, "after.fraction: is missing"),
        ("ucm", "after.job=ucm", 3, "after.fraction: is missing"),
        ("uff-main", "target_step=2000", 6, "its session uff-uff-main-0001 was launched with its present target_step"),
        ("uff-main", "weight=9", 0, "weight"),
        ("ulm", "target_step=900", 6, "it is done. To train on from step 500"),
        ("nobody", "weight=1", 5, "no job has this name"),
    ],
)
def test_what_contradicts_is_refused_with_the_reason(
    schedctl: Schedctl, world: Database, job: str, change: str, code: int, told: str
) -> None:
    with world.read() as tx:
        before = jobs.everything(tx)
    found = schedctl("queue", "edit", job, "--set", change)
    assert found.code == code, found.err
    assert told in found.out + found.err
    with world.read() as tx:
        assert (jobs.everything(tx) == before) == (code != 0)


def test_a_checkpoint_holds_what_it_was_made_with(schedctl: Schedctl, world: Database) -> None:
    with world.write() as tx:
        jobs.note_progress(tx, "ucm", 300, None)
    assert "its checkpoint is at step 300" in schedctl("queue", "edit", "ucm", "--set", "target_step=300").err
    assert "was trained with seed 0" in schedctl("queue", "edit", "ucm", "--set", "seed=3").err
    gates = schedctl("queue", "edit", "uff-main", "--set", "gate={ parent = 'ufm', fraction = 0.5 }")
    assert "wait for each other: uff-main -> ufm -> uff-main" in gates.err
    unknown = schedctl("queue", "edit", "ucm", "--set", "gate={ parent = 'nobody', fraction = 0.5 }")
    assert "nobody, which is not in the queue" in unknown.err


def test_a_command_that_contradicts_the_recipe_of_the_checkpoint_is_refused_unless_told(
    schedctl: Schedctl, world: Database, artifacts: DirectoryStore
) -> None:
    def edited(command: str, *more: str) -> Any:
        return schedctl("queue", "edit", "ucm", "--set", f"command={json.dumps(command.split())}", *more)

    assert edited("train.py --rate 2e-4 --warm-up=100 --fast").code == 0
    recipe = b'{"rate": 0.0002, "warm_up": 100, "fast": true, "batch": 4, "model": "tiny"}'
    with world.write() as tx:
        attempt = jobs.note_launch(tx, "ucm", "desk")
        saved = stored_checkpoint(artifacts, "ucm", 300, attempt, "uff-ucm-0001", recipe=recipe)
        checkpoints.record(tx, saved, NOW)
        jobs.note_progress(tx, "ucm", 300, saved.key)
        before = jobs.get(tx, "ucm").spec.command
    refused = edited("train.py --rate 1e-5 --batch 4 --model other --fast")
    assert refused.code == 6, refused.err
    assert "at step 300 was made otherwise: model was tiny and would be other; rate was 0.0002 and" in refused.err
    assert "would be 1e-5; warm_up was 100 and is left out" in refused.err
    with world.read() as tx:
        assert jobs.get(tx, "ucm").spec.command == before
    assert edited("train.py --rate 0.0002 --warm-up 100.0 --fast --workers 3").code == 0
    told = edited("train.py --rate 1e-5", "--force")
    assert (told.code, "ucm has another command" in told.out) == (0, True), told.err


def test_a_start_is_one_word_although_a_gate_comes_with_it(schedctl: Schedctl, world: Database) -> None:
    told = schedctl("queue", "edit", "ucm", "--set", "start_from={ job = 'uff-main', at = 0.5 }", "--set", "gate=")
    assert (told.code, told.out) == (0, "ucm has another start_from.\n"), told.err


def test_an_editor_changes_a_job_on_a_terminal_only(
    schedctl: Schedctl, world: Database, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "here is no terminal" in schedctl("queue", "edit", "ucm").err
    editor = home / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^target_step = .*/target_step = 900/' \"$1\"\n")
    editor.chmod(editor.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("EDITOR", str(editor))
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    told = schedctl("queue", "edit", "ucm")
    assert (told.code, told.out) == (0, "ucm has another target_step.\n"), told.err
    with world.read() as tx:
        assert jobs.get(tx, "ucm").spec == replace(spec("ucm"), target_step=900)


def test_a_removed_job_frees_its_name_and_keeps_its_history(
    schedctl: Schedctl, world: Database, artifacts: DirectoryStore
) -> None:
    with world.write() as tx:
        rates.put(tx, rates.RateRecord(0.5, 0.1, 3, 240, 30, job="ulm", pool="desk", at=NOW))
    assert schedctl("queue", "remove", "ulm", "--yes").code == 0
    assert schedctl("queue", "show", "ulm").code == 5
    assert "ulm" not in schedctl("queue", "list").out
    assert "uff-ulm-0001" in schedctl("runs", "list").out
    assert schedctl("runs", "show", "uff-ulm-0001").code == 0
    assert schedctl("report", "weekly", "--week", "2026-W39").code == 0
    assert verify(world) == []

    add = ("queue", "add", "--name", "ulm", "--command", "x", "--target-step", "700")
    told = schedctl(*add)
    assert told.code == 0, told.err
    assert "starts from step 0" in told.err
    found = schedctl("--json", "queue", "show", "ulm").document["job"]
    # Attempts count on: launch keys and manifests are named after them. Nothing else is inherited.
    assert (found["attempts"], found["done_step"], found["failures"], found["checkpoint"]) == (1, 0, 0, None)
    with world.write() as tx:
        assert checkpoints.newest(tx, "ulm") == []
        assert rates.of_job(tx, "ulm") == []
        assert runs.recent(tx, job="ulm")[0].key == "uff-ulm-0001"
        assert jobs.note_launch(tx, "ulm", "desk") == 2
        # What its own session saves is its own, although the removed one had come farther.
        mine = stored_checkpoint(artifacts, "ulm", 100, 2, "uff-ulm-0002")
        checkpoints.record(tx, mine, NOW)
        jobs.note_progress(tx, "ulm", 100, mine.key)
        assert [one.manifest.step for one in checkpoints.newest(tx, "ulm")] == [100]
        verdicts = {one.record.manifest.step: one.verdict for one in judge(tx, Retention(), NOW, "ulm")}
    assert verdicts[100].stays
    assert verdicts[500].why == "from before the job was restarted"
    assert verify(world) == []
    assert schedctl(*add).code == 6


def test_a_removed_job_may_be_gone_on_from(schedctl: Schedctl, world: Database) -> None:
    schedctl("queue", "remove", "ulm", "--yes")
    add = ("queue", "add", "--name", "ulm", "--command", "x", "--continue", "--target-step")
    assert "its target is 400" in schedctl(*add, "400").err
    (found,) = schedctl("--json", *add, "700").document["jobs"]
    assert (found["attempts"], found["done_step"]) == (1, 500)
    with world.read() as tx:
        assert [one.manifest.step for one in checkpoints.newest(tx, "ulm")] == [500]
    assert verify(world) == []
    never = schedctl("queue", "add", "--name", "new", "--command", "x", "--continue", "--target-step", "5")
    assert (never.code, "there was never a job new" in never.err) == (6, True)


def test_what_is_needed_is_not_removed(schedctl: Schedctl, world: Database) -> None:
    planned_lane = schedctl("queue", "remove", "uff-main", "--yes")
    assert (planned_lane.code, "has a lane in uff-uff-main-0001" in planned_lane.err) == (6, True)
    with world.write() as tx:
        jobs.add(tx, spec("waits", gate=Gate("ucm", 0.5)), NOW)
    parent = schedctl("queue", "remove", "ucm", "--yes")
    assert (parent.code, "waits would wait for it for ever" in parent.err) == (6, True)
    assert schedctl("queue", "edit", "waits", "--set", "gate=").code == 0
    assert schedctl("queue", "remove", "ucm", "--yes").code == 0
    with world.read() as tx:
        assert [job.position for job in jobs.everything(tx)] == [1, 2, 3, 4, 5]
        assert [job.spec.name for job in jobs.everything(tx)][-1] == "waits"


def test_a_failed_job_is_tried_again(schedctl: Schedctl, world: Database) -> None:
    with world.write() as tx:
        jobs.note_failures(tx, "ucm", 5)
        jobs.change_state(tx, "ucm", jobs.get(tx, "ucm").state, Failed("oom", "out of memory", NOW), "fail", NOW)
    assert schedctl("queue", "retry", "ucm").out == "ucm is tried again.\n"
    with world.read() as tx:
        found = jobs.get(tx, "ucm")
        assert (type(found.state), found.failures) == (Queued, 0)
        assert events.tail(tx, limit=1)[0].kind == "job.retry"
    again = schedctl("queue", "retry", "ucm")
    assert (again.code, "cannot retry ucm: it is queued" in again.err) == (6, True)
    with world.write() as tx:
        jobs.change_state(tx, "ucm", jobs.get(tx, "ucm").state, Queued(NOW, NOW + 900), "requeue", NOW)
    assert schedctl("queue", "retry", "ucm").code == 0


def test_a_cancel_can_be_undone_until_the_work_is_gone(schedctl: Schedctl, world: Database) -> None:
    with world.read() as tx:
        before = jobs.get(tx, "uff-main").state
    schedctl("queue", "cancel", "uff-main")
    assert schedctl("queue", "release", "uff-main").code == 0
    schedctl("queue", "cancel", "ucm")
    assert schedctl("queue", "release", "ucm").code == 0
    with world.write() as tx:
        assert jobs.get(tx, "uff-main").state == before
        assert isinstance(jobs.get(tx, "ucm").state, Queued)
        # One that has saved, and whose checkpoint went since.
        record = jobs.get(tx, "ulm")
        jobs.change_state(tx, "ulm", record.state, Cancelled("ann", NOW), "cancel", NOW)
        assert record.checkpoint is not None
        checkpoints.expire(tx, record.checkpoint, "gone", NOW)
    told = schedctl("queue", "release", "ulm")
    assert (told.code, "the checkpoints of ulm are deleted" in told.err) == (6, True)
    assert isinstance(arrows.remove(Cancelled("ann", NOW), "ann", NOW), Cancelled)


def test_an_input_is_taken_from_the_command_line_and_taken_anew(
    schedctl: Schedctl, world: Database, tmp_path: Path
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "one").write_text("first")
    words = ("queue", "add", "--name", "mine", "--command", "/bin/true", "--target-step", "10")
    told = schedctl(*words, "--input", f"tests={tmp_path}/tests")
    assert told.code == 0, told.err
    with world.read() as tx:
        (first,) = jobs.get(tx, "mine").spec.inputs
    assert f"{first.digest[:12]}, 1 file, 5 B, of {tmp_path}/tests" in schedctl("queue", "show", "mine").out
    assert json.loads(schedctl("--json", "queue", "update", "mine", "--input", "tests").out)["changed"] is False
    (tmp_path / "tests" / "one").write_text("other")
    told = schedctl("queue", "update", "mine", "--input", "tests")
    with world.read() as tx:
        (second,) = jobs.get(tx, "mine").spec.inputs
    assert (told.code, second.digest != first.digest) == (0, True), told.err
    assert f"mine has tests from its next session on: {second.digest[:12]}" in told.out
    lane = Lane(0, "mine", 1, (0,), None, trees={"input.tests": f"input/{second.digest}"})
    with world.write() as tx:
        jobs.note_launch(tx, "mine", "desk")
        runs.insert(tx, Run("uff-mine-0001", "desk", (lane,), NOW, NOW + 9, NOW + 9, Reserved(NOW)), NOW)
    assert f"input/{second.digest}" in schedctl("runs", "show", "uff-mine-0001").out
    assert json.loads(schedctl("--json", "runs", "show", "uff-mine-0001").out)["run"]["lanes"][0]["trees"] == lane.trees
    for source, why in (
        ("tests", "it has two parts"),
        ("tests=/nowhere/at/all", "there is no such folder"),
        ("tests=job:ufm", "write start_from instead"),
        ("Tests=/tmp", "cannot be an input's name"),
        ("tests=gs://bucket", "nothing is known of gs:"),
        ("tests=kaggle-model:org/name/1", "names nothing at Kaggle"),
        ("tests=kaggle-model:org/name/pyTorch/tiny/0", "names nothing at Kaggle"),
    ):
        refused = schedctl(*words[:3], "other", *words[4:], "--input", source)
        assert refused.code in {2, 3}, refused.err
        assert why in refused.err
    refused = schedctl(*words[:3], "other", *words[4:], "--input", "tests=kaggle-dataset:org/name/1")
    assert refused.code == 7, refused.err
    assert "no credentials found. Put an access token" in refused.err


@pytest.mark.parametrize(
    "what", ["code/*/content.gz", "code/*/listing.json", "input/*/listing.json", "input/*/[0-9a-f]*"]
)
def test_what_is_damaged_in_the_store_is_sent_again_from_where_it_was_taken(
    schedctl: Schedctl, world: Database, artifacts: DirectoryStore, tmp_path: Path, what: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "one").write_text("first")
    words = ("queue", "add", "--name", "mine", "--command", "/bin/true", "--target-step", "10")
    given = ("--code", str(tmp_path / "mine"), "--input", f"tests={tmp_path}/mine")
    assert schedctl(*words, *given).code == 0
    whole = {key: artifacts.read(key) for key in artifacts.keys("") if key.startswith(("code/", "input/"))}
    (damaged,) = [key for key in whole if fnmatchcase(key, what) and (what[-1] != "*" or "listing" not in key)]
    assert artifacts.delete(damaged)
    artifacts.create(damaged, b"{}")
    word = "--code" if what.startswith("code") else "--input"
    told = schedctl("queue", "update", "mine", word, str(tmp_path / "mine") if word == "--code" else "tests")
    assert told.code == 0, told.err
    assert "damaged in the artifact store, and is sent again" in told.out + told.err
    assert {key: artifacts.read(key) for key in whole} == whole
    again = schedctl("queue", "update", "mine", word, str(tmp_path / "mine") if word == "--code" else "tests")
    assert "is sent again" not in again.out + again.err


def test_a_repository_is_pinned_from_the_command_line_and_a_gated_one_is_told(
    schedctl: Schedctl, world: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "queue",
        "add",
        "--command",
        "/bin/true",
        "--target-step",
        "10",
        "--input",
        f"base=hf:{NAME}@main",
        "--name",
    )
    with StandInHub({"config.json": b"{}", "weights.bin": bytes(5_000)}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        told = schedctl(*words, "mine")
        assert told.code == 0, told.err
        assert f", commit {COMMIT[:12]}, 2 files, 4.9 KiB, of hf:{NAME}@main" in schedctl("queue", "show", "mine").out
        hub.habits.gated = True
        refused = schedctl(*words, "other")
        assert (refused.code, "put a token that may read it into HF_TOKEN" in refused.err) == (3, True), refused.err
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        told = schedctl("--json", *words, "other")
    with world.read() as tx:
        assert jobs.get(tx, "other").spec.inputs[0].at_home
    assert (told.code, TOKEN in told.out + told.err) == (0, False)
