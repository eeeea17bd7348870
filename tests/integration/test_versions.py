"""From a trained model to a version in force: evaluated, judged once, promoted, refused, taken back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.payload.scorers.items import read_items
from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.quality_gate import QualityGate
from jobs.spec import Evaluation, Input, JobSpec, StartFrom
from platforms.artifacts.base import StoreUnreachable
from scheduler.core.job import Done, Failed
from scheduler.core.plan import Plan
from scheduler.core.pool import Pool
from scheduler.core.reasons import AwaitsVerdict
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.snapshot import gather
from scheduler.service.launch.start import pinned
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import inputs
from scheduler.service.upkeep.retention import judge
from scheduler.service.versions import judging
from scheduler.service.versions.force import overrule, promote, rollback
from scheduler.service.versions.making import VersionRefused, evaluate
from scheduler.store import checkpoints, evaluations, events, generations, jobs, trees, versions
from scheduler.store.engine import Database
from scheduler.store.verify import verify
from tests.integration.conftest import Journal
from tests.lab.fake import FakeCloud, FakePlatform

NOW = 1_795_000_000
ITEMS = 40
POINT = QualityGate("atomicity", "threshold", minimum=0.9)
BETTER = QualityGate("atomicity", "better")


class World(SimpleNamespace):
    """A model whose training and evaluations end as a test says, and the daemon's cycle."""

    def train(self, content: str) -> None:
        """Let the model be trained to its end, as its next generation; ``content`` stands for its weights."""
        with self.database.write() as tx:
            record = jobs.get(tx, "ufm")
            if isinstance(record.state, Done):
                jobs.restart(tx, "ufm", NOW, "test")
            attempt = jobs.note_launch(tx, "ufm", "pool")
            weights = Component("weights.npy", hashlib.sha256(content.encode()).hexdigest(), 3)
            manifest = Manifest("ufm", 100, attempt, "uff-ufm-0001", 0, None, NOW, 60, {}, (weights,))
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, "ufm", 100, manifest.key)
            self._end(tx, "ufm", Done(NOW))

    def score(self, job: str, values: list[float] | bytes, **header: Any) -> None:
        """Let an evaluation end and leave these values, of items 0, 1, 2..., or any other bytes."""
        with self.database.write() as tx:
            told = jobs.get(tx, job).spec.environment
            said = {
                "schema": 1,
                "model": told["EVALUATION_MODEL"],
                "checkpoint": told["EVALUATION_CHECKPOINT"],
                "set": read_items(self.items).digest,
                "scorer": told["EVALUATION_SCORER"],
                **header,
            }
            lines = [json.dumps(said)]
            if not isinstance(values, bytes):
                for number, value in enumerate(values):
                    name = f"item-{number}"
                    lines.append(json.dumps({"item": name, "cluster": name, "metric": "atomicity", "value": value}))
            content = values if isinstance(values, bytes) else "\n".join(lines).encode()
            digest = hashlib.sha256(content).hexdigest()
            self.ports.artifacts.create(blob_key(job, digest), content)
            attempt = jobs.note_launch(tx, job, "pool")
            scores = Component("output/scores.jsonl", digest, len(content))
            manifest = Manifest(job, 1, attempt, f"uff-{job}-0001", 0, None, NOW, 60, {}, (scores,))
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, job, 1, manifest.key)
            self._end(tx, job, Done(NOW))

    def judged(self, content: str, values: list[float]) -> None:
        """Train, evaluate and judge one version."""
        self.train(content)
        self.cycle.run()
        with self.database.read() as tx:
            (job,) = [one.job for one in evaluations.open_ones(tx)]
        self.score(job, values)
        self.cycle.run()

    def _end(self, tx: Any, job: str, state: Any) -> None:
        jobs.change_state(tx, job, jobs.get(tx, job).state, state, "finish", NOW)

    def fail(self, job: str) -> None:
        """Let a job fail for good."""
        with self.database.write() as tx:
            self._end(tx, job, Failed("code", "it broke", NOW))

    def states(self) -> list[tuple[int, str]]:
        """Return the versions' numbers and states."""
        with self.database.read() as tx:
            return [(found.number, found.state) for found in versions.everything(tx, "ufm")]

    def in_force(self) -> int | None:
        """Return the number of the version in force."""
        with self.database.read() as tx:
            found = versions.in_force(tx, "ufm")
        return found.number if found else None

    def ask(self, act: Callable[..., Any], number: int, *words: Any) -> Any:
        """Do what a person asks of a version."""
        with self.database.write() as tx:
            return act(tx, versions.get(tx, "ufm", number), *words, NOW, "somebody")


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Journal) -> World:
    """The world, with a threshold of 0.9 on a set of forty items."""
    items = tmp_path / "held-out.jsonl"
    items.write_text("".join(json.dumps({"id": f"item-{number}"}) + "\n" for number in range(ITEMS)))
    ports = make_ports(
        platforms={"pool": FakePlatform(FakeCloud())},
        pools={"pool": Pool("pool", "fake", "T4", ())},
        plan=lambda snapshot, _: Plan(snapshot.now, (), ()),
        bundle=str(tmp_path),
    )
    test_set = inputs.take(database, ports.artifacts, Input("set", str(items)), NOW, print)
    wanted = Evaluation(("score",), test_set, within_seconds=86_400)
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), 100, 10.0, evaluation=wanted, gates=(POINT,)), NOW)
    cycle = Cycle(ports)
    return World(ports=ports, database=database, cycle=cycle, items=items, journal=journal)


