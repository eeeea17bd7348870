"""Pins: a job stays on the version of the corpus that its first session got, until it is told or begins anew."""

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from config.settings import CorpusSettings
from jobs.catalogue import Catalogue
from jobs.corpus.errors import NoSuchVersion
from jobs.nouns.window import DAY
from jobs.problem import Refusal
from jobs.spec import JobSpec, Mixture
from scheduler.cli.commands.queue_changes import restart
from scheduler.core import job as arrows
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.launch.inputs import TrainingData
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.service.upkeep.housekeeping import retain_trees
from scheduler.store import events, jobs, runs, trees
from scheduler.store.engine import Database
from tests.lab.patience import PATIENCE_SECONDS

NOW = 1_795_000_000


@pytest.fixture
def world(database: Database, tmp_path: Path) -> SimpleNamespace:
    """A source of 60 texts, three jobs on the corpus, and the daemon's training data below the artifact store."""
    source = tmp_path / "mine"
    source.mkdir()
    for number in range(60):
        (source / f"{number}.txt").write_text(f"Node {number} balances {number**3} loads; " * 9)
    for name, mixture in (("ufm", Mixture()), ("ucm", Mixture(renew="update")), ("bare", None)):
        with database.write() as tx:
            jobs.add(tx, JobSpec(name, "manager", ("train",), 100, 10.0, mixture=mixture), NOW)
    corpus = CorpusSettings(sources=(str(source),), held_out_fraction=0.1, max_bytes=1 << 20, held_out_clusters=5)

    def data(**changed: Any) -> TrainingData:
        settings = corpus.model_copy(update=changed)
        return TrainingData(tmp_path / "artifacts", settings, Catalogue(), database, lambda: NOW)

    return SimpleNamespace(source=source, data=data, database=database, root=tmp_path / "artifacts")


def mixture_of(world: SimpleNamespace, job: str) -> Mixture:
    with world.database.read() as tx:
        found = jobs.get(tx, job).spec.mixture
    assert found is not None
    return found


def launched(world: SimpleNamespace, job: str) -> None:
    with world.database.write() as tx:
        jobs.note_launch(tx, job, "desk")


def test_a_job_stays_on_the_version_of_its_first_session(world: SimpleNamespace) -> None:
    data = world.data()
    prefix = data.prefix("ufm")
    first = mixture_of(world, "ufm").corpus
    assert prefix.startswith(f"corpus/{first}/mixtures/ufm-")
    held_out = (world.root / prefix / "heldout.jsonl").read_bytes()
    launched(world, "ufm")
    (world.source / "more.txt").write_text("A new text about other things.")
    second = data.build("ann").version
    assert second != first
    for after in (data, world.data(), world.data(held_out_fraction=0.4)):
        assert after.prefix("ufm") == prefix, "neither a build, nor a new daemon, nor other settings"
    assert (world.root / prefix / "heldout.jsonl").read_bytes() == held_out
    assert data.prefix("ucm").startswith(f"corpus/{second}/")
    with world.database.read() as tx:
        assert queue.jobs_by_version(tx) == {first: ["ufm"], second: ["ucm"]}
        built = events.tail(tx, kinds=("corpus.built",))
    assert [(event.subject, event.by) for event in built] == [(first, "daemon"), (second, "ann")]


def test_a_new_version_is_taken_up_as_the_job_says(world: SimpleNamespace) -> None:
    data = world.data()
    old = data.build("ann").version
    for job in ("ufm", "ucm"):
        data.prefix(job)
        launched(world, job)
    (world.source / "more.txt").write_text("A new text about other things.")
    new = data.build("ann").version
    for job, version in (("ufm", new), ("ucm", old)):
        restart(world.database, job, None, NOW, "ann")
        assert data.prefix(job).startswith(f"corpus/{version}/"), job
    record = queue.take_up(world.database, "ucm", new, NOW, "ann", DAY)
    assert record.spec.mixture == Mixture(corpus=new, renew="update")
    assert data.prefix("ucm").startswith(f"corpus/{new}/")
    with pytest.raises(Refusal, match=r"bare does not train on a corpus\. Give it one first: schedctl queue edit bare"):
        queue.take_up(world.database, "bare", new, NOW, "ann", DAY)


