"""Restoring tells a damaged checkpoint from a store that does not answer."""

from __future__ import annotations

import errno
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from jobs.payload.store.manifest import Component, Manifest
from jobs.payload.store.publish import restore
from jobs.payload.store.transport import DirectoryTransport

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [f"jobs/ufm/manifests/{step:012d}-000001.json" for step in (400, 300)]


class Broken:
    """A store whose every read fails with one error."""

    def __init__(self, error: OSError) -> None:
        self.error = error

    def read(self, key: str) -> bytes:
        """Fail."""
        raise self.error


@pytest.mark.parametrize(
    "error",
    [TimeoutError("no answer"), ConnectionResetError("gone"), OSError("refused"), OSError(errno.ENOSPC, "full")],
)
def test_a_store_that_does_not_answer_condemns_no_checkpoint(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        restore(Broken(error), "ufm", KEYS, tmp_path / "resume")  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "bad sector"), FileNotFoundError(errno.ENOENT, "gone")])
def test_an_object_that_can_never_be_read_is_recorded_and_the_one_before_it_tried(
    error: OSError, tmp_path: Path
) -> None:
    restored = restore(Broken(error), "ufm", KEYS, tmp_path / "resume")  # type: ignore[arg-type]
    assert restored.manifest is None
    assert [key for key, _ in restored.bad] == KEYS


def stored(folder: Path, at: int, content: bytes = b"weights", **changes: Any) -> str:
    """Put a checkpoint of one component into a store; ``changes`` are made to its document."""
    transport = DirectoryTransport(folder)
    digest = hashlib.sha256(content).hexdigest()
    part = Component("model.bin", digest, changes.pop("size", len(content)))
    manifest = Manifest("ufm", at, 1, "uff-ufm-0001", 0, None, 1, 1, {}, (part,))
    transport.publish_new(f"jobs/ufm/blobs/{digest}", content)
    transport.publish_new(manifest.key, json.dumps({**json.loads(manifest.encode()), **changes}).encode())
    return manifest.key


@pytest.mark.parametrize("size", [0, 6, 8])
def test_a_component_of_another_size_is_damage_although_its_digest_is_right(tmp_path: Path, size: int) -> None:
    """The manifest and the object contradict each other: one of them is not what was saved."""
    sound, wrong = stored(tmp_path / "store", 300), stored(tmp_path / "store", 400, b"WEIGHTS", size=size)
    restored = restore(DirectoryTransport(tmp_path / "store"), "ufm", [wrong, sound], tmp_path / "resume")
    assert restored.bad == ((wrong, f"component model.bin has 7 bytes, not {size}"),)
    assert restored.manifest is not None
    assert (restored.manifest.key, (tmp_path / "resume/model.bin").read_bytes()) == (sound, b"weights")


@pytest.mark.parametrize("change", [{"step": 401}, {"attempt": 2}, {"job": "ucm"}], ids=str)
def test_a_manifest_whose_content_is_not_what_it_is_named_is_damage(tmp_path: Path, change: dict[str, Any]) -> None:
    """A copy under another name would let steps go back, or one job train on another's weights."""
    sound, wrong = stored(tmp_path / "store", 300), stored(tmp_path / "store", 400, **change)
    restored = restore(DirectoryTransport(tmp_path / "store"), "ufm", [wrong, sound], tmp_path / "resume")
    assert restored.bad == ((wrong, "job, step or attempt differ from its name"),)
    assert restored.manifest is not None
    assert restored.manifest.key == sound


def test_content_that_is_not_what_its_name_says_is_damage(tmp_path: Path) -> None:
    key = stored(tmp_path / "store", 400)
    blob = next((tmp_path / "store/jobs/ufm/blobs").iterdir())
    blob.write_bytes(b"WEIGHTS")
    restored = restore(DirectoryTransport(tmp_path / "store"), "ufm", [key], tmp_path / "resume")
    assert restored.manifest is None
    assert restored.bad == ((key, "component model.bin does not have the digest it is named by"),)
    assert list(tmp_path.glob("resume*")) == []