def passing(share: float) -> list[float]:
    return [1.0 if number < share * ITEMS else 0.0 for number in range(ITEMS)]


def test_what_was_trained_becomes_a_version_and_a_job_evaluates_it(world: World) -> None:
    world.train("a")
    world.cycle.run()
    world.cycle.run()
    assert world.states() == [(1, "evaluating")]
    with world.database.read() as tx:
        spec = jobs.get(tx, "ufm-eval-1").spec
        began = generations.current(tx, "ufm-eval-1")
        needed = trees.needed(tx)
        version = versions.get(tx, "ufm", 1)
    assert (spec.role, spec.whole, spec.gate, spec.deadline, spec.sweep) == (
        "evaluate",
        True,
        None,
        NOW + 86_400,
        "ufm-eval",
    )
    assert [given.name for given in spec.inputs] == ["set"]
    assert spec.inputs[0].digest in needed
    assert began is not None
    assert began.parent_key == version.checkpoint
    assert spec.environment["EVALUATION_CHECKPOINT"] == version.digest


def test_an_accepted_version_is_put_in_force_and_its_checkpoint_stays(world: World) -> None:
    world.judged("a", passing(0.95))
    assert (world.states(), world.in_force()) == ([(1, "accepted")], 1)
    with world.database.read() as tx:
        (said,) = evaluations.verdicts_of(tx, versions.get(tx, "ufm", 1))
        kept = {one.record.manifest.job: one.verdict.why for one in judge(tx, world.ports.policy.retention, NOW)}
        told = [event.kind for event in events.tail(tx, kinds={"version.accept", "version.judged", "model.promote"})]
    assert (said.verdict, said.evidence["set_uses"], said.evidence["in_force"]) == ("accepted", 1, None)
    (finding,) = said.evidence["findings"]
    assert (finding["items"], finding["clusters"], finding["value"]) == (40, 40, 0.95)
    assert kept["ufm"] in {"it is ufm@1", "the job goes on from it"}
    assert told == ["version.judged", "version.accept", "model.promote"]
    assert verify(world.database) == []


def test_a_gate_refuses_and_what_was_in_force_stays(world: World) -> None:
    world.judged("a", passing(1.0))
    world.judged("b", passing(0.5))
    assert (world.states(), world.in_force()) == ([(1, "accepted"), (2, "rejected")], 1)
    with world.database.read() as tx:
        found = versions.get(tx, "ufm", 2)
        (said,) = evaluations.verdicts_of(tx, found)
    assert "atomicity is 0.5, where at least 0.9 is asked" in found.why
    assert said.evidence["findings"][0]["examples"][0]["item"] == "item-20"


def test_the_same_content_again_is_no_new_version(world: World) -> None:
    world.judged("a", passing(1.0))
    world.train("a")
    world.cycle.run()
    assert world.states() == [(1, "accepted")]