def test_another_definition_keeps_the_version_unless_it_names_one(world: SimpleNamespace) -> None:
    world.data().prefix("ufm")
    pinned = mixture_of(world, "ufm").corpus
    with world.database.read() as tx:
        spec = jobs.get(tx, "ufm").spec
    record, changed = queue.edit(world.database, "ufm", replace(spec, mixture=Mixture(), weight=3.0), NOW, "ann")
    assert (record.spec.mixture, changed) == (Mixture(corpus=pinned), ["weight"])
    other = replace(spec, mixture=Mixture(corpus="0" * 16))
    assert queue.edit(world.database, "ufm", other, NOW, "ann")[1] == ["weight", "mixture"]
    with world.database.read() as tx:
        assert "0" * 16 in {tree.digest for tree in trees.everything(tx)}, "what it names is needed from now on"
    with pytest.raises(NoSuchVersion, match="there is no corpus 0000000000000000: here are"):
        world.data().prefix("ufm")
    queue.remove(world.database, "ufm", NOW, "ann")
    (again,) = queue.add(world.database, [replace(spec, mixture=Mixture())], NOW, "ann", go_on=True)
    assert again.spec.mixture == Mixture(corpus="0" * 16), "what goes on, goes on with what it had"


def test_jobs_of_an_old_database_stay_on_what_they_trained_on(world: SimpleNamespace) -> None:
    """Before there were pins, the current version was everybody's, and a recipe was written otherwise."""
    data = world.data()
    old = data.build("ann").version
    pointer = world.root / "corpus" / "current.json"
    pointer.write_text(json.dumps({"version": old, "recipe": "[as it was written then]"}))
    launched(world, "ufm")
    assert world.data().prefix("ufm").startswith(f"corpus/{old}/")
    launched(world, "ucm")
    (world.source / "more.txt").write_text("A new text about other things.")
    new = world.data().build("ann").version
    assert mixture_of(world, "ucm").corpus == old != new, "a build comes before its next session"
    assert world.data().prefix("ucm").startswith(f"corpus/{old}/")


def test_where_the_folder_was_lost_the_same_sources_make_the_version_again(world: SimpleNamespace) -> None:
    prefix = world.data().prefix("ufm")
    shutil.rmtree(world.root)
    assert world.data().prefix("ufm") == prefix
    assert (world.root / prefix / "mixture.json").is_file()
    shutil.rmtree(world.root)
    (world.source / "0.txt").unlink()
    with pytest.raises(NoSuchVersion, match="See `schedctl corpus show`"):
        world.data().prefix("ufm")


def test_a_source_added_by_hand_is_in_the_next_version(world: SimpleNamespace, tmp_path: Path) -> None:
    data = world.data()
    first = data.build("ann")
    (tmp_path / "hand.txt").write_text("Added by hand.")
    data.folder.change_added(add=[str(tmp_path / "hand.txt")])
    assert world.data().prefix("ufm").split("/")[1] != first.version, "a first launch builds as the sources are now"
    assert set(data.build("ann").shares["source"]) == {"mine", "hand.txt"}


def test_a_build_that_goes_on_elsewhere_is_waited_for_and_used(world: SimpleNamespace) -> None:
    data, said = world.data(), list[str]()
    with world.data().folder.locked("build"):
        other = threading.Thread(target=lambda: data.build("ann", said.append))
        other.start()
        while not said:
            other.join(0.01)
    other.join(PATIENCE_SECONDS)
    assert said[0] == "waits for a build of the corpus in another process"
    assert said[-1] == "writing the corpus, 80 % done"


def test_versions_that_nobody_needs_go_after_the_grace(
    world: SimpleNamespace, make_ports: Callable[..., Ports]
) -> None:
    data = world.data()
    ports = make_ports(corpora=lambda: data.folder)
    versions = []
    for number in range(4):
        (world.source / "more.txt").write_text(f"Text number {number}, unlike any other.")
        versions.append(data.build("ann").version)
        if number == 0:
            data.prefix("ufm")
    _run(world, "ufm")
    queue.take_up(world.database, "ufm", versions[3], NOW, "ann", ports.policy.retention.grace_seconds)
    grace = ports.policy.retention.grace_seconds
    assert set(data.folder.versions()) == set(versions)
    retain_trees(ports, NOW)
    retain_trees(ports, NOW + grace)
    assert set(data.folder.versions()) == {versions[0], *versions[2:]}, "its session still reads the first one"
    retain_trees(ports, NOW + 10 * DAY + grace)
    assert set(data.folder.versions()) == set(versions[2:]), "the current one and the one before"
    with world.database.read() as tx:
        assert {tree.digest for tree in trees.everything(tx)} == set(versions[2:])
    assert not list((world.root / "corpus").glob(".going-*"))


def _run(world: SimpleNamespace, job: str) -> None:
    """Let a job have a session that holds its pool for ten days."""
    with world.database.write() as tx:
        attempt = jobs.note_launch(tx, job, "desk")
        key = f"uff-{job}-{attempt:04d}"
        lane = Lane(index=0, job=job, attempt=attempt, devices=(0,), restore_step=None)
        runs.insert(tx, Run(key, "desk", (lane,), NOW, NOW + 10 * DAY, NOW + 10 * DAY, Reserved(NOW)), NOW)
        record = jobs.get(tx, job)
        jobs.change_state(tx, job, record.state, arrows.activate(record.state, key, NOW), "activate", NOW)
