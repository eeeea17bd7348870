"""A test set that an ancestor was trained on: the version is refused, and the reason says who saw what."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.corpus.build.build import build
from jobs.corpus.folder import CorpusFolder
from jobs.corpus.read.sources import parse_source
from jobs.spec import Input, JobSpec, Mixture
from scheduler.service.outside.ports import Ports
from scheduler.service.requests.stored import take_input
from scheduler.service.versions.item_sets import lineage
from scheduler.store import evaluations, generations, jobs, versions
from scheduler.store.engine import Database
from scheduler.views.weekly_report import make_report, render, week_named
from tests.lab.leak_pairs import PROSE
from tests.lab.patience import until
from tests.lab.trained_model import ITEMS, NOW, POINT, World, make_world, passing

TEXTS = [text for text, _ in PROSE] + [
    f"Take {number} from {number * 77} and add {number}." for number in range(ITEMS - 20)
]
OTHERS = [
    f"In the year {year} the town of number {year % 7} rebuilt its {year % 11} bridges." for year in range(1500, 1600)
]


def corpus(folder: Path, name: str, leaked: Sequence[str]) -> str:
    """Build a corpus of other texts and what leaked; return its version."""
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": f"{name}. {text}"}) + "\n" for text in (*OTHERS, *leaked)))
    return build([parse_source(str(source))], folder / "corpora", {}, held_out_fraction=0.0).version


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, tmp_path: Path, journal: Any) -> World:
    """A model of forty items with texts, whose corpora are in a folder; main, its parent, has no gates."""
    kept = CorpusFolder(tmp_path / "corpora")
    made = make_world(partial(make_ports, corpora=lambda: kept), database, tmp_path, journal, TEXTS)
    with database.write() as tx:
        jobs.add(tx, JobSpec("main", "main", ("train",), 100, 10.0), NOW)
    return made


def begin(world: World, of_main: str, of_ufm: str, **gate: Any) -> None:
    """Train main on one corpus and let ufm go on from it on another; ``""`` is none."""
    with world.database.write() as tx:
        for name, version in (("main", of_main), ("ufm", of_ufm)):
            jobs.change_spec(tx, name, NOW, "ann", mixture=Mixture(corpus=version) if version else None)
        jobs.change_spec(tx, "ufm", NOW, "ann", gates=(replace(POINT, **gate),))
    world.train("of main", model="main")
    with world.database.write() as tx:
        began = generations.begin(tx, "ufm", 1, NOW)
        key = jobs.get(tx, "main").checkpoint
        assert key
        generations.pin(tx, began, "main", 100, key, NOW, "daemon")


def judged(world: World, content: str, values: list[float]) -> None:
    """Train, evaluate and judge one version, however long the check's process takes to start on a busy machine."""
    world.judged(content, values)

    def is_over() -> bool:
        with world.database.read() as tx:
            if not evaluations.open_ones(tx):
                return True
        world.cycle.run()
        return False

    until(is_over, "a verdict")


def evidence(world: World) -> Any:
    with world.database.read() as tx:
        return evaluations.verdicts_of(tx, versions.get(tx, "ufm", 1))[-1].evidence


def test_a_set_that_an_ancestor_saw_refuses_the_version_and_the_report_says_who(world: World, tmp_path: Path) -> None:
    leaky, clean = corpus(tmp_path, "one", TEXTS[:2]), corpus(tmp_path, "two", [])
    begin(world, leaky, clean)
    judged(world, "a", [1.0, 1.0] + [0.5] * (ITEMS - 2))
    assert world.states() == [(1, "rejected")]
    found = evidence(world)
    saw = f"main at step 100 saw 2 of 40 items (2 passage) in corpus {leaky}"
    means = "atomicity is 0.525 over 40 items, 0.5 over the 38 not seen"
    assert found["leaks"]["sentences"] == [f"ufm@1 saw 0 of 40 items in corpus {clean}", saw, means]
    assert found["leaks"]["means"] == {"atomicity": {"all": 0.525, "unseen": 0.5}}
    assert "leaked" not in found["leaks"]  # of a large set they would be megabytes in the database
    assert found["reason"] == (
        "atomicity: 5.0% of the test set was seen in training, at most 1.0% may be: "
        f"ufm@1 saw 0 of 40 items in corpus {clean}; {saw}; {means}"
    )
    assert found["leaks"]["corpora"][1]["items"]["item-0"] == {"kind": "passage", "source": "one.jsonl"}
    report = make_report(world.database, world.ports.pools, week_named("this", "UTC", NOW), "UTC", NOW + 60)
    assert saw in " ".join(render(report, "text").split())


@pytest.mark.parametrize("gate", [{"leak": "report"}, {"leak_limit": 0.05}])
def test_a_gate_may_report_it_or_allow_more(world: World, tmp_path: Path, gate: dict[str, Any]) -> None:
    begin(world, corpus(tmp_path, "one", TEXTS[:2]), corpus(tmp_path, "two", []), **gate)
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "accepted")]
    assert evidence(world)["leaks"]["share"] == 0.05


