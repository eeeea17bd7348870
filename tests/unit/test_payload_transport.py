"""The folder transport: all at once, create-only, nothing left behind."""

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.store.presigned import PresignedTransport
from jobs.payload.store.transport import DirectoryTransport


@pytest.fixture
def transport(tmp_path: Path) -> DirectoryTransport:
    return DirectoryTransport(tmp_path / "store")


def test_what_is_published_can_be_read_fetched_and_verified(transport: DirectoryTransport, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"weights" * 1000)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    assert transport.publish_new("jobs/a/blobs/x", source)
    assert transport.exists("jobs/a/blobs/x")
    assert transport.read("jobs/a/blobs/x") == source.read_bytes()
    assert transport.fetch("jobs/a/blobs/x", tmp_path / "copy") == digest
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    assert transport.verify("jobs/a/blobs/x", digest)
    assert not transport.verify("jobs/a/blobs/x", "0" * 64)
    assert not transport.verify("jobs/a/blobs/y", digest)


def test_a_taken_name_is_refused_and_unchanged(transport: DirectoryTransport) -> None:
    assert transport.publish_new("a/b", b"first")
    assert not transport.publish_new("a/b", b"second")
    assert transport.read("a/b") == b"first"


def test_of_two_publishers_at_once_one_wins(
    transport: DirectoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is taken between our look and our link; the link, not the look, decides."""
    link = os.link

    def late_link(source: str, target: str, **folders: Any) -> None:
        (tmp_path / "store/a" / target).write_bytes(b"theirs")
        link(source, target, **folders)

    monkeypatch.setattr(os, "link", late_link)
    assert not transport.publish_new("a/b", b"ours")
    assert transport.read("a/b") == b"theirs"
    assert [path.name for path in (tmp_path / "store/a").iterdir()] == ["b"]


def test_put_replaces(transport: DirectoryTransport) -> None:
    transport.put("a/b", b"first")
    transport.put("a/b", b"second", durable=False)
    assert transport.read("a/b") == b"second"


def test_a_full_disk_leaves_no_half_object(
    transport: DirectoryTransport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "store/a").mkdir(parents=True)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        transport.publish_new("a/b", b"content")
    with pytest.raises(OSError, match="No space left"):
        transport.put("a/c", b"content")
    assert list((tmp_path / "store/a").iterdir()) == []


def test_a_missing_object_is_a_missing_file(transport: DirectoryTransport, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        transport.read("a/b")
    with pytest.raises(FileNotFoundError):
        transport.fetch("a/b", tmp_path / "copy")
    with pytest.raises(FileNotFoundError):
        transport.folder("a")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "a/../../b", ".."])
def test_a_key_never_leaves_the_store(transport: DirectoryTransport, key: str) -> None:
    with pytest.raises(ValueError, match="is not a key"):
        transport.put(key, b"")


@pytest.mark.parametrize("key", ["jobs/a/blobs/x", "jobs/a/blobs/y"])
def test_what_a_session_has_no_right_to_read_is_not_known_to_be_good(tmp_path: Path, key: str) -> None:
    """A damaged object under a taken name would stay for ever if it counted as verified."""
    address = {"gets": {"jobs/a/manifests/1": "http://127.0.0.1:9/"}, "posts": [], "folders": {}}
    transport = PresignedTransport(address, tmp_path)
    assert transport.verify(key, hashlib.sha256(b"").hexdigest()) is False


def test_what_cannot_be_read_is_no_good_content(transport: DirectoryTransport, tmp_path: Path) -> None:
    """Something else in an object's place is trouble, and never a verified object."""
    (tmp_path / "store/jobs/a/blobs/x").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        transport.verify("jobs/a/blobs/x", hashlib.sha256(b"").hexdigest())
