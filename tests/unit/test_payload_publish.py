"""A finished checkpoint becomes visible whole or not at all, and never in place of another."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.payload.redact import Redactor
from jobs.payload.store.manifest import Component, Manifest, blob_key, parse_manifest, sha256_file
from jobs.payload.store.publish import (
    BadCheckpoint,
    Origin,
    PublishedManifest,
    discard,
    finished_steps,
    publish,
    same_content,
)
from jobs.payload.store.transport import DirectoryTransport

if TYPE_CHECKING:
    from pathlib import Path

STEP = 20
KEY = "jobs/ufm/manifests/000000000020-000003.json"


class Store(DirectoryTransport):
    """A store that remembers the order in which it was written."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.written: list[tuple[str, str]] = []

    def publish_new(self, key: str, source: Path | bytes) -> bool:
        """Remember a key that was free."""
        free = super().publish_new(key, source)
        self.written += [("new", key)] if free else []
        return free

    def put(self, key: str, source: Path | bytes, *, durable: bool = True) -> None:
        """Remember a key that is written again."""
        super().put(key, source, durable=durable)
        self.written.append(("again", key))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two files, one in a folder, and its metrics."""
    found = tmp_path / "step-00000020"
    (found / "optimizer").mkdir(parents=True)
    (found / "weights.bin").write_bytes(b"weights")
    (found / "optimizer" / "state.bin").write_bytes(b"state")
    (found / "meta.json").write_text(json.dumps({"step": STEP, "metrics": {"loss": 2.5}}))
    return found


def parent() -> Manifest:
    return Manifest("ufm", 10, 2, "uff-ufm-0002", 0, None, 5, 6, {}, (Component("w", "0" * 64, 1),))


def send(store: Store, folder: Path, known_good: frozenset[str] = frozenset(), **origin: Any) -> PublishedManifest:
    usual = {"job": "ufm", "attempt": 3, "run": "uff-ufm-0003", "lane": 1, "parent": parent()}
    return publish(store, folder, STEP, Origin(**{**usual, **origin}), 77, lambda: 1234.9, known_good)


def test_the_manifest_comes_last_and_says_who_made_what(store: Store, folder: Path) -> None:
    digests = {path.name: sha256_file(path) for path in folder.rglob("*") if path.is_file()}
    found = send(store, folder)
    assert store.written == [
        *(("new", blob_key("ufm", digests[name])) for name in ("meta.json", "state.bin", "weights.bin")),
        ("new", KEY),
    ]
    assert found.digests == set(digests.values())
    manifest = found.manifest
    assert parse_manifest(KEY, store.read(KEY)) == manifest
    assert (manifest.step, manifest.attempt, manifest.run, manifest.lane) == (STEP, 3, "uff-ufm-0003", 1)
    assert (manifest.parent, manifest.created_at, manifest.trained_seconds) == (parent().key, 1234, 77)
    assert manifest.metrics == {"loss": 2.5}
    assert [(part.name, part.bytes) for part in manifest.components] == [
        ("meta.json", (folder / "meta.json").stat().st_size),
        ("optimizer/state.bin", 5),
        ("weights.bin", 7),
    ]


def test_what_has_no_parent_names_none(store: Store, folder: Path) -> None:
    assert send(store, folder, parent=None).manifest.parent is None


def test_what_this_session_wrote_is_not_sent_again(store: Store, folder: Path) -> None:
    weights = sha256_file(folder / "weights.bin")
    send(store, folder, frozenset({weights}))
    assert ("new", blob_key("ufm", weights)) not in store.written
    assert len(store.written) == 3


@pytest.mark.parametrize("damaged", [False, True])
def test_an_object_that_lies_there_is_written_again_only_if_it_is_damaged(
    store: Store, folder: Path, *, damaged: bool
) -> None:
    key = blob_key("ufm", sha256_file(folder / "weights.bin"))
    DirectoryTransport.put(store, key, b"spoilt!" if damaged else b"weights")
    send(store, folder)
    assert (("again", key) in store.written, store.read(key)) == (damaged, b"weights")


def test_the_same_step_again_stands_as_it_was_published_first(store: Store, folder: Path) -> None:
    first = send(store, folder)
    (folder / "meta.json").write_text(json.dumps({"step": STEP, "metrics": {"loss": 9.5}}))
    again = send(store, folder)
    assert again.manifest == first.manifest
    assert again.digests - first.digests == {sha256_file(folder / "meta.json")}


@pytest.mark.parametrize("name", ["weights.bin", "more.bin"])
def test_other_content_of_the_same_step_is_refused_and_what_stands_stays(store: Store, folder: Path, name: str) -> None:
    send(store, folder)
    before = store.read(KEY)
    (folder / name).write_bytes(b"another")
    with pytest.raises(BadCheckpoint, match="taken by other content of the same step; it stays"):
        send(store, folder)
    assert store.read(KEY) == before


def test_a_name_that_something_else_has_is_refused(store: Store, folder: Path) -> None:
    DirectoryTransport.put(store, KEY, b"no manifest")
    with pytest.raises(BadCheckpoint, match=f"{KEY} is taken by something else: not JSON"):
        send(store, folder)
    assert store.read(KEY) == b"no manifest"


def test_a_folder_is_compared_without_its_metrics(store: Store, folder: Path) -> None:
    manifest = send(store, folder).manifest
    (folder / "meta.json").write_text("{}")
    assert same_content(folder, manifest) is True
    assert same_content(folder, replace(manifest, components=manifest.components[:-1])) is False
    (folder / "weights.bin").write_bytes(b"WEIGHTS")
    assert same_content(folder, manifest) is False


def test_only_folders_that_bear_the_name_of_a_step_are_finished(tmp_path: Path) -> None:
    for name in (
        "step-00000030",
        "step-00000004",
        "step-000000000100",
        "step-5",
        ".doomed-step-00000006",
        "step-0000000x",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000007").touch()
    assert list(finished_steps(tmp_path).items()) == [
        (4, tmp_path / "step-00000004"),
        (30, tmp_path / "step-00000030"),
        (100, tmp_path / "step-000000000100"),
    ]


def test_a_folder_loses_its_name_before_its_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    doomed: list[tuple[Path, bool]] = []
    monkeypatch.setattr("shutil.rmtree", lambda place, *, ignore_errors: doomed.append((place, ignore_errors)))
    discard(folder)
    assert doomed == [(folder.parent / ".doomed-step-00000020", True)]
    assert finished_steps(folder.parent) == {}
    monkeypatch.undo()
    doomed[0][0].rename(folder)
    discard(folder)
    assert list(folder.parent.iterdir()) == []


def test_a_secret_among_the_metrics_is_neither_sent_nor_kept(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "meta.json").write_text(json.dumps({"step": STEP, "metrics": {"hf_canary0123": 2.5}}))
    monkeypatch.setattr("jobs.payload.store.publish.hidden", Redactor(["hf_canary0123"]))
    assert list(send(store, folder).manifest.metrics.values()) == [2.5]
    files = [folder / "meta.json", *(path for path in (folder.parent / "store").rglob("*") if path.is_file())]
    assert [path for path in files if b"canary" in path.read_bytes()] == []


@pytest.mark.parametrize("meta", [None, "{", "[20]", '{"step": 21}', '{"metrics": {}}'])
def test_metrics_that_are_not_of_this_step_are_refused(store: Store, folder: Path, meta: str | None) -> None:
    (folder / "meta.json").unlink()
    if meta is not None:
        (folder / "meta.json").write_text(meta)
    with pytest.raises(BadCheckpoint, match=r"step-00000020/meta\.json"):
        send(store, folder)
    assert store.written == []


def test_a_component_is_a_plain_file_of_the_folder(store: Store, folder: Path, tmp_path: Path) -> None:
    (folder / "latest").symlink_to("weights.bin")
    assert len(send(store, folder).manifest.components) == 4
    (tmp_path / "outside").write_bytes(b"a key")
    for make in (
        lambda place: place.symlink_to(tmp_path / "outside"),
        lambda place: place.symlink_to("nowhere"),
        os.mkfifo,
        lambda place: place.with_name("na me").touch(),
    ):
        make(folder / "odd")
        with pytest.raises(BadCheckpoint, match=r"step-00000020/(odd|na me) cannot be a component"):
            send(store, folder, attempt=4)
        for name in ("odd", "na me"):
            (folder / name).unlink(missing_ok=True)
    assert not store.exists("jobs/ufm/manifests/000000000020-000004.json")
