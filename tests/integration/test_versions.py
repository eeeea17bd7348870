"""From a trained model to a version in force: evaluated, judged once, promoted, refused, taken back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.problem import Refusal
from jobs.spec import Evaluation, JobSpec, QualityGate, StartFrom
from platforms.artifacts.base import StoreUnreachable
from scheduler.core.reasons import AwaitsVerdict
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.snapshot import gather
from scheduler.service.launch.launch import pin_parent
from scheduler.service.outside.ports import Ports
from scheduler.service.upkeep.housekeeping import judge
from scheduler.service.versions import model_sync
from scheduler.service.versions.promotion import evaluate, overrule, promote, rollback
from scheduler.store import checkpoints, evaluations, events, generations, jobs, trees, versions
from scheduler.store.engine import Database
from scheduler.store.verify import verify
from scheduler.store.versions import Version
from tests.lab.trained_model import ITEMS, NOW, World, make_world, passing

BETTER = QualityGate("atomicity", "better")


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Any) -> World:
    """A model with a threshold of 0.9 on a set of forty items."""
    return make_world(make_ports, database, tmp_path, journal)


def evaluated_again(tx: Any, version: Version, now: int, by: str) -> str:
    record = jobs.get(tx, "ufm")
    assert record.spec.evaluation is not None
    return evaluate(tx, record, version, record.spec.evaluation.test_set, Path(), now, by)


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


def test_an_evaluation_takes_left_overs_until_somebody_waits_for_it_or_its_last_day_has_come(world: World) -> None:
    world.train("a")
    world.cycle.run()
    pools = world.ports.pools

    def seen(at: int) -> tuple[float, int | None]:
        with world.database.read() as tx:
            found = gather(tx, pools, at, 86_400, {})
        return next((view.weight, view.deadline) for view in found.jobs if view.name == "ufm-eval-1")

    assert seen(NOW - 1) == (0.04, None)
    assert seen(NOW) == seen(NOW + 90_000) == (1.0, NOW + 86_400), "the last day before it and all that follow"
    start = StartFrom("ufm", "accepted")
    with world.database.write() as tx:
        jobs.add(tx, JobSpec("child", "manager", ("train",), 10, 10.0, start_from=start, gate=start.gate), NOW)
    assert seen(NOW - 1) == (1.0, NOW + 86_400)


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
    assert kept["ufm"] in {"it is ufm@1", "the job resumes from it"}
    assert told == ["version.judged", "version.accept", "model.promote"]
    assert verify(world.database) == []


def test_a_gate_refuses_and_what_was_in_force_stays(world: World) -> None:
    world.judged("a", passing(1.0))
    world.judged("b", passing(0.5))
    assert (world.states(), world.in_force()) == ([(1, "accepted"), (2, "rejected")], 1)
    with world.database.read() as tx:
        found = versions.get(tx, "ufm", 2)
        (said,) = evaluations.verdicts_of(tx, found)
    assert "atomicity is 0.5, where at least 0.9 is required" in found.why
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
        (passing(1.0), {"repeated": 2}, "stands twice"),
    ],
    ids=["nan", "missing", "foreign", "other model", "other checkpoint", "empty", "garbage", "doubled"],
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
    job = world.ask(evaluated_again, 1)
    assert job == "ufm-eval-1-2"
    world.score(job, passing(1.0))
    world.cycle.run()
    assert world.states() == [(1, "accepted")]


FULL, ODD = OSError(28, "No space left on device"), ZeroDivisionError("nobody expected it")


@pytest.mark.parametrize(
    ("place", "error"),
    [
        ("scheduler.service.versions.item_sets.set_for", FULL),
        ("scheduler.service.versions.item_sets.set_for", ODD),
        ("scheduler.service.versions.model_sync.version_of", ODD),
        ("scheduler.service.versions.model_sync.scores_of", FULL),
        ("scheduler.service.versions.model_sync.scores_of", ODD),
        ("scheduler.service.versions.model_sync.case_of", ODD),
    ],
)
def test_whatever_fails_on_the_way_to_a_verdict_costs_no_cycle_and_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str, error: Exception
) -> None:
    def breaks(*_: Any, **__: Any) -> Any:
        raise error

    world.train("a")
    if place.endswith(("scores_of", "case_of")):
        world.cycle.run()
        world.score("ufm-eval-1", passing(1.0))
    with monkeypatch.context() as broken:
        broken.setattr(place, breaks)
        for _ in range(3):
            world.cycle.run()  # raises nothing
        assert world.in_force() is None
        assert any(type(error).__name__ in line for line in world.journal.lines)
    world.cycle.run()
    if not place.endswith(("scores_of", "case_of")):
        world.score("ufm-eval-1", passing(1.0))
        world.cycle.run()
    if error is ODD and place.endswith(("scores_of", "case_of")):
        assert world.states() == [(1, "candidate")], "scores that cannot be judged are asked for again by a person"
    else:
        assert world.states() == [(1, "accepted")]


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


@pytest.mark.parametrize("at", ["end", "add_verdict", "move", "promote_by_itself"])
def test_a_daemon_that_dies_anywhere_in_a_verdict_leaves_all_of_it_or_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """The end of a process rolls back what was not committed, as an error does here; the next daemon judges once."""
    world.train("a")
    world.cycle.run()
    world.score("ufm-eval-1", passing(1.0))
    place = {"end": evaluations, "add_verdict": evaluations, "move": versions, "promote_by_itself": model_sync}[at]
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
    assert (gone.name, gone.why, back and back.name) == ("ufm@2", "rolled back: it lies", "ufm@1")
    assert (world.states(), world.in_force()) == ([(1, "accepted"), (2, "rejected")], 1)
    world.judged("c", [1.0] * ITEMS)
    assert (world.states()[2], world.in_force()) == ((3, "accepted"), 1)
    with pytest.raises(Refusal, match="ufm@2 is rejected"):
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
    with pytest.raises(Refusal, match="accepted already"):
        world.ask(overrule, 1, "accepted", "again")
    with pytest.raises(Refusal, match="these gates have judged ufm@1"):
        world.ask(evaluated_again, 1)


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
        assert pin_parent(world.ports, tx, jobs.get(tx, "child"), NOW)
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
