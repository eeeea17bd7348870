"""A/B tests of training: ordinary jobs on the day that a catalogue names, and one answer from their evaluations."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobs.catalogue import AbTest
from jobs.nouns.window import DAY
from jobs.problem import Refusal
from scheduler.service.outside.ports import Ports
from scheduler.service.requests.ab_tests import result, specs_of
from scheduler.store import jobs, versions
from scheduler.store.engine import Database
from tests.lab.trained_model import NOW, TARGET, World, make_world, passing

SEEDS = (1, 2, 3, 4, 5)
TEST = AbTest("lr", ("ufm",), {"environment": {"LR": "1e-4"}}, SEEDS, TARGET, 2)


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Any) -> World:
    return make_world(make_ports, database, tmp_path, journal, votes=str(tmp_path / "votes.jsonl"))


def queue(world: World) -> None:
    with world.database.write() as tx:
        taken = jobs.get(tx, "ufm").spec.evaluation
        for spec in specs_of(tx, TEST, NOW):
            assert spec.evaluation is not None
            assert taken is not None
            wanted = replace(spec.evaluation, test_set=taken.test_set)  # which adding a job takes and stores
            jobs.add(tx, replace(spec, evaluation=wanted), NOW)


def test_both_arms_are_ordinary_jobs_of_the_next_such_day(world: World) -> None:
    with world.database.write() as tx:
        found = specs_of(tx, TEST, NOW)
        again = specs_of(tx, TEST, found[0].not_before or 0)
    assert [spec.name for spec in found][:3] == ["ufm-lr-a1", "ufm-lr-b1", "ufm-lr-a2"]
    assert len(found) == 2 * len(SEEDS)
    begin, end = found[0].not_before, found[0].deadline
    assert begin is not None
    assert end == begin + DAY
    assert NOW <= begin < NOW + 7 * DAY
    assert datetime.fromtimestamp(begin, UTC).strftime("%A %H:%M") == "Wednesday 00:00"
    assert again[0].not_before == begin, "on that day it is today"
    a, b = found[:2]
    assert (a.environment, b.environment) == ({}, {"LR": "1e-4"})
    assert (a.seed, b.seed, a.weight, a.gates) == (1, 1, 1.0, b.gates)
    assert b.evaluation is not None
    assert (b.evaluation.promote, b.evaluation.at, b.evaluation.votes) == ("person", (1.0,), "")


def test_a_model_that_nobody_judges_has_no_arms(world: World) -> None:
    with world.database.write() as tx:
        jobs.change_spec(tx, "ufm", NOW, "somebody", evaluation=None, gates=())
        with pytest.raises(Refusal, match="does not say how it is evaluated"):
            specs_of(tx, TEST, NOW)


def test_runs_are_trained_evaluated_and_compared_and_none_is_promoted_by_itself(world: World) -> None:
    queue(world)
    assert result(world.ports, TEST).runs == 0
    for seed in SEEDS:
        for arm, share in (("a", 0.5 + seed / 40), ("b", 0.8 + seed / 40)):
            job = f"ufm-lr-{arm}{seed}"
            world.train(job, model=job)
            world.cycle.run()
            if (arm, seed) != ("b", 5):
                world.score(f"{job}-eval-1", passing(share))
                world.cycle.run()
    found = result(world.ports, TEST)
    assert (found.runs, len(found.arms)) == (4, 10)
    assert found.missing == ("ufm-lr-b5: ufm-lr-b5-eval-1 scores it",)
    assert found.findings[0].outcome == "not_enough_items"
    world.score("ufm-lr-b5-eval-1", passing(0.925))
    world.cycle.run()
    found = result(world.ports, TEST)
    (finding,) = found.findings
    assert (found.runs, found.missing, finding.outcome) == (5, (), "passed")
    assert (finding.clusters, finding.items) == (5, 200)
    assert finding.gain == pytest.approx(0.3)
    with world.database.read() as tx:
        made = versions.everything(tx, "ufm-lr-b5")
        assert [version.state for version in made] == ["accepted"]
        assert versions.in_force(tx, "ufm-lr-b5") is None
