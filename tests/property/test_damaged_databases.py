"""Damage every part of a database file: each command either works or fails as DatabaseCorrupt or DatabaseReadOnly."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.spec import JobSpec
from scheduler.cli.shell.exits import Exit, code_of
from scheduler.store import jobs
from scheduler.store.engine import open_database
from scheduler.store.errors import StoreFailure
from scheduler.store.listing import list_jobs
from scheduler.store.verify import verify

NOW = 1_795_000_000
SPEC = JobSpec(name="ufm", role="manager", command=("train",), target_step=100, steps_per_hour=10.0)
_HEADER_BYTES = 100
_FORMAT = 47  # the last byte of the number of the schema's format
_BLOCK_BYTES = 16
_PAGE_BYTES = 4_096


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the bytes of a database with one job."""
    path = tmp_path_factory.mktemp("whole") / "scheduler.db"
    database = open_database(f"sqlite:///{path}", create=True)
    with database.write() as tx:
        jobs.add(tx, SPEC, NOW)
    database.close()
    return path.read_bytes()


def of_the_header(whole: bytes) -> Iterator[bytes]:
    """Yield files in which one byte of the header is another."""
    for offset in range(_HEADER_BYTES):
        for value in (0, 5, 0xFF):
            yield whole[:offset] + bytes([value]) + whole[offset + 1 :]


def of_the_schema(whole: bytes) -> Iterator[bytes]:
    """Yield files in which a block over a statement of the schema is random; SQLite quotes such bytes in errors."""
    chance = random.Random(37)
    places = [at for at in range(len(whole)) if whole.startswith(b"CREATE ", at)]
    for place in places:
        at = place + chance.randrange(-_BLOCK_BYTES, 2 * _BLOCK_BYTES)
        yield whole[:at] + chance.randbytes(_BLOCK_BYTES) + whole[at + _BLOCK_BYTES :]


def of_any_page(whole: bytes) -> Iterator[bytes]:
    """Yield files in which a block anywhere is random."""
    chance = random.Random(11)
    for _ in range(100):
        at = chance.randrange(_HEADER_BYTES, len(whole) - _BLOCK_BYTES)
        yield whole[:at] + chance.randbytes(_BLOCK_BYTES) + whole[at + _BLOCK_BYTES :]


def of_whole_pages(whole: bytes) -> Iterator[bytes]:
    """Yield files that end at each page, and files in which two pages have changed their places."""
    chance = random.Random(99)
    pages = [whole[at : at + _PAGE_BYTES] for at in range(0, len(whole), _PAGE_BYTES)]
    for number in range(1, len(pages)):
        yield b"".join(pages[:number])
        other = chance.randrange(len(pages))
        swapped = [*pages]
        swapped[number], swapped[other] = pages[other], pages[number]
        yield b"".join(swapped)


def of_a_table(whole: bytes) -> Iterator[bytes]:
    """Yield files in which a table has another name in the schema: its revision is right, and it is not there."""
    for name in (b"jobs", b"events", b"lanes", b"runs", b"lease"):
        yield whole.replace(name, name[:-1] + b"\xff")
        yield whole.replace(b"CREATE TABLE " + name, b"CREATE TABLE " + name[::-1])


def _verify(url: str) -> None:
    database = open_database(url, read_only=True)
    try:
        verify(database)
    finally:
        database.close()


def _write(url: str) -> None:
    database = open_database(url)
    try:
        with database.write() as tx:
            jobs.note_failures(tx, "ufm", 1)
    finally:
        database.close()


@pytest.mark.parametrize("damages", [of_the_header, of_the_schema, of_any_page, of_whole_pages, of_a_table])
@pytest.mark.parametrize("command", [list_jobs, _verify, _write])
def test_no_damage_is_an_unexpected_error(
    whole: bytes, tmp_path: Path, damages: Callable[[bytes], Iterator[bytes]], command: Callable[[str], object]
) -> None:
    path = tmp_path / "scheduler.db"
    odd: list[str] = []
    refused = 0
    for number, damaged in enumerate(damages(whole)):
        for beside in tmp_path.iterdir():
            beside.unlink()
        path.write_bytes(damaged)
        try:
            command(f"sqlite:///{path}")
        except StoreFailure as failure:
            refused += 1
            if code_of(failure) is not Exit.DATABASE or not failure.remedy:
                odd.append(f"{number}: {failure}")
        except Exception as error:  # noqa: BLE001 - any other error is what this test looks for
            odd.append(f"{number}: {type(error).__name__}: {error}")
    assert refused
    assert odd == []


def test_a_schema_of_a_format_that_sqlite_does_not_know_is_damage(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "scheduler.db"
    path.write_bytes(whole[:_FORMAT] + b"\5" + whole[_FORMAT + 1 :])
    with pytest.raises(StoreFailure, match="unsupported file format") as caught:
        open_database(f"sqlite:///{path}")
    assert code_of(caught.value) is Exit.DATABASE
