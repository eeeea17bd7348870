"""Training data: what a job names is made for it, once; a job that names nothing is kept waiting for nobody's."""

import threading
from pathlib import Path

import pytest

from config.settings import CorpusSettings
from jobs.catalogue import Catalogue
from jobs.corpus.build import build as corpus_build
from jobs.secret_scan import SecretsFound
from jobs.spec import JobSpec, Mixture
from platforms.artifacts.directory import DirectoryStore
from scheduler.service.launch.inputs import TrainingData
from scheduler.store import jobs
from scheduler.store.engine import Database
from tests.lab.patience import PATIENCE_SECONDS

NOW = 1_795_000_000


def corpus_of(text: Path) -> CorpusSettings:
    """The settings of a corpus of one file."""
    return CorpusSettings(sources=(str(text),), held_out_fraction=0.1, max_bytes=1 << 20, held_out_clusters=0)


@pytest.fixture
def data(database: Database, tmp_path: Path) -> TrainingData:
    """Two jobs, ``bare`` without a mixture and ``full`` with one."""
    with database.write() as tx:
        for name, mixture in (("bare", None), ("full", Mixture())):
            jobs.add(tx, JobSpec(name, "manager", ("train",), 100, 10.0, mixture=mixture), NOW)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The node {n} balances {n} loads of {n * n} jobs." for n in range(200)))
    return TrainingData(tmp_path / "root", corpus_of(text), Catalogue(), database, lambda: NOW)


def test_a_job_without_a_mixture_gets_nothing_and_nothing_is_built(data: TrainingData, tmp_path: Path) -> None:
    assert data.prefix("bare") == ""
    assert not (tmp_path / "root").exists()


def test_a_job_without_a_mixture_does_not_wait_for_the_data_of_another(
    data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    building, goes_on, real = threading.Event(), threading.Event(), corpus_build.build

    def slow(*sources: object, **options: object) -> object:
        building.set()
        assert goes_on.wait(PATIENCE_SECONDS)
        return real(*sources, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_build, "build", slow)
    found: list[str] = []
    other = threading.Thread(target=lambda: found.append(data.prefix("full")))
    other.start()
    assert building.wait(PATIENCE_SECONDS)
    assert data.prefix("bare") == ""
    goes_on.set()
    other.join(PATIENCE_SECONDS)
    assert found == [data.prefix("full")]


def test_another_mixture_makes_other_data_without_a_restart(data: TrainingData, database: Database) -> None:
    before = data.prefix("full")
    with database.write() as tx:
        jobs.change_spec(tx, "full", NOW, "ann", mixture=Mixture(), seed=7)
    assert data.prefix("full") != before
    with database.write() as tx:
        jobs.change_spec(tx, "full", NOW, "ann", mixture=None)
    assert data.prefix("full") == ""


def test_a_corpus_with_a_secret_is_not_copied_to_a_store_elsewhere(
    data: TrainingData, tmp_path: Path, database: Database
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(f"{text.read_text()}\n\nThe node logs in with npm_{'aB3dE6' * 6} at night.\n")
    store = DirectoryStore(tmp_path / "bucket")
    there = TrainingData(tmp_path / "root", corpus_of(text), Catalogue(), database, lambda: NOW, store)
    with pytest.raises(
        SecretsFound, match=r"corpus cannot be uploaded: it holds 1 secret: .*\.jsonl:\d+ \(npm token\)"
    ):
        there.prefix("full")
    assert not list((tmp_path / "bucket").rglob("*.jsonl"))
    with pytest.raises(SecretsFound) as found:
        there.build("ann")
    found.value.allow()
    there.build("ann")
    prefix = there.prefix("full")
    assert list((tmp_path / "bucket" / prefix).glob("train-*.jsonl"))
    assert data.prefix("full") == prefix


def test_a_corpus_with_refused_personal_data_is_not_copied_to_a_store_elsewhere(
    data: TrainingData, tmp_path: Path, database: Database
) -> None:
    text = tmp_path / "text.txt"
    text.write_text(f"{text.read_text()}\n\nAnna (anna.schmidt@uni-ulm.de) is paid by card 5425 2334 3010 9903.\n")
    store = DirectoryStore(tmp_path / "bucket")
    settings = corpus_of(text).model_copy(update={"refuse_personal": ("card number",)})
    there = TrainingData(tmp_path / "root", settings, Catalogue(), database, lambda: NOW, store)
    assert there.fingerprint() == data.fingerprint()
    with pytest.raises(SecretsFound, match=r"it holds 1 personal value: .*\.jsonl:\d+ \(card number\)"):
        there.prefix("full")
    assert not list((tmp_path / "bucket").rglob("*.jsonl"))
    TrainingData(tmp_path / "root", corpus_of(text), Catalogue(), database, lambda: NOW, store).prefix("full")
    assert list((tmp_path / "bucket").rglob("train-*.jsonl"))
