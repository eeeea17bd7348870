"""A file of somebody else is read only when it is a regular one, and never beyond its limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from config.credentials import read_secret
from config.errors import ConfigError
from config.layers import read_layers
from jobs.advice.seen import read_seen
from jobs.advice.shape import find_shape
from jobs.catalogue import job_from_toml, read_catalogue
from jobs.corpus.errors import CorpusDamaged
from jobs.corpus.manifest import read_json
from jobs.environment.tool import RequirementsError, read_demands
from jobs.payload.bounded_file import TEXT_BYTES_MAX, read_bounded
from jobs.payload.scorers.given import read_outputs
from jobs.payload.scorers.items import read_items
from jobs.problem import InvalidInput, NotFound, ProblemsFound
from platforms.base import Misconfigured
from platforms.kaggle.settings import read_credentials
from scheduler.cli.prompt import show_line
from scheduler.notify import exports
from scheduler.web.actors import read_bearer

READERS: tuple[tuple[Callable[[Path], object], type[Exception]], ...] = (
    (read_bounded, OSError),  # any content
    (job_from_toml, ProblemsFound),
    (lambda path: read_catalogue([path]), ProblemsFound),
    (read_layers, ConfigError),
    (lambda path: read_secret("TOKEN", {}, path.parent.parent), ConfigError),  # any content
    (lambda path: find_shape(str(path)), NotFound),
    (read_seen, NotFound),
    (read_demands, RequirementsError),
    (read_json, CorpusDamaged),
    (lambda path: read_bearer(path, {}, exposed=False), InvalidInput),
    (lambda path: show_line(str(path)), ConfigError),
    (lambda path: read_credentials(str(path), {}), Misconfigured),
)
EXPORTS: tuple[tuple[Callable[[Path], object], type[Exception]], ...] = (
    (lambda path: exports._write(path, b""), OSError),
    (lambda path: exports.add_events(path, []), OSError),
)
STREAMS: tuple[Callable[[Path], object], ...] = (read_items, read_outputs)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)  # a hole: it takes no room on the disk


@pytest.mark.parametrize("make", [_device, os.mkfifo, _huge, Path.mkdir])
@pytest.mark.parametrize(("read", "error"), READERS + EXPORTS)
def test_what_is_no_regular_file_or_too_large_is_refused(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], object], error: type[Exception]
) -> None:
    path = tmp_path / "credentials" / "TOKEN"
    path.parent.mkdir()
    make(path)
    with pytest.raises(error):
        read(path)


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("read", STREAMS)
def test_what_is_no_regular_file_holds_no_reader_of_lines(
    tmp_path: Path, make: Callable[[Path], None], read: Callable[[Path], object]
) -> None:
    make(tmp_path / "lines")
    with pytest.raises(OSError, match="lines"):
        read(tmp_path / "lines")


ODD_CONTENTS = {
    "deep": b"[" * 100_000,
    "deep value": b"a = " + b"[" * 100_000,
    "digits": b"[jobs]\ntarget_step = " + b"9" * 5_000,
    "noise": bytes(range(256)) * 9,
    "nul": b"\0" * 999,
    "other encoding": "a = 1".encode("utf-16"),
}


@pytest.mark.parametrize("content", ODD_CONTENTS)
@pytest.mark.parametrize(("read", "error"), [one for one in READERS[1:] if one[0] is not READERS[4][0]])
def test_odd_contents_are_the_readers_own_error(
    tmp_path: Path, content: str, read: Callable[[Path], object], error: type[Exception]
) -> None:
    (tmp_path / "file").write_bytes(ODD_CONTENTS[content])
    with pytest.raises(error):
        read(tmp_path / "file")


def test_a_file_that_would_have_its_reader_wait_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As /proc/kmsg, a regular file, where there is nothing left to read."""
    os.mkfifo(tmp_path / "kmsg")
    monkeypatch.setattr("stat.S_ISREG", lambda _: True)
    writer = os.open(tmp_path / "kmsg", os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError, match="kmsg"):
            read_bounded(tmp_path / "kmsg")
    finally:
        os.close(writer)


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b" " * TEXT_BYTES_MAX)
    (tmp_path / "link").symlink_to("file")
    assert len(read_bounded(tmp_path / "link")) == TEXT_BYTES_MAX
    with pytest.raises(OSError, match="larger than 4,194,303 bytes"):
        read_bounded(tmp_path / "file", TEXT_BYTES_MAX - 1)
