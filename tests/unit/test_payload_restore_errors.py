"""Restoring tells a damaged checkpoint from a store that does not answer."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest

from jobs.payload.restore import restore

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
