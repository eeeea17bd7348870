"""`schedctl models`: from a done job to a version that is shown, promoted, taken back and given away."""

import hashlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from jobs.payload.scorers.items import read_items
from jobs.payload.store.manifest import Component, Manifest, blob_key
from platforms.artifacts.directory import DirectoryStore
from scheduler.cli.shell.exits import Exit
from scheduler.core.job import Done
from scheduler.service.versions.model_sync import case_of, judge_and_store
from scheduler.store import checkpoints, evaluations, jobs, lease
from scheduler.store.engine import Database
from tests.integration.cli.conftest import NOW
from tests.lab.releases import weights
from tests.lab.typed import Typed

SHA = {"state", "why", "step", "model", "number", "created_at"}
LISTED = {"name", "in_force", "promoted", "parent", "serving"} | SHA
VERSION = LISTED | {
    *("checkpoint", "digest", "code", "environment", "corpus", "mixture", "parent_number", "parent_key"),
    *("returned_parent", "children", "training", "evaluating", "evaluations", "verdicts", "overrules", "deployments"),
}


class Judge:
    """Lets evaluations end with values of a test's choice, as a session and the daemon would."""

    def __init__(self, database: Database, artifacts: DirectoryStore, ports: Any, items: Path) -> None:
        self.database, self.artifacts, self.ports, self.items = database, artifacts, ports, items

    def end(self, job: str, share: float) -> None:
        """Let a job leave scores of which so many pass, and judge them."""
        with self.database.write() as tx:
            told = jobs.get(tx, job).spec.environment
            names = ("model", "checkpoint", "scorer")
            header = {"schema": 1, "set": read_items(self.items).digest}
            header |= {name: told[f"EVALUATION_{name.upper()}"] for name in names}
            lines = [header]
            for number in range(20):
                name, value = f"item-{number}", float(number < 20 * share)
                lines.append({"item": name, "cluster": name, "metric": "atomicity", "value": value, "example": "def f"})
            content = "\n".join(map(json.dumps, lines)).encode()
            digest = hashlib.sha256(content).hexdigest()
            self.artifacts.create(blob_key(job, digest), content)
            scores = (Component("output/scores.jsonl", digest, len(content)),)
            manifest = Manifest(job, 1, 1, "uff-x-0001", 0, None, NOW, 60, {}, scores)
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, job, 1, manifest.key)
            jobs.change_state(tx, job, jobs.get(tx, job).state, Done(NOW), "finish", NOW)
            (evaluation,) = evaluations.open_ones(tx)
            case = case_of(tx, evaluation)
        assert case is not None
        judge_and_store(self.ports, case)


@pytest.fixture
def judge(
    world: Database, artifacts: DirectoryStore, home: Path, schedctl: Callable[..., Typed], tmp_path: Path
) -> Judge:
    """The judge of `ulm`, whose definition has a test set and a gate since it was done."""
    from scheduler.app import load_app

    items = home / "items.jsonl"
    items.write_text("".join(json.dumps({"id": f"item-{number}"}) + "\n" for number in range(20)))
    edited = schedctl(
        *("queue", "edit", "ulm", "--set", f'evaluation={{ command = ["score"], set = "{items}" }}'),
        *("--set", 'gates=[{ metric = "atomicity", kind = "threshold", minimum = 0.9 }]'),
    )
    assert edited.code == Exit.OK, edited.err
    held = lease.acquire(world, "test", 1_000_000)
    assert held is not None
    ports = load_app(home / "config.toml").ports(structlog.get_logger(), held.epoch)
    return Judge(world, artifacts, ports, items)