@pytest.mark.parametrize(
    ("values", "header", "why"),
    [
        ([float("nan")] * ITEMS, {}, "value is nan"),
        (passing(1.0)[1:], {}, "has no value of 1 of 40 items"),
        ([*passing(1.0), 1.0], {}, "no item of the test set"),
        (passing(1.0), {"model": "ucm"}, "model is 'ucm' instead of 'ufm'"),
        (passing(1.0), {"checkpoint": "0" * 64}, "checkpoint is"),
        (b"", {}, "the file is empty"),
        (b"\xff\xfe", {}, "no JSON"),
    ],
    ids=["nan", "missing", "foreign", "other model", "other checkpoint", "empty", "garbage"],
)
def test_scores_that_cannot_be_are_an_error_and_no_verdict(
    world: World, values: list[float] | bytes, header: dict[str, Any], why: str
) -> None:
    world.train("a")
    world.cycle.run()
    world.score("ufm-eval-1", values, **header)
    world.cycle.run()
    assert (world.states(), world.in_force()) == ([(1, "candidate")], None)
    with world.database.read() as tx:
        version = versions.get(tx, "ufm", 1)
        (evaluation,) = evaluations.of_version(tx, version)
        assert evaluations.verdicts_of(tx, version) == []
    assert evaluation.state == "failed"
    assert why in evaluation.error
    world.cycle.run()
    assert world.states() == [(1, "candidate")], "it is not tried again by itself"
    job = world.ask(lambda tx, found, now, by: evaluate(tx, jobs.get(tx, "ufm"), found, Path(), now, by), 1)
    assert job == "ufm-eval-1-2"
    world.score(job, passing(1.0))
    world.cycle.run()
    assert world.states() == [(1, "accepted")]


def test_an_item_twice_is_an_error(world: World) -> None:
    world.train("a")
    world.cycle.run()
    with world.database.read() as tx:
        told = jobs.get(tx, "ufm-eval-1").spec.environment
    header = {"schema": 1, "model": "ufm", "checkpoint": told["EVALUATION_CHECKPOINT"], "scorer": "ab" * 32}
    line = json.dumps({"item": "item-0", "cluster": "item-0", "metric": "atomicity", "value": 1.0})
    header["set"] = read_items(world.items).digest
    world.score("ufm-eval-1", f"{json.dumps(header)}\n{line}\n{line}\n".encode())
    world.cycle.run()
    with world.database.read() as tx:
        assert "stands twice" in versions.get(tx, "ufm", 1).why


def test_an_evaluation_that_fails_is_told_with_its_reason(world: World) -> None:
    world.train("a")
    world.cycle.run()
    world.fail("ufm-eval-1")
    world.cycle.run()
    assert world.states() == [(1, "candidate")]
    assert any("evaluation.failed" in line and "it broke" in line for line in world.journal.lines)


