"""A session with signed addresses, as the payload uses them: it can do what it was granted, and nothing else."""

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jobs.payload.store.presigned import PresignedTransport
from platforms.artifacts.base import BlobStore, Grant, open_store

if TYPE_CHECKING:
    from typing import Protocol

    class S3Server(Protocol):
        """See tests/conftest.py."""

        forms: bool

        def options(self, **more: str) -> dict[str, str]: ...  # noqa: D102


GRANT = Grant(
    run="run-1",
    jobs=("ufm",),
    reads=("jobs/ufm/blobs/aa", "jobs/ufm/blobs/none", "runs/run-1/stop", "empty"),
    folders=("corpus/v1/mixtures/ufm",),
    lasts_seconds=600,
)


@pytest.fixture
def store(s3_server: "S3Server", tmp_path: Path) -> BlobStore:
    """A store with something to read in it."""
    made = open_store("s3", tmp_path / "notes", s3_server.options(prefix="uff/"))
    made.put("jobs/ufm/blobs/aa", b"weights")
    made.put("empty", b"")
    made.put("corpus/v1/mixtures/ufm/train-0.jsonl", b"{}\n")
    made.put("corpus/v1/mixtures/ufm/more/train-1.jsonl", b"[]\n")
    made.put("corpus/v1/mixtures/ufm-large/train-0.jsonl", b"not ours")
    return made


@pytest.fixture
def session(store: BlobStore, tmp_path: Path) -> PresignedTransport:
    """What a session makes of its launch document."""
    address = json.loads(json.dumps(store.payload_address(GRANT)))
    return PresignedTransport(address, tmp_path / "data")


def test_a_session_reads_what_it_was_granted(session: PresignedTransport, tmp_path: Path) -> None:
    assert session.read("jobs/ufm/blobs/aa") == b"weights"
    assert session.fetch("jobs/ufm/blobs/aa", tmp_path / "copy") == hashlib.sha256(b"weights").hexdigest()
    assert (tmp_path / "copy").read_bytes() == b"weights"
    assert session.exists("jobs/ufm/blobs/aa")
    assert session.exists("empty")
    assert session.verify("jobs/ufm/blobs/aa", hashlib.sha256(b"weights").hexdigest())
    assert not session.verify("jobs/ufm/blobs/aa", "0" * 64)


def test_what_is_not_there_is_not_found(session: PresignedTransport, tmp_path: Path) -> None:
    for action in (
        lambda: session.read("runs/run-1/stop"),
        lambda: session.fetch("jobs/ufm/blobs/none", tmp_path / "copy"),
    ):
        with pytest.raises(FileNotFoundError):
            action()
    assert not session.exists("jobs/ufm/blobs/none")
    assert not session.verify("jobs/ufm/blobs/none", "0" * 64)
    assert not (tmp_path / "copy").exists()


def test_a_folder_is_copied_whole_and_once(session: PresignedTransport, store: BlobStore) -> None:
    folder = session.folder("corpus/v1/mixtures/ufm")
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.jsonl")}
    assert found == {"train-0.jsonl": b"{}\n", "more/train-1.jsonl": b"[]\n"}
    store.delete("corpus/v1/mixtures/ufm/train-0.jsonl")
    assert session.folder("corpus/v1/mixtures/ufm") == folder
    with pytest.raises(FileNotFoundError):
        session.folder("corpus/v1/mixtures/ucm")


def test_a_session_writes_below_its_prefixes(
    s3_server: "S3Server", session: PresignedTransport, store: BlobStore, tmp_path: Path
) -> None:
    weights = tmp_path / "weights"
    weights.write_bytes(os.urandom(3 << 20))
    if not s3_server.forms:  # then every write says so, and leaves nothing
        with pytest.raises(OSError, match="jobs/ufm/blobs/bb"):
            session.publish_new("jobs/ufm/blobs/bb", weights)
        assert store.size("jobs/ufm/blobs/bb") is None
        return
    assert session.publish_new("jobs/ufm/blobs/bb", weights)
    session.put("runs/run-1/lane-0/heartbeat.json", b'{"seq": 1}', durable=False)
    session.put("runs/run-1/lane-0/heartbeat.json", b'{"seq": 2}', durable=False)
    assert store.read("jobs/ufm/blobs/bb") == weights.read_bytes()
    assert store.read("runs/run-1/lane-0/heartbeat.json") == b'{"seq": 2}'


def test_what_a_session_may_read_it_creates_only_once(session: PresignedTransport) -> None:
    assert not session.publish_new("jobs/ufm/blobs/aa", b"other")
    assert session.read("jobs/ufm/blobs/aa") == b"weights"


@pytest.mark.parametrize("key", ["jobs/ucm/blobs/aa", "jobs/ufm-2/x", "runs/run-10/stop", "corpus/v1/x", "elsewhere"])
def test_a_session_has_no_right_beyond_its_grant(session: PresignedTransport, tmp_path: Path, key: str) -> None:
    for action in (
        lambda: session.read(key),
        lambda: session.fetch(key, tmp_path / "copy"),
        lambda: session.put(key, b""),
        lambda: session.exists(key),
    ):
        with pytest.raises(PermissionError):
            action()


def test_an_address_holds_no_secret(store: BlobStore) -> None:
    assert "test-secret" not in json.dumps(store.payload_address(GRANT))