def test_a_version_goes_its_way_by_commands(judge: Judge, home: Path, schedctl: Callable[..., Typed]) -> None:
    begun = schedctl("models", "evaluate", "ulm", "--json").document
    assert (begun["version"]["name"], begun["version"]["state"], begun["job"]) == ("ulm@1", "evaluating", "ulm-eval-1")
    waits = schedctl("models", "evaluate", "ulm")
    assert waits.code == Exit.REFUSED
    assert "ulm@1 is being evaluated by ulm-eval-1" in waits.err
    judge.end("ulm-eval-1", 0.95)
    shown = schedctl("models", "show", "ulm", "--json").document["version"]
    assert set(shown) == VERSION
    assert (shown["state"], shown["in_force"], shown["training"]["seconds"]) == ("accepted", True, 7_500)
    (verdict,) = shown["verdicts"]
    assert verdict["evidence"]["findings"][0]["items"] == 20
    text = schedctl("models", "show", "ulm@1").out
    for part in (
        "ulm@1, promoted",
        "atomicity threshold at least 0.9",
        "passed",
        "item-19",
        "def f",
        "1 decisions so far",
    ):
        assert part in text
    again = schedctl("models", "evaluate", "ulm@1")
    assert again.code == Exit.REFUSED
    assert "these gates have judged ulm@1 on this test set already" in again.err
    taken = schedctl("models", "rollback", "ulm", "--reason", "it lies")
    assert taken.out == "ulm@1 is rolled back; no version is promoted.\n"
    refused = schedctl("models", "promote", "ulm@1")
    assert refused.code == Exit.REFUSED
    assert "ulm@1 is rejected" in refused.err
    told = schedctl("models", "overrule", "ulm@1", "--reason", "it does not", "--json").document["model"]
    assert (told["versions"][0]["state"], told["in_force"], told["paused"]) == ("accepted", None, True)
    assert schedctl("models", "promote", "ulm@1").out == "ulm@1 is promoted.\n"
    listed = schedctl("models", "list", "--json").document["models"]
    assert [set(one) for one in listed] == [{"name", "in_force", "promoted", "paused", "versions", "promotions"}]
    assert [set(one) for one in listed[0]["versions"]] == [LISTED]
    assert [move["kind"] for move in listed[0]["promotions"]] == ["promote", "rollback", "promote"]
    assert "PROMOTED" in schedctl("models", "list").out


def test_a_refusal_shows_the_items_that_count_against_it(judge: Judge, schedctl: Callable[..., Typed]) -> None:
    schedctl("models", "evaluate", "ulm")
    judge.end("ulm-eval-1", 0.5)
    text = schedctl("models", "show", "ulm").out
    assert "atomicity is 0.5, where at least 0.9 is required" in text
    assert "atomicity of item-10: 0  def f" in text
    overruled = schedctl("models", "overrule", "ulm@1")
    assert overruled.code == Exit.USAGE
    assert "a reason is missing" in overruled.err


def test_two_versions_stand_side_by_side(
    judge: Judge, artifacts: DirectoryStore, schedctl: Callable[..., Typed]
) -> None:
    schedctl("models", "evaluate", "ulm")
    judge.end("ulm-eval-1", 1.0)
    with judge.database.write() as tx:
        saved = checkpoints.newest(tx, "ulm")[0].manifest
        other = Manifest("ulm", 400, 1, saved.run, 0, None, NOW, 60, {}, (Component("weights.npz", "ab" * 32, 3),))
        checkpoints.record(tx, other, NOW)
    assert schedctl("models", "evaluate", "ulm", "--step", "400", "--json").document["version"]["name"] == "ulm@2"
    judge.end("ulm-eval-2", 0.95)
    found = schedctl("models", "compare", "ulm@1", "ulm@2", "--json").document
    assert found["metrics"] == [{"metric": "atomicity", "values": [1.0, 0.95]}]
    text = schedctl("models", "compare", "ulm@1", "ulm@2").out
    assert "atomicity" in text
    assert "0.95" in text


