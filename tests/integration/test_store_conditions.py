"""Conditions: what is wrong stands in a row of its own, whatever happened since, and old databases have theirs."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scheduler.core.reasons import Cause
from scheduler.store import conditions, events, limits
from scheduler.store.engine import Database, open_database, upgrade
from scheduler.store.verify import verify
from scheduler.views.needs import needs

NOW = 1_795_000_000
OLD = Path(__file__).parent / "old_databases" / "0011.db.gz"


@pytest.mark.parametrize("kind", sorted(conditions.CLOSED_BY))
def test_a_condition_stands_however_much_happens_afterwards(database: Database, kind: str) -> None:
    """What stood was read from the newest 500 events: the 501st silent pool hid the first."""
    with database.write() as tx:
        events.append(tx, kind, "first", NOW, why="as it is", what="odd")
        for number in range(600):
            events.append(tx, kind, f"other-{number}", NOW + 1, why="", what="odd")
        assert "first" in {one.subject for one in conditions.standing(tx, kind)}
        events.prune(tx, NOW + 1, 1_000)
        (found,) = (one for one in conditions.standing(tx, kind) if one.subject == "first")
        assert found == conditions.Condition(kind, "first", "odd", NOW, "as it is")
        for closing_kind in conditions.CLOSED_BY[kind]:
            events.append(tx, kind, "first", NOW + 2, why="once more", what="odd")
            events.append(tx, closing_kind, "first", NOW + 3, what="odd")
            assert "first" not in {one.subject for one in conditions.standing(tx, kind)}


def test_six_hundred_silent_pools_are_six_hundred_actions(database: Database) -> None:
    pools = [f"pool-{number:03d}" for number in range(600)]
    with database.write() as tx:
        for pool in pools:
            events.append(tx, "pool.silent", pool, NOW, since=NOW - 60, why="no answer")
        found = [(need.what, need.subject, need.since) for need in needs(tx, pools, 0, NOW)]
    assert found == [("platform does not answer", pool, NOW - 60) for pool in pools]


@pytest.mark.parametrize(
    ("by", "why", "cause"),
    [
        ("anna", "waits for a person to pay", Cause.PERSON),
        ("anna", "quota unreadable: see mail", Cause.PERSON),
        ("daemon", "waits for a person: no credentials found", Cause.CREDENTIALS),
        ("daemon", "quota unreadable: HTTP 500", Cause.QUOTA_UNREADABLE),
        ("daemon", "quota unreadable, waits for a person: denied", Cause.QUOTA_REFUSED),
        ("daemon", "wrong accelerator in uff-ufm-0001: a P100", Cause.WRONG_DEVICE),
        ("daemon", "denied; the books know of hours", Cause.QUOTA_DENIED),
        ("daemon", "refused: 429", Cause.REFUSED),
        ("the scheduler", "planning fails with it: ValueError: odd", Cause.PLANNING),
        ("", "waits for a person: its event is gone", Cause.PERSON),
    ],
)
def test_the_migration_classifies_the_closures_that_stand(tmp_path: Path, by: str, why: str, cause: Cause) -> None:
    with opened(tmp_path) as old:
        old.execute("INSERT INTO closures (pool, until, why, at) VALUES ('kaggle', NULL, ?, ?)", (why, NOW))
        if by:
            happen(old, "pool.closed", "kaggle", by, why=why, until=None)
        if cause is Cause.QUOTA_DENIED:
            happen(old, "pool.quota_denied", "kaggle", by, why=why, until=NOW)
        old.commit()
    database = upgraded(tmp_path)
    with database.read() as tx:
        found = limits.standing(tx)
    assert found["kaggle"] == limits.Closure("kaggle", None, why, NOW, cause)
    assert verify(database) == []
    database.close()


def test_the_migration_opens_what_the_events_left_open(tmp_path: Path) -> None:
    with opened(tmp_path) as old:
        happen(old, "pool.silent", "a", why="no answer", since=NOW - 9)
        happen(old, "pool.silent", "b", why="no answer", since=NOW - 9)
        happen(old, "pool.answers", "b")
        happen(old, "need.raised", "ufm", what="job held", why="by anna", next="release")
        happen(old, "need.raised", "ufm", what="job failed", why="oom", next="release")
        happen(old, "need.settled", "ufm", what="job held")
        for number in range(600):
            happen(old, "pool.silent", f"x{number}", why="", since=NOW)
        held = json.dumps({"by": "the scheduler", "since": NOW, "why": "planning fails with it: ValueError"})
        old.execute("UPDATE jobs SET state = 'held', state_detail = ? WHERE name = 'ufm'", (held,))
        old.commit()
    database = upgraded(tmp_path)
    with database.read() as tx:
        silent = {one.subject: one.since for one in conditions.standing(tx, "pool.silent")}
        raised = [(one.subject, one.what) for one in conditions.standing(tx, "need.raised")]
        unplannable = [one.subject for one in conditions.standing(tx, "job.poisoned")]
    assert (silent["a"], "b" in silent, len(silent)) == (NOW - 9, False, 601)
    assert raised == [("ufm", "job failed")]
    assert unplannable == ["ufm"]
    database.close()


def opened(folder: Path) -> closing[sqlite3.Connection]:
    """Return the database that the release before left."""
    path = folder / "scheduler.db"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    return closing(sqlite3.connect(path))


def happen(old: sqlite3.Connection, kind: str, subject: str, by: str = "daemon", **data: object) -> None:
    row = (NOW, kind, subject, by, json.dumps(data))
    old.execute("INSERT INTO events (at, kind, subject, by, data) VALUES (?, ?, ?, ?, ?)", row)


def upgraded(folder: Path) -> Database:
    url = f"sqlite:///{folder / 'scheduler.db'}"
    upgrade(url)
    return open_database(url)