def test_a_store_that_gives_no_answer_costs_no_verdict(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.train("a")
    world.cycle.run()
    world.score("ufm-eval-1", passing(1.0))
    store = type(world.ports.artifacts)
    fetch = store.fetch

    def silent(*_: Any) -> None:
        raise StoreUnreachable("fetch", "x", "no route")

    monkeypatch.setattr(store, "fetch", silent)
    world.cycle.run()
    assert world.states() == [(1, "evaluating")]
    monkeypatch.setattr(store, "fetch", fetch)
    world.cycle.run()
    assert world.states() == [(1, "accepted")]


@pytest.mark.parametrize("at", ["end", "say", "move", "promote_by_itself"])
def test_a_daemon_that_dies_anywhere_in_a_verdict_leaves_all_of_it_or_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The end of a process rolls back what was not committed, as an error does here; the next daemon judges once."""
    world.train("a")
    world.cycle.run()
    world.score("ufm-eval-1", passing(1.0))
    place = {"end": evaluations, "say": evaluations, "move": versions, "promote_by_itself": judging}[at]
    work = getattr(place, at)

    class Killed(BaseException):
        """As the end of a process: nothing in between takes it for an error."""

    def dies(*words: Any, **more: Any) -> Any:
        work(*words, **more)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(place, at, dies)
        with pytest.raises(Killed):
            world.cycle.run()
    with world.database.read() as tx:
        assert evaluations.verdicts_of(tx, versions.get(tx, "ufm", 1)) == []
    assert (world.states(), world.in_force()) == ([(1, "evaluating")], None)
    for _ in range(2):
        Cycle(world.ports).run()
    with world.database.read() as tx:
        assert len(evaluations.verdicts_of(tx, versions.get(tx, "ufm", 1))) == 1
        assert len(versions.promotions_of(tx, "ufm")) == 1
    assert (world.states(), world.in_force()) == ([(1, "accepted")], 1)


def test_a_gate_that_compares_has_the_version_in_force_scored_by_the_same_scorer(world: World) -> None:
    world.judged("a", passing(0.95))
    with world.database.write() as tx:
        spec = jobs.get(tx, "ufm").spec
        jobs.change_spec(tx, "ufm", NOW, "somebody", gates=(BETTER,), evaluation=spec.evaluation)
        wanted = spec.evaluation
        assert wanted is not None
        other = Evaluation(("score", "anew"), wanted.test_set)
        jobs.change_spec(tx, "ufm", NOW, "somebody", evaluation=other)
    world.train("b")
    world.cycle.run()
    world.score("ufm-eval-2", passing(1.0))
    world.cycle.run()
    assert world.states() == [(1, "accepted"), (2, "evaluating")]
    world.score("ufm-eval-1-2", passing(0.5))
    world.cycle.run()
    world.cycle.run()
    assert (world.states(), world.in_force()) == ([(1, "retired"), (2, "accepted")], 2)


def test_what_was_taken_back_is_barred_and_nothing_is_promoted_by_itself_until_a_person_does(world: World) -> None:
    world.judged("a", passing(0.95))
    world.judged("b", passing(1.0))
    assert (world.states(), world.in_force()) == ([(1, "retired"), (2, "accepted")], 2)
    with world.database.write() as tx:
        gone, back = rollback(tx, "ufm", "it lies", NOW, "somebody")
    assert (gone.name, gone.why, back and back.name) == ("ufm@2", "returned: it lies", "ufm@1")
    assert (world.states(), world.in_force()) == ([(1, "accepted"), (2, "rejected")], 1)
    world.judged("c", [1.0] * ITEMS)
    assert (world.states()[2], world.in_force()) == ((3, "accepted"), 1)
    with pytest.raises(VersionRefused, match="ufm@2 is rejected"):
        world.ask(promote, 2, "again")
    world.ask(promote, 3, "I looked at it")
    assert world.in_force() == 3
    world.judged("d", [1.0] * ITEMS)
    assert world.in_force() == 4


def test_a_person_may_overrule_and_both_words_stay(world: World) -> None:
    world.judged("a", passing(0.5))
    world.ask(overrule, 1, "accepted", "the set is wrong")
    assert (world.states(), world.in_force()) == ([(1, "accepted")], None)
    with world.database.read() as tx:
        version = versions.get(tx, "ufm", 1)
        (said,) = evaluations.verdicts_of(tx, version)
        (against,) = evaluations.overrules_of(tx, version)
    assert (said.verdict, against.was, against.by) == ("rejected", "rejected", "somebody")
    with pytest.raises(VersionRefused, match="accepted as it is"):
        world.ask(overrule, 1, "accepted", "again")
    with pytest.raises(VersionRefused, match="these gates have judged ufm@1"):
        world.ask(lambda tx, found, now, by: evaluate(tx, jobs.get(tx, "ufm"), found, Path(), now, by), 1)


def test_a_child_waits_for_an_accepted_version_and_begins_with_it(world: World) -> None:
    start = StartFrom("ufm", "accepted")
    with world.database.write() as tx:
        jobs.add(tx, JobSpec("child", "manager", ("train",), 10, 10.0, gate=start.gate, start_from=start), NOW)

    def waits() -> Any:
        with world.database.read() as tx:
            found = gather(tx, world.ports.pools, NOW, 86_400, {})
        return next(view.blocked for view in found.jobs if view.name == "child")

    assert waits() is None, "before there is a checkpoint its gate is what it waits for"
    world.judged("a", passing(0.5))
    told = waits()
    assert told == AwaitsVerdict("ufm", "ufm@1", "rejected")
    assert "schedctl models show ufm@1" in told.sentence()
    world.judged("b", passing(1.0))
    assert waits() is None
    world.train("c")  # newer, but nobody has judged it
    with world.database.write() as tx:
        assert pinned(world.ports, tx, [jobs.get(tx, "child")], NOW)
        began, accepted = generations.current(tx, "child"), versions.get(tx, "ufm", 2)
    assert began is not None
    assert began.parent_key == accepted.checkpoint


def test_an_evaluation_whose_checkpoint_is_damaged_ends_without_a_verdict(world: World) -> None:
    world.train("a")
    world.cycle.run()
    with world.database.write() as tx:
        checkpoints.quarantine(tx, versions.get(tx, "ufm", 1).checkpoint, "a bit fell over", NOW)
    world.cycle.run()
    assert world.states() == [(1, "candidate")]
    with world.database.read() as tx:
        assert "is damaged" in versions.get(tx, "ufm", 1).why
