"""Trees: a folder of any size goes into the store once, and comes out of it whole and read-only, or not at all."""

import errno
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jobs.inputs import folder as packing
from jobs.inputs.folder import TreeError
from jobs.payload.store import tree as trees_of_sessions
from jobs.payload.store.transport import DirectoryTransport
from jobs.payload.store.tree import LIMITS, LISTING, BadListing, fetch_tree, remove_tree, tree_prefix
from platforms.artifacts.base import Grant, StoreUnreachable
from platforms.artifacts.directory import DirectoryStore
from scheduler.core.retention import DAY
from scheduler.service.launch.inputs import put_tree
from scheduler.service.outside.ports import Ports
from scheduler.service.upkeep.housekeeping import retain_trees
from scheduler.store import trees
from scheduler.store.engine import Database

NOW = 1_795_000_000
PIECE = 1_000


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a thousand bytes, so that small files show what large ones do."""
    monkeypatch.setattr(packing, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(trees_of_sessions, "PIECE_BYTES", PIECE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of all kinds: empty, of exactly one piece, of several, a program, a link, hidden, odd names."""
    made = tmp_path / "model"
    (made / "a" / "b").mkdir(parents=True)
    (made / "empty").write_bytes(b"")
    (made / "a" / "piece").write_bytes(os.urandom(PIECE))
    (made / "a" / "b" / "large").write_bytes(os.urandom(5 * PIECE + 7))
    (made / "run.sh").write_text("#!/bin/sh\n")
    (made / "run.sh").chmod(0o755)
    (made / ".hidden").write_text("h")
    (made / "li\nne é").write_text("odd")
    (made / "newest").symlink_to("a/b/large")
    return made


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty artifact store."""
    return DirectoryStore(tmp_path / "artifacts")


@pytest.fixture
def put(database: Database, store: DirectoryStore, folder: Path) -> Callable[..., str]:
    """Stores the folder; returns the prefix of its tree."""

    def run(into: Any = store, kind: str = "input") -> str:
        return tree_prefix(kind, put_tree(database, into, folder, kind, NOW + DAY).digest)

    return run


class Reading:
    """A transport that counts what it fetches, and dies at a fetch when told to."""

    def __init__(self, store: DirectoryStore, dies_at: int = 0) -> None:
        self._inner = DirectoryTransport(Path(store.payload_address(Grant("", (), (), (), 0))["root"]))
        self.dies_at, self.fetches = dies_at, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def fetch(self, key: str, target: Path) -> str:
        """Fetch, unless it is time to die."""
        self.fetches += 1
        if self.fetches == self.dies_at:
            raise ConnectionError("killed")
        return self._inner.fetch(key, target)


def content(folder: Path) -> dict[str, bytes | str]:
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def test_a_folder_comes_out_as_it_went_in_and_cannot_be_changed(
    put: Callable[..., str], store: DirectoryStore, folder: Path, tmp_path: Path
) -> None:
    prefix, target = put(), tmp_path / "cache" / "model"
    told: list[tuple[int, int]] = []
    tree = fetch_tree(Reading(store), prefix, target, lambda done, total: told.append((done, total)))
    assert content(target) == content(folder)
    assert told[-1] == (tree.bytes, tree.bytes)
    modes = {path.name: path.lstat().st_mode & 0o777 for path in target.rglob("*") if not path.is_symlink()}
    assert (modes["run.sh"], modes["large"], modes["b"], target.stat().st_mode & 0o777) == (0o555, 0o444, 0o555, 0o555)
    again = Reading(store)
    fetch_tree(again, prefix, target)
    assert again.fetches == 1, "the listing alone"
    assert sorted(path.name for path in target.parent.iterdir()) == [".model.lock", "model"]
    remove_tree(target)
    assert not target.exists()


def test_an_upload_that_is_cut_anywhere_goes_on_and_is_believed_only_when_whole(
    put: Callable[..., str], store: DirectoryStore, folder: Path
) -> None:
    class Dying:
        """A store that takes one more object each time, and then dies."""

        def __init__(self) -> None:
            self.left = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def create(self, key: str, source: Path | bytes) -> bool:
            if not self.left:
                raise StoreUnreachable("create", key, "killed")
            self.left -= 1
            assert store.create(key, source), "nothing is sent twice"
            return True

    tries, prefix = 0, ""
    while not prefix:
        tries += 1
        try:
            prefix = put(Dying())
        except StoreUnreachable:
            assert not [key for key in store.keys("input/") if key.endswith(LISTING)] or tries > 8
    assert tries == len(list(store.keys(f"{prefix}/")))
    assert put() == prefix
    assert put(kind="wheels").rpartition("/")[2] != prefix.rpartition("/")[2], "what it is for is part of its name"


def test_a_fetch_that_is_cut_anywhere_goes_on_where_it_was(
    put: Callable[..., str], store: DirectoryStore, folder: Path, tmp_path: Path
) -> None:
    prefix, target, pieces = put(), tmp_path / "fetched", 0
    for _ in range(20):
        one = Reading(store, dies_at=3)  # the listing, one piece, death
        try:
            fetch_tree(one, prefix, target)
        except ConnectionError:
            pieces += 1
            assert not target.exists()
        else:
            break
    assert content(target) == content(folder)
    assert pieces >= 5, "each try brought one piece further"


def test_damage_in_the_making_and_in_the_store_is_found(
    put: Callable[..., str], store: DirectoryStore, folder: Path, tmp_path: Path
) -> None:
    prefix, target = put(), tmp_path / "fetched"
    with pytest.raises(ConnectionError):
        fetch_tree(Reading(store, dies_at=6), prefix, target)
    making = tmp_path / ".fetched.making" / "files"
    for path in making.rglob("*"):  # the same sizes, other bytes
        if path.is_file() and not path.is_symlink():
            path.write_bytes(bytes(path.stat().st_size))
    fetch_tree(Reading(store), prefix, target)
    assert content(target) == content(folder)
    remove_tree(target)
    key = next(key for key in store.keys(f"{prefix}/") if not key.endswith(LISTING))
    sound = store.read(key)
    store.put(key, bytes(len(sound)))
    with pytest.raises(BadListing, match="digest it is named by"):
        fetch_tree(Reading(store), prefix, target)
    store.put(key, sound)
    fetch_tree(Reading(store), prefix, target)
    (target / "a").chmod(0o755)
    (target / "a" / "piece").chmod(0o644)
    (target / "a" / "piece").write_bytes(b"")  # what a power cut leaves
    fetch_tree(Reading(store), prefix, target)
    assert content(target) == content(folder)
    store.put(f"{prefix}/{LISTING}", store.read(f"{prefix}/{LISTING}") + b" ")
    with pytest.raises(BadListing, match="listing"):
        fetch_tree(Reading(store), prefix, tmp_path / "other")
    with pytest.raises(FileNotFoundError):
        fetch_tree(Reading(store), f"input/{'0' * 64}", tmp_path / "other")


def test_two_that_want_the_same_fetch_it_once(put: Callable[..., str], store: DirectoryStore, tmp_path: Path) -> None:
    prefix, readers = put(), [Reading(store), Reading(store)]
    start = threading.Barrier(2)

    def fetch(reader: Reading) -> None:
        start.wait()
        fetch_tree(reader, prefix, tmp_path / "fetched")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fetch, readers))
    assert min(reader.fetches for reader in readers) == 1


DYING = """
import os, sys
from pathlib import Path
from jobs.payload.store import tree
from jobs.payload.store.transport import DirectoryTransport
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
tree.PIECE_BYTES, left = 1_000, [int(sys.argv[4])]
class Dying(DirectoryTransport):
    def fetch(self, key, target):
        if not left[0]:
            os.kill(os.getpid(), 9)
        left[0] -= 1
        return super().fetch(key, target)