def test_what_is_not_here_is_not_called_clean(world: World, tmp_path: Path) -> None:
    begin(world, "0123456789abcdef", "")
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "accepted")]
    leaks = evidence(world)["leaks"]
    assert (leaks["share"], leaks["seen"]) == (None, 0)
    assert leaks["sentences"] == [
        "ufm@1 not checked: it was trained on no corpus and on no input",
        "main at step 100 not checked: corpus 0123456789abcdef is not on this machine",
    ]


def test_a_damaged_corpus_is_not_called_clean_either(world: World, tmp_path: Path) -> None:
    version = corpus(tmp_path, "one", [])
    (shard,) = (tmp_path / "corpora" / version).glob("train-*.jsonl")
    shard.write_text("{}\n")
    begin(world, version, version)
    judged(world, "a", passing(1.0))
    (row,) = evidence(world)["leaks"]["corpora"]
    assert row["versions"] == ["ufm@1", "main at step 100"]
    assert "cannot be trusted" in row["why"]


def test_each_corpus_that_a_job_had_before_counts(world: World, tmp_path: Path) -> None:
    old, new = corpus(tmp_path, "one", TEXTS[:1]), corpus(tmp_path, "two", [])
    begin(world, "", old)
    with world.database.write() as tx:
        jobs.change_spec(tx, "ufm", NOW, "ann", mixture=Mixture(corpus=new))
    judged(world, "a", passing(1.0))
    with world.database.read() as tx:
        assert lineage(tx, versions.get(tx, "ufm", 1)) == [
            *((("ufm@1", one)) for one in sorted([old, new])),
            ("main at step 100", ""),
        ]
    assert world.states() == [(1, "rejected")]


def give_input(world: World, folder: Path, name: str = "data", **source: str) -> None:
    """Store an input of ufm, which is a folder of this machine unless ``source`` is given."""
    wanted = Input(name, **source or {"source": str(folder)})  # type: ignore[arg-type] # texts all
    stored = wanted if source else take_input(world.database, world.ports.artifacts, wanted, NOW, print)
    with world.database.write() as tx:
        jobs.change_spec(tx, "ufm", NOW, "ann", inputs=(stored,))


def test_items_in_an_input_refuse_the_version_too(world: World, tmp_path: Path) -> None:
    """Of a folder without train-*.jsonl all is compared but what is named as held out."""
    begin(world, "", "")
    pairs = tmp_path / "pairs"
    pairs.mkdir()
    lines = [{"prompt": f"Repeat number {number}.", "completion": text} for number, text in enumerate(TEXTS[:3])]
    (pairs / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (pairs / "test.jsonl").write_text(json.dumps({"text": TEXTS[4]}) + "\n")
    give_input(world, pairs)
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "rejected")]
    first, second = evidence(world)["leaks"]["corpora"]
    assert (first["input"], first["source"], first["seen"]) == ("data", str(pairs), 3)
    assert first["items"]["item-0"]["source"] == "data/pairs.jsonl"
    assert second["versions"] == ["main at step 100"]
    assert evidence(world)["leaks"]["sentences"][0] == "ufm@1 saw 3 of 40 items (3 passage) in input data"


def test_of_an_input_for_our_trainer_its_training_files_are_compared(world: World, tmp_path: Path) -> None:
    clean = corpus(tmp_path, "two", [])
    begin(world, "", clean)
    data = tmp_path / "data"
    data.mkdir()
    (data / "train-0.jsonl").write_text(json.dumps({"text": OTHERS[0]}) + "\n")
    (data / "notes.jsonl").write_text(json.dumps({"text": TEXTS[0]}) + "\n")
    give_input(world, data)
    with world.database.write() as tx:  # an input that it had before counts like the present one
        jobs.change_spec(tx, "ufm", NOW, "ann", inputs=())
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "accepted")]
    assert evidence(world)["leaks"]["sentences"][:2] == [
        f"ufm@1 saw 0 of 40 items in corpus {clean}",
        "ufm@1 saw 0 of 40 items in input data",
    ]


@pytest.mark.parametrize("stored", [True, False])
def test_an_input_that_is_not_compared_says_why(world: World, tmp_path: Path, *, stored: bool) -> None:
    begin(world, "", "")
    weights = tmp_path / "base"
    weights.mkdir()
    (weights / "model.safetensors").write_bytes(b"weights")
    give_input(world, weights, **({} if stored else {"source": "hf:nobody/nothing", "digest": "0" * 64}))
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "accepted")]
    leaks = evidence(world)["leaks"]
    assert leaks["share"] is None
    why = "its input data holds the weights of a model" if stored else "its input data cannot be read: Missing: "
    assert leaks["sentences"][0].startswith(f"ufm@1 not checked: {why}")


def test_a_check_that_dies_is_not_called_clean(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = corpus(tmp_path, "one", TEXTS[:2])
    begin(world, version, version)
    monkeypatch.setattr("scheduler.service.outside.child_process.sys", SimpleNamespace(executable="/bin/false"))
    judged(world, "a", passing(1.0))
    assert world.states() == [(1, "accepted")]
    (sentence,) = evidence(world)["leaks"]["sentences"]
    assert sentence.startswith("ufm@1 and main at step 100 not checked: the leak check's process ")
