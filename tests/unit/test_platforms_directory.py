"""The folder store where the conformance suite cannot reach: full disks, dead writers, clashing names."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.artifacts.directory import DirectoryStore


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


def files(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_tears_nothing_and_the_call_can_be_repeated(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    store.put("job/heartbeat", b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StoreError, match="Make room"):
            store.create("job/weights", b"new")
        if call == "fsync":
            with pytest.raises(StoreError):
                store.put("job/heartbeat", b"new")
    assert files(root) == ["job/heartbeat"]
    assert store.read("job/heartbeat") == b"old"
    assert store.create("job/weights", b"new")


def test_a_broken_disk_is_unreachable_rather_than_empty(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(StoreUnreachable, match="Input/output"):
        store.create("a", b"")


def test_a_store_that_is_gone_is_unreachable_rather_than_empty(store: DirectoryStore, root: Path) -> None:
    store.put("a/b", b"")
    root.rename(root.with_name("unmounted"))
    for action in (
        lambda: store.read("a/b"),
        lambda: store.size("a/b"),
        lambda: store.delete("a/b"),
        lambda: list(store.keys("")),
        lambda: list(store.keys("a/")),
        lambda: store.create("a/b", b""),
        lambda: store.put("a/b", b""),
    ):
        with pytest.raises(StoreUnreachable):
            action()
    assert not root.exists()


def test_everything_is_synced_before_it_counts(
    store: DirectoryStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content before the name, new folders into the folders above them, and the name itself last."""
    order: list[str] = []
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        order.append("content" if path.name.startswith(".tmp-") else f"folder {path.relative_to(root)}")
        fsync(descriptor)

    def noted_link(source: str, target: str, **folders: Any) -> None:
        order.append("name")
        link(source, target, **folders)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    store.create("jobs/ufm", b"x")
    assert order == ["folder .", "content", "name", "folder jobs"]


def test_a_dead_writers_file_is_invisible_and_swept_by_age(store: DirectoryStore, root: Path) -> None:
    store.put("a/b", b"")
    for name, age in ((".tmp-old", 1000), (".tmp-new", 3000)):
        (root / "a" / name).write_bytes(b"half")
        os.utime(root / "a" / name, (age, age))
    assert list(store.keys("")) == ["a/b"]
    assert store.sweep(older_than=2000) == 1
    assert files(root) == ["a/.tmp-new", "a/b"]


def test_a_key_cannot_be_folder_and_object_at_once(store: DirectoryStore, root: Path) -> None:
    store.put("a/b", b"1")
    for action in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.create("a/b/c", b""),
        lambda: store.put("a/b/c", b""),
    ):
        with pytest.raises(StoreError, match="already the key of an object"):
            action()
    assert files(root) == ["a/b"]


def test_a_fetch_that_fails_leaves_no_target(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", b"x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError):
        store.fetch("a", tmp_path / "copies" / "a")
    assert files(tmp_path / "copies") == []