tree.fetch_tree(Dying(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3]))
"""


def test_a_session_that_is_killed_leaves_its_right_and_its_pieces_to_the_next(
    put: Callable[..., str], store: DirectoryStore, folder: Path, tmp_path: Path
) -> None:
    """By users who may not do everything, as sessions are."""
    prefix, place = put(), Path(tempfile.mkdtemp(prefix="uff-trees-"))
    place.chmod(0o777)
    shutil.copytree(tmp_path / "artifacts", place / "store")
    (place / "cache").mkdir()
    (place / "cache").chmod(0o777)
    for path in (place / "store", *(place / "store").rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    try:
        words = [sys.executable, "-c", DYING, str(place / "store"), prefix, str(place / "cache" / "model")]
        for pieces in (0, 1, 4):
            assert subprocess.run([*words, str(pieces)], check=False).returncode == -9
            assert not (place / "cache" / "model").exists()
        done = subprocess.run([*words, "99"], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert content(place / "cache" / "model") == content(folder)
        assert (place / "cache" / "model").stat().st_mode & 0o222 == 0
    finally:
        remove_tree(place)


def test_a_full_disk_is_told_before_anything_is_fetched(
    put: Callable[..., str], store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, reader = put(), Reading(store)
    full = os.statvfs_result((4096, 4096, 10, 1, 1, 10, 1, 1, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda _path: full)
    with pytest.raises(OSError, match=r"GB are needed and 0\.00 GB are free") as caught:
        fetch_tree(reader, prefix, tmp_path / "fetched")
    assert (caught.value.errno, reader.fetches) == (errno.ENOSPC, 1)


def device(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def sock(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)
    try:
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind("socket")
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda folder: (folder / "out").symlink_to("/etc/passwd"), "link out of the folder"),
        (lambda folder: (folder / "out").symlink_to("../secret"), "link out of the folder"),
        (device, "a device, a socket or a pipe"),
        (sock, "a device, a socket or a pipe"),
        (lambda folder: Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("x"), "a name that is no text"),
    ],
)
def test_a_hostile_folder_is_refused(put: Callable[..., str], folder: Path, spoil: Any, why: str) -> None:
    spoil(folder)
    with pytest.raises(TreeError, match=why):
        put()


def test_limits_and_empty_folders_are_told(put: Callable[..., str], folder: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(packing, "LIMITS", LIMITS._replace(files=3))
    with pytest.raises(TreeError, match="more than 3 files"):
        put()
    monkeypatch.setattr(packing, "LIMITS", LIMITS._replace(files=100, bytes=PIECE))
    with pytest.raises(TreeError, match="largest: 'a/b/large'"):
        put()
    with pytest.raises(TreeError, match="no such folder"):
        packing.pack_folder(folder / "nowhere", "input")
    (folder / "a" / "none").mkdir()
    with pytest.raises(TreeError, match="it is empty"):
        packing.pack_folder(folder / "a" / "none", "input")


def test_a_file_that_changes_while_it_is_sent_is_not_stored(folder: Path) -> None:
    packed = packing.pack_folder(folder, "input")
    (folder / "a" / "b" / "large").write_bytes(os.urandom(5 * PIECE + 7))
    with pytest.raises(TreeError, match="changed while it was read"), (folder.parent / "sink").open("wb") as sink:
        packed.write_piece(2, sink)
    (folder / "a" / "b" / "large").write_bytes(b"short")
    with pytest.raises(TreeError, match="'a/b/large' changed"), (folder.parent / "sink").open("wb") as sink:
        packed.write_piece(2, sink)


def test_what_nobody_names_leaves_the_store(make_ports: Callable[..., Ports], database: Database, folder: Path) -> None:
    ports = make_ports()
    put_tree(database, ports.artifacts, folder, "input", NOW + DAY)
    retain_trees(ports, NOW)
    assert list(ports.artifacts.keys("input/"))
    retain_trees(ports, NOW + 2 * DAY)
    assert list(ports.artifacts.keys("input/")) == []
    with database.read() as tx:
        assert trees.everything(tx) == []
