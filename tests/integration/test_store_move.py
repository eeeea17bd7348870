"""Moving a database: the copy knows everything, goes on where the original stood, and is made whole or not at all."""

from pathlib import Path

import pytest

from jobs.spec import JobSpec
from scheduler.core.job import Held
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.store import backup as moving
from scheduler.store import events, jobs, lease, ledger, outbox
from scheduler.store.backup import move
from scheduler.store.engine import Database, open_database
from scheduler.store.errors import DatabaseCorrupt, StoreFailure
from scheduler.store.verify import verify

NOW = 1_795_000_000
FAR = "sqlite:///{}/far.db"


@pytest.fixture
def filled(database: Database) -> Database:
    """A database with something in most tables, on each kind of server in turn."""
    held = lease.acquire(database, "host:folder", 60)
    assert held is not None
    with database.write() as tx:
        for number in range(1_200):
            spec = JobSpec(
                name=f"job-{number}", role="manager", command=("x", "ü"), target_step=5, steps_per_hour=1.0, weight=0.1
            )
            jobs.add(tx, spec, NOW)
        found = jobs.get(tx, "job-7")
        jobs.change_state(tx, "job-7", found.state, Held("ada", "why", NOW), "hold", NOW, by="ada")
        ledger.append(tx, [LedgerEntry(EntryKind.ADJUST, "kaggle", None, NOW, NOW + 60, NOW, evidence="theirs")])
        outbox.add(tx, "weekly", "2026-W47", "email", {"subject": "s", "text": "t"}, NOW)
    lease.release(database, held)
    return database


def test_a_copy_holds_the_same_and_goes_on_with_new_numbers(filled: Database, tmp_path: Path) -> None:
    copied = move(filled, FAR.format(tmp_path))
    assert (copied["jobs"], copied["ledger"], copied["outbox"]) == (1_200, 1, 1)
    far = open_database(FAR.format(tmp_path))
    with filled.read() as old, far.read() as new:
        assert jobs.everything(new) == jobs.everything(old)
        assert events.tail(new, limit=5_000) == events.tail(old, limit=5_000)
        assert ledger.entries(new) == ledger.entries(old)
        assert outbox.pending(new, NOW) == outbox.pending(old, NOW)
        newest = events.newest_id(old)
    with far.write() as tx:
        assert events.append(tx, "x", "y", NOW) == newest + 1
    assert verify(far) == []
    far.close()


def test_the_way_back_to_any_server_works_as_well(database: Database, database_url: str, tmp_path: Path) -> None:
    """On PostgreSQL the counters behind the numbers must know of rows that came with theirs."""
    near = open_database(f"sqlite:///{tmp_path}/near.db", create=True)
    with near.write() as tx:
        for number in range(3):
            events.append(tx, "x", str(number), NOW)
    move(near, database_url)
    near.close()
    with database.write() as tx:
        assert events.append(tx, "x", "y", NOW) == 4
    assert verify(database) == []


def test_a_database_in_use_is_not_copied(filled: Database, tmp_path: Path) -> None:
    assert lease.acquire(filled, "host:folder", 60) is not None
    with pytest.raises(StoreFailure, match=r"host:folder may still write to it\. Stop the daemon first"):
        move(filled, FAR.format(tmp_path))
    assert not (tmp_path / "far.db").exists()


def test_a_database_that_has_rows_is_left_as_it_is(filled: Database, tmp_path: Path) -> None:
    move(filled, FAR.format(tmp_path))
    with pytest.raises(StoreFailure, match="its table jobs has rows"):
        move(filled, FAR.format(tmp_path))


def test_a_copy_that_fails_leaves_nothing_behind(
    filled: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever differs, the new database stays empty and the move can be repeated."""
    with monkeypatch.context() as patch:
        patch.setattr(moving, "_digest", lambda tx, table: (id(tx), table.name))
        with pytest.raises(DatabaseCorrupt, match="differs from the original"):
            move(filled, FAR.format(tmp_path))
    assert move(filled, FAR.format(tmp_path))["jobs"] == 1_200
