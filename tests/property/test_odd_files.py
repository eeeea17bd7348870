"""Whatever a session leaves in a folder that we read: nothing blocks, nothing outside is read or written."""

import os
import socket
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from platforms.artifacts.base import StoreError
from platforms.artifacts.directory import DirectoryStore
from platforms.base import Unreachable
from platforms.bundle import BadArchive, extract
from platforms.folders import Folders
from platforms.kaggle.session.observer import LaunchRecords
from platforms.local.adapter import Session
from platforms.local.records import CLAIM, END, ORDER, OUTPUT
from platforms.manual.adapter import OFFER, HandOver
from platforms.record_file import DamagedRecord
from platforms.relay import Intake
from tests.lab.night import share

OUTSIDE = b"canary: what lies outside"
KINDS = ("pipe", "socket", "link", "link to folder", "dangling", "loop", "folder", "file", "device")


def leave(kind: str, path: Path, outside: Path) -> None:
    """Put something of a kind at ``path``."""
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listening:
                here = os.open(path.parent, os.O_RDONLY)
                listening.bind(f"/proc/self/fd/{here}/{path.name}")
                os.close(here)
        case "link":
            path.symlink_to(outside / "secret")
        case "link to folder":
            path.symlink_to(outside)
        case "dangling":
            path.symlink_to(outside / "nothing")
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "file":
            path.write_bytes(b"plain")
        case "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which has no end
            except PermissionError:
                os.mkfifo(path)


def everything(outside: Path) -> dict[str, bytes]:
    return {path.relative_to(outside).as_posix(): path.read_bytes() for path in outside.rglob("*")}


@given(kind=st.sampled_from(KINDS), deep=st.booleans(), before=st.booleans())
@settings(max_examples=share(60), deadline=None)
def test_the_store_neither_blocks_nor_leads_out(kind: str, deep: bool, before: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        outside = Path(name, "outside")
        outside.mkdir()
        (outside / "secret").write_bytes(OUTSIDE)
        (outside / ".tmp-old").write_bytes(OUTSIDE)
        root = Path(name, "store")
        store = DirectoryStore(root)
        # The odd thing is the object itself, or a folder on the way to it.
        key = "runs/x/secret" if deep else "runs/x"
        (root / "runs").mkdir()
        leave(kind, root / "runs" / "x", outside)
        if kind == "folder" and deep and before:
            leave("link", root / "runs" / "x" / "secret", outside)
        kept = everything(outside)
        found = set()
        for act in (
            lambda: store.read(key),
            lambda: store.fetch(key, Path(name, "copy")),
            lambda: store.create(key, b"new"),
            lambda: store.put(key, b"new"),
            lambda: store.delete(key),
        ):
            assert store.size(key) in {None, 3, 5}
            assert OUTSIDE not in [
                store.read(listed) for prefix in ("", "runs/", "runs/x/") for listed in store.keys(prefix)
            ]
            try:
                found.add(act())
            except StoreError:
                continue
        store.sweep(float("inf"))
        assert OUTSIDE not in found
        assert not Path(name, "copy").exists() or Path(name, "copy").read_bytes() == b"plain"
        assert everything(outside) == kept


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_a_log_and_records_of_a_session_that_are_no_files_answer_at_once(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(OUTSIDE)
    folders = Folders("local", tmp_path / "pool")
    (tmp_path / "pool" / "uff-a-0001").mkdir()
    for name in (OUTPUT, CLAIM, END, ORDER):
        leave(kind, tmp_path / "pool" / "uff-a-0001" / name, outside)
    with pytest.raises(Unreachable), folders.answering("logs"):
        list(folders.read("uff-a-0001", OUTPUT, 0, 1_000))
    with pytest.raises(DamagedRecord):
        Session("uff-a-0001", tmp_path / "pool" / "uff-a-0001").observe(0)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_what_people_and_kaggle_leave_answers_at_once(tmp_path: Path, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b'{"offered_at": 1}')
    hand_over = HandOver("uff-a-0001", tmp_path / "desk" / "uff-a-0001")
    hand_over.folder.mkdir(parents=True)
    records = LaunchRecords(tmp_path / "launches")
    leave(kind, hand_over.folder / OFFER, outside)
    for name in ("uff-a-0001.json", "uff-a-0001.said"):
        leave(kind, tmp_path / "launches" / name, outside)
    for read in (hand_over.offer, lambda: records.read("uff-a-0001"), lambda: records.words("uff-a-0001")):
        with pytest.raises(DamagedRecord):
            read()
    intake = Intake("uff-a-0001", frozenset({"a"}))
    for key in ("runs/uff-a-0001/lane-0/result.json", f"jobs/a/manifests/{1:012}-{1:06}.json"):
        leave(kind, tmp_path / key.rpartition("/")[2], outside)
        assert not intake.is_sound(key, tmp_path / key.rpartition("/")[2])


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "device", "loop"])
def test_an_archive_that_is_none_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    leave(kind, tmp_path / "result.zip", tmp_path)
    with pytest.raises((BadArchive, OSError)):
        extract(tmp_path / "result.zip", tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()


def test_a_document_that_is_too_long_for_one_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "result.json").open("wb") as stream:
        stream.truncate(1 << 34)  # more than there is memory for
    intake = Intake("uff-a-0001", frozenset({"a"}))
    assert not intake.is_sound("runs/uff-a-0001/lane-0/result.json", tmp_path / "result.json")


def test_a_sessions_folder_that_became_a_link_leads_nowhere(tmp_path: Path) -> None:
    folders = Folders("local", tmp_path / "pool")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / OUTPUT).write_bytes(OUTSIDE)
    (tmp_path / "pool" / "uff-a-0001").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="uff-a-0001"):
        list(folders.read("uff-a-0001", OUTPUT, 0, 1_000))


def test_names_that_are_no_keys_are_not_listed(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in ("a b", "new\nline", "\u202ename", "-", "good"):
        (tmp_path / name).write_bytes(b"")
    deep = tmp_path
    for _ in range(30):
        deep /= "d"
        deep.mkdir()
    (deep / "x").write_bytes(b"")
    assert list(store.keys("")) == ["good"]
