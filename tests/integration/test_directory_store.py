"""The folder store on a disk that is really full, and with writers that are really killed."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from platforms.artifacts.base import StoreError
from platforms.artifacts.directory import DirectoryStore
from tests.lab.disk import small_disk

# Publishes objects named by their digest for ever, and prints a name once its object counts as written.
WRITER = """
import hashlib, os, sys
from pathlib import Path
from platforms.artifacts.directory import DirectoryStore
store = DirectoryStore(Path(sys.argv[1]))
while True:
    data = os.urandom(50_000)
    name = hashlib.sha256(data).hexdigest()
    store.create(f"blobs/{name}", data)
    store.put("newest", name.encode())
    print(name, flush=True)
"""


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 256 KiB."""
    with small_disk(tmp_path / "disk", "256k") as folder:
        yield folder


def test_a_full_disk_loses_nothing_and_work_goes_on_when_there_is_room(tiny_disk: Path) -> None:
    store = DirectoryStore(tiny_disk / "store")
    store.put("heartbeat", b"old")
    for number in range(10):
        try:
            assert store.create(f"blobs/{number}", bytes([number]) * 50_000)
        except StoreError:
            break
    else:
        pytest.fail("the disk never filled up")
    with pytest.raises(StoreError, match="Make room"):
        store.put("heartbeat", b"new" * 50_000)
    assert store.read("heartbeat") == b"old"
    written = list(store.keys("blobs/"))
    assert len(written) == number
    for key in written:
        assert store.read(key) == bytes([int(key.removeprefix("blobs/"))]) * 50_000
    assert store.delete(written[0])
    assert store.create(f"blobs/{number}", bytes([number]) * 50_000)


@pytest.mark.parametrize("kill_after", [1, 3, 7, 12])
def test_a_writer_killed_at_any_moment_leaves_only_whole_objects(tmp_path: Path, kill_after: int) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "store")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline().strip() for _ in range(kill_after)]
        writer.kill()
        told += writer.stdout.read().splitlines()
    store = DirectoryStore(tmp_path / "store")
    names = {key.removeprefix("blobs/") for key in store.keys("blobs/")}
    assert set(told) <= names
    for name in names:
        assert hashlib.sha256(store.read(f"blobs/{name}")).hexdigest() == name
    assert store.read("newest").decode() in names
    store.sweep(older_than=float("inf"))
    assert not list((tmp_path / "store").rglob(".tmp-*"))
