"""Models judged before they are done, and on what their own corpus keeps out of training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.corpus.errors import CorpusDamaged
from jobs.payload.scorers.items import read_items
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import fetch_tree, tree_prefix
from jobs.problem import Refusal
from jobs.spec import HELD_OUT, LONGEST_SECONDS, Evaluation, Input, JobSpec, Mixture
from scheduler.core.snapshot import Rate
from scheduler.core.throughput import PRIOR_SIGMA
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.service.versions.item_sets import ITEMS, TEXT_CHARACTERS, set_for
from scheduler.store import jobs, rates
from scheduler.store.engine import Database
from tests.lab.trained_model import NOW, World, make_world, passing


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Any) -> World:
    """A model that is judged at half of its way and at its end."""
    return make_world(make_ports, database, tmp_path, journal, at=(0.5, 1.0))


def test_each_part_of_the_way_is_judged_once(world: World) -> None:
    world.train("a", step=40)
    world.cycle.run()
    assert world.states() == []
    world.train("b", step=60)
    world.cycle.run()
    world.score("ufm-eval-1", passing(0.5))
    world.cycle.run()
    world.train("c", step=80)
    world.cycle.run()
    assert world.states() == [(1, "rejected")]
    world.train("d", step=100)
    world.cycle.run()
    world.score("ufm-eval-2", passing(1.0))
    world.cycle.run()
    assert (world.states(), world.in_force()) == ([(1, "rejected"), (2, "accepted")], 2)
    with world.database.write() as tx:
        jobs.restart(tx, "ufm", NOW, "somebody")
    world.train("e", step=50)
    world.cycle.run()
    assert world.states()[2:] == [(3, "evaluating")], "the next generation goes its own way"


def test_an_evaluation_is_planned_with_what_the_last_one_like_it_took(world: World) -> None:
    def expected(job: str) -> Rate:
        with world.database.read() as tx:
            snapshot = load_snapshot(tx, world.ports.pools, NOW, 86_400)
        return next(one.rates["pool"] for one in snapshot.jobs if one.name == job)

    world.train("a", step=60)
    world.cycle.run()
    assert 1 / expected("ufm-eval-1").steps_per_second == pytest.approx(LONGEST_SECONDS), "nothing is known"
    with world.database.write() as tx:
        rates.put(tx, rates.RateRecord(1 / 1_000, 0.05, 1, 60, 10, job="ufm-eval-1", pool="pool", at=NOW))
    world.score("ufm-eval-1", passing(0.5))
    world.cycle.run()
    world.train("b", step=100)
    world.cycle.run()
    found = expected("ufm-eval-2")
    assert 1 / found.steps_per_second == pytest.approx(1_390), "what nine in ten would take"
    assert found.sigma == PRIOR_SIGMA
    world.score("ufm-eval-2", passing(1.0))
    world.cycle.run()
    with world.database.write() as tx:
        wanted = jobs.get(tx, "ufm").spec.evaluation
        assert wanted is not None
        jobs.change_spec(tx, "ufm", NOW, "test", evaluation=replace(wanted, command=("score", "more")))
        jobs.restart(tx, "ufm", NOW, "somebody")
    world.train("c", step=60)
    world.cycle.run()
    assert 1 / expected("ufm-eval-3").steps_per_second == pytest.approx(LONGEST_SECONDS), "another scorer"


def test_why_a_model_cannot_be_judged_is_told_once(world: World) -> None:
    with world.database.write() as tx:
        wanted = jobs.get(tx, "ufm").spec.evaluation
        assert wanted is not None
        jobs.change_spec(tx, "ufm", NOW, "test", evaluation=replace(wanted, test_set=Input("set", HELD_OUT)))
    world.train("a", step=60)
    for name in ("one", "two"):
        world.cycle.run()
        with world.database.write() as tx:
            jobs.add(tx, JobSpec(name, "manager", ("train",), 10, 1.0), NOW)  # something happens
    world.cycle.run()
    told = [line for line in world.journal.lines if "version.not_evaluated" in line]
    assert len(told) == 1
    assert "ufm has no corpus yet" in told[0]
    assert world.states() == []


class Corpora:
    """A folder of corpora with one version, whose held-out rows a test writes."""

    def __init__(self, folder: Path, rows: list[Any]) -> None:
        (folder / "held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self._corpus = SimpleNamespace(folder=folder, held_out=SimpleNamespace(name="held.jsonl"))

    def open(self, version: str) -> Any:
        """Return the version."""
        assert version == "3f2a51c08d7e9b64"
        return self._corpus


def held_out_set(ports: Ports, corpora: Any, corpus: str = "3f2a51c08d7e9b64") -> Input:
    wanted = Evaluation(("score",), Input("set", HELD_OUT))
    spec = JobSpec("ufm", "manager", ("train",), 100, 10.0, evaluation=wanted, mixture=Mixture(corpus=corpus))
    return set_for(spec, ports.database, ports.artifacts, lambda: corpora, NOW + 86_400)


def test_a_set_of_held_out_texts_has_their_clusters_and_domains_and_one_digest(world: World, tmp_path: Path) -> None:
    rows = [
        {
            "id": f"{number:032x}",
            "cluster": number // 2,
            "domains": ["ufm", "ucm"] if number else [],
            "text": "x" * 5_000,
            "stage": "good",
            "source": "texts/notes.md",
        }
        for number in range(ITEMS + 5)
    ]
    (tmp_path / "corpus").mkdir()
    made = held_out_set(world.ports, Corpora(tmp_path / "corpus", rows))
    assert replace(made, digest="", bytes=0) == Input("set", HELD_OUT, revision="3f2a51c08d7e9b64", files=1)
    assert held_out_set(world.ports, Corpora(tmp_path / "corpus", rows)) == made
    transport = DirectoryTransport(tmp_path / "artifacts")
    fetch_tree(transport, tree_prefix("input", made.digest), tmp_path / "fetched")
    items = list(read_items(tmp_path / "fetched" / "held-out.jsonl").items.values())
    assert len(items) == ITEMS
    assert [(item.cluster, item.domain) for item in items[:3]] == [("0", ""), ("0", "ufm"), ("1", "ufm")]
    assert {len(item.task["text"]) for item in items} == {TEXT_CHARACTERS}


def test_a_corpus_that_cannot_be_read_or_is_none_gives_no_set(world: World, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    with pytest.raises(CorpusDamaged):
        held_out_set(world.ports, Corpora(tmp_path / "corpus", [{"id": "a"}]))
    with pytest.raises(Refusal, match="no corpus yet"):
        held_out_set(world.ports, Corpora(tmp_path / "corpus", []), corpus="")