def test_a_folder_for_others_has_plain_weights_a_card_and_digests(
    judge: Judge, artifacts: DirectoryStore, home: Path, schedctl: Callable[..., Typed]
) -> None:
    packed = io.BytesIO()
    np.savez(packed, q=np.ones((2, 3)))
    parts = []
    for name, content in (("weights.npz", packed.getvalue()), ("optimizer/state.json", b"{}")):
        digest = hashlib.sha256(content).hexdigest()
        artifacts.create(blob_key("ulm", digest), content)
        parts.append(Component(name, digest, len(content)))
    with judge.database.write() as tx:
        saved = checkpoints.newest(tx, "ulm")[0].manifest
        checkpoints.record(tx, Manifest("ulm", 400, 1, saved.run, 0, None, NOW, 60, {}, tuple(parts)), NOW)
    schedctl("models", "evaluate", "ulm", "--step", "400")
    judge.end("ulm-eval-1", 1.0)
    made = schedctl("models", "export", "ulm@1", str(home / "out"), "--json").document
    assert made["files"] == ["README.md", "version.json", "weights.npz", "SHA256SUMS"]
    assert made["left_out"] == ["optimizer/state.json"]
    card = (home / "out" / "README.md").read_text()
    assert str(home) not in card, "no path of a machine is told"
    assert "threshold on atomicity | passed | 1 | 20 | 20" in card
    assert json.loads((home / "out" / "version.json").read_text())["name"] == "ulm@1"
    for line in (home / "out" / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((home / "out" / name).read_bytes()).hexdigest() == digest
    twice = schedctl("models", "export", "ulm@1", str(home / "out"))
    assert twice.code == Exit.REFUSED
    nowhere = schedctl("models", "export", "ulm@1", "mlflow:ulm")
    assert (nowhere.code, "MLFLOW_TRACKING_URI is not set" in nowhere.err) == (Exit.PLATFORM, True)
    wrong = schedctl("models", "export", "ulm@1", "hf:ulm")
    assert (wrong.code, "Write it like hf:org/name@branch" in wrong.err) == (Exit.PLATFORM, True)
    pulled = schedctl("models", "pull", "ulm", str(home / "whole"), "--json").document
    assert pulled["files"] == ["weights.npz", "optimizer/state.json"]


# Stands in for a Python with torch: notes what it was given, and leaves a model, or says why not.
MERGER = """#!/bin/sh
folder=$2 base=$4 adapter=$6
[ "$(cat "$base/config.json")" = "{}" ] || { echo "merge: it was trained on another base" >&2; exit 1; }
mkdir "$folder" && cp "$base/config.json" "$folder" || exit
cp "$adapter/adapter_model.safetensors" "$folder/model.safetensors"
[ -f "$adapter/fingerprint.json" ] && [ ! -f "$adapter/optimizer.pt" ]
"""


def test_an_adapter_is_given_away_without_the_path_of_its_base_or_merged_into_it(
    judge: Judge, artifacts: DirectoryStore, home: Path, schedctl: Callable[..., Typed]
) -> None:
    """The merging itself is the work of a Python with torch, tested where there is one."""
    adapter = {
        "adapter_config.json": json.dumps({"r": 4, "base_model_name_or_path": str(home)}).encode(),
        "adapter_model.safetensors": weights(b"adapter"),
        "fingerprint.json": b"{}",
        "optimizer.pt": b"x",
    }
    parts = []
    for name, content in adapter.items():
        digest = hashlib.sha256(content).hexdigest()
        artifacts.create(blob_key("ulm", digest), content)
        parts.append(Component(name, digest, len(content)))
    with judge.database.write() as tx:
        saved = checkpoints.newest(tx, "ulm")[0].manifest
        checkpoints.record(tx, Manifest("ulm", 400, 1, saved.run, 0, None, NOW, 60, {}, tuple(parts)), NOW)
    schedctl("models", "evaluate", "ulm", "--step", "400")
    judge.end("ulm-eval-1", 1.0)
    alone = schedctl("models", "export", "ulm@1", str(home / "alone"), "--json").document
    assert alone["left_out"] == ["fingerprint.json", "optimizer.pt"]
    assert json.loads((home / "alone/adapter_config.json").read_text()) == {"r": 4, "base_model_name_or_path": ""}
    python, base, other = home / "python", home / "base", home / "other"
    python.write_text(MERGER)
    python.chmod(0o755)
    for folder, config in ((base, "{}"), (other, '{"a": 1}')):
        folder.mkdir()
        (folder / "config.json").write_text(config)
    words = ("models", "export", "ulm@1", str(home / "out"), "--merge", "--python", str(python))
    unsaid = schedctl(*words)
    assert (unsaid.code, "Give its folder: --base DIR" in unsaid.err) == (Exit.USAGE, True)
    wrong = schedctl(*words, "--base", str(other))
    assert (wrong.code, "cannot be merged: it was trained on another base" in wrong.err) == (Exit.REFUSED, True)
    nothing = schedctl(*words[:-1], str(home / "nothing"), "--base", str(base))
    assert (nothing.code, "Name a Python with torch by --python" in nothing.err) == (Exit.REFUSED, True)
    bare = home / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    without = schedctl(*words[:-1], str(bare), "--base", str(base))
    assert (without.code, "take a Python with torch, transformers and peft" in without.err) == (Exit.REFUSED, True)
    assert not (home / "out").exists()
    made = schedctl(*words, "--base", str(base), "--json").document
    assert made["files"] == ["README.md", "config.json", "model.safetensors", "version.json", "SHA256SUMS"]
    assert made["left_out"] == []
    assert list(home.glob(".out*")) == []


def test_a_whole_model_needs_no_merging(judge: Judge, home: Path, schedctl: Callable[..., Typed]) -> None:
    schedctl("models", "evaluate", "ulm")
    judge.end("ulm-eval-1", 1.0)
    refused = schedctl("models", "export", "ulm@1", str(home / "out"), "--merge", "--base", str(home))
    assert (refused.code, "Export it without --merge" in refused.err) == (Exit.REFUSED, True)
    idle = schedctl("models", "export", "ulm@1", str(home / "out"), "--base", str(home))
    assert (idle.code, "Add --merge" in idle.err) == (Exit.USAGE, True)


def test_weights_that_nobody_can_use_are_not_given_away(
    judge: Judge, home: Path, schedctl: Callable[..., Typed]
) -> None:
    """The checkpoint's weights are a text."""
    schedctl("models", "evaluate", "ulm")
    judge.end("ulm-eval-1", 1.0)
    refused = schedctl("models", "export", "ulm@1", str(home / "out"))
    assert refused.code == Exit.REFUSED
    assert "ulm@1 cannot be exported: weights.npz: it is no archive of arrays" in refused.err
    assert "schedctl models pull ulm@1 DIR" in refused.err
    assert not (home / "out").exists()
    assert list(home.glob(".out-*")) == []


def test_votes_are_looked_at_and_take_a_version_back_when_asked(
    judge: Judge, home: Path, schedctl: Callable[..., Typed]
) -> None:
    schedctl("models", "evaluate", "ulm")
    judge.end("ulm-eval-1", 1.0)
    unnamed = schedctl("models", "watch", "ulm")
    assert (unnamed.code, "names no file of votes" in unnamed.err) == (Exit.USAGE, True)
    path = home / "votes.jsonl"

    def vote(count: int, *, worse: bool) -> None:
        with path.open("a") as stream:
            for number in range(count):
                said = {"version": "ulm@1", "cluster": f"{worse}-{number}", "worse": worse}
                stream.write(json.dumps(said) + "\n")

    vote(4, worse=False)
    vote(4, worse=True)
    calm = schedctl("models", "watch", "ulm", "--votes", str(path), "--rollback")
    assert (calm.code, calm.err) == (Exit.OK, "")
    assert "4 of 8 votes say that it is worse; the usual share is 0.5" in calm.out
    assert schedctl("models", "watch", "ulm", "--votes", str(path), "--usual", "0.01").code == Exit.VIOLATIONS
    vote(60, worse=True)
    heard = schedctl("models", "watch", "ulm@1", "--votes", str(path))
    assert heard.code == Exit.VIOLATIONS
    assert f"Roll it back: schedctl models watch ulm@1 --votes {path} --rollback" in heard.err
    taken = schedctl("models", "watch", "ulm", "--votes", str(path), "--rollback", "--json")
    assert taken.code == Exit.VIOLATIONS
    told = json.loads(taken.out)
    assert (told["taken_back"], told["in_force"], told["alarm"], told["votes"]) == (True, None, True, 64)
    again = schedctl("models", "watch", "ulm@1", "--votes", str(path), "--rollback", "--json")
    assert (again.code, json.loads(again.out)["taken_back"]) == (Exit.VIOLATIONS, False)
    moves = schedctl("models", "list", "ulm", "--json").document["models"][0]["promotions"]
    assert [move["kind"] for move in moves] == ["rollback", "promote"]
    assert told["digest"][:16] in moves[0]["why"]
    path.write_text("no vote\n")
    broken = schedctl("models", "watch", "ulm@1", "--votes", str(path))
    assert broken.code == Exit.REFUSED
    assert f"{path}, line 1 cannot be used: no JSON object" in broken.err
    assert schedctl("models", "watch", "ulm@1", "--votes", str(home / "none.jsonl")).code == Exit.PLATFORM


def test_an_ab_test_is_queued_and_told(judge: Judge, home: Path, schedctl: Callable[..., Typed]) -> None:
    assert "No A/B tests" in schedctl("models", "ab").err
    unknown = schedctl("models", "ab", "lr")
    assert (unknown.code, "Write [[ab]] first" in unknown.err) == (Exit.NOT_FOUND, True)
    with (home / "models.toml").open("a") as stream:
        stream.write(
            '\n[[ab]]\nname = "lr"\nmodels = ["ulm"]\nchange = { environment = { LR = "1e-4" } }\n'
            'seeds = [1, 2, 3]\ntarget_step = 100\non = "wednesday"\n'
        )
    assert schedctl("models", "ab", "--start").code == Exit.USAGE
    assert "was not queued yet" in schedctl("models", "ab", "lr").err
    begun = schedctl("models", "ab", "lr", "--start", "--json")
    assert begun.code == Exit.OK, begun.err
    assert [job["name"] for job in begun.document["jobs"]] == [f"ulm-lr-{a}{n}" for n in (1, 2, 3) for a in "ab"]
    twice = schedctl("models", "ab", "lr", "--start")
    assert (twice.code, "was queued already" in twice.err) == (Exit.REFUSED, True)
    assert schedctl("models", "ab", "--json").document["ab"][0]["jobs"] == 6
    told = schedctl("models", "ab", "lr", "--json").document
    assert (told["runs"], told["findings"], len(told["arms"]), len(told["missing"])) == (0, [], 6, 6)
    assert "ulm-lr-b3: it is queued and not evaluated yet" in schedctl("models", "ab", "lr").err


def test_names_that_are_none_are_told(judge: Judge, schedctl: Callable[..., Typed]) -> None:
    assert schedctl("models", "show", "ulm@7").code == Exit.NOT_FOUND
    assert schedctl("models", "show", "nobody").code == Exit.NOT_FOUND
    missing = schedctl("models", "show", "ulm")
    assert missing.code == Exit.REFUSED
    assert "schedctl models evaluate ulm" in missing.err
    undefined = schedctl("models", "evaluate", "uff-main")
    assert undefined.code == Exit.REFUSED
    assert schedctl("models", "list").err.startswith("No versions yet")


def test_a_test_set_is_taken_anew_by_its_name(schedctl: Callable[..., Typed], world: Database, tmp_path: Path) -> None:
    items = tmp_path / "items.jsonl"
    items.write_text('{"id": "one"}\n')
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\nrole = "manager"\ncommand = ["/bin/true"]\ntarget_step = 10\nsteps_per_hour = 10\n'
        '[evaluation]\ncommand = ["/bin/true"]\nset = "items.jsonl"\n'
        '[[gates]]\nmetric = "quality"\nkind = "threshold"\nminimum = 0.9\n'
    )
    added = schedctl("queue", "add", str(tmp_path / "mine.toml"))
    assert added.code == 0, added.err

    def digest() -> str:
        with world.read() as tx:
            spec = jobs.get(tx, "mine").spec
        assert spec.evaluation is not None
        assert spec.inputs == ()
        return spec.evaluation.test_set.digest

    first = digest()
    assert json.loads(schedctl("--json", "queue", "update", "mine", "--input", "set").out)["changed"] is False
    items.write_text('{"id": "two"}\n')
    told = schedctl("queue", "update", "mine", "--input", "set")
    assert (told.code, digest() != first) == (0, True), told.err
    assert f"mine has set from its next evaluation on: {digest()[:12]}" in told.out
