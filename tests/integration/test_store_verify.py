"""Verify is silent on what the store wrote, and finds each kind of planted damage."""

import pytest
from sqlalchemy import text

from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.store import checkpoints, events, jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.store.verify import verify

NOW = 1_795_000_000


@pytest.fixture
def week(database: Database) -> Database:
    """One run that ended and was charged, and one that is live, as the daemon would have written them."""
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=100, steps_per_hour=10.0), NOW)
    key = manifest_key("ufm", 40, 1)
    launch(database, "run-old", "ufm")
    with database.write() as tx:
        run = runs.get(tx, "run-old")
        running = run_arrows.accept(run_arrows.submit(run.state, NOW), "remote", NOW)
        runs.change_state(tx, run.key, run.state, running, "accept", NOW)
        ended = run_arrows.end(running, Outcome.YIELDED, NOW + 500, NOW)
        manifest = Manifest("ufm", 40, 1, run.key, 0, None, NOW, 60, {}, (Component("model", "a" * 64, 3),))
        assert checkpoints.record(tx, manifest, NOW)
        jobs.note_progress(tx, "ufm", 40, key)
        runs.close_lane(tx, run.key, 0, Outcome.YIELDED, 40, None, "", NOW + 500)
        runs.change_state(tx, run.key, running, ended, "end", NOW + 500)
        ledger.append(tx, [LedgerEntry(EntryKind.SPEND, "kaggle", run.key, NOW, NOW + 500, NOW + 500)])
        active = jobs.get(tx, "ufm").state
        jobs.change_state(tx, "ufm", active, job_arrows.requeue(active, NOW + 500), "requeue", NOW + 500)
    launch(database, "run-live", "ucm")
    return database


def launch(database: Database, key: str, job: str) -> None:
    with database.write() as tx:
        attempt = jobs.note_launch(tx, job, "kaggle")
        lane = Lane(0, job, attempt, (0,), None)
        runs.insert(tx, Run(key, "kaggle", (lane,), NOW, NOW + 900, NOW + 1_000, Reserved(NOW)), NOW)
        ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "kaggle", key, NOW, NOW + 1_000, NOW)])
        queued = jobs.get(tx, job).state
        assert isinstance(queued, Queued)
        jobs.change_state(tx, job, queued, job_arrows.activate(queued, key, NOW), "activate", NOW)


def test_what_the_store_wrote_is_in_order(week: Database) -> None:
    assert verify(week) == []


UNGUARDED = {
    "sqlite": [
        "DROP TRIGGER ledger_no_delete",
        "DROP TRIGGER events_no_delete",
        "DROP TRIGGER ledger_no_update",
        "DROP TRIGGER events_no_update",
    ],
    "postgresql": [
        "DROP TRIGGER ledger_append_only ON ledger",
        "DROP TRIGGER events_append_only ON events",
        "DROP TRIGGER events_no_early_delete ON events",
    ],
}


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        ("DELETE FROM ledger WHERE kind = 'spend'", "run run-old has ended with 0 spends and releases"),
        ("DELETE FROM ledger WHERE run = 'run-live'", "run run-live has no hold"),
        ("UPDATE ledger SET kind = 'release' WHERE run = 'run-live'", "run run-live is live, but already settled"),
        ("UPDATE ledger SET pool = 'local' WHERE kind = 'spend'", "of pool kaggle, but charged to kaggle, local"),
        ("DELETE FROM events WHERE kind = 'job.activate' AND subject = 'ucm'", "job ucm is"),
        ("DELETE FROM events WHERE kind = 'run.accept'", "(run.end) of run run-old begins at"),
        (
            "UPDATE jobs SET state_detail = '{}' WHERE name = 'ufm'",
            "table jobs, row ufm, column state_detail: cannot be read",
        ),
        (
            "UPDATE runs SET state_detail = 'x' WHERE key = 'run-old'",
            "table runs, row run-old, column state_detail: cannot be read",
        ),
        ("UPDATE events SET data = 'x' WHERE id = 1", "table events, row 1, column data: cannot be read"),
        ("UPDATE checkpoints SET manifest = 'x'", "column manifest: cannot be read"),
        (
            "UPDATE jobs SET state_detail = '{\"retry_at\":null,\"since\":5}' WHERE name = 'ufm'",
            'job ufm is {"retry_at":null,"since":5,"state":"queued"}, but its events say',
        ),
        ("UPDATE jobs SET spec = 'x' WHERE name = 'ufm'", "table jobs, row ufm, column spec: cannot be read"),
        ("UPDATE jobs SET attempts = 0 WHERE name = 'ufm'", "counts 0 launches, but attempt 1 exists"),
        ("UPDATE jobs SET done_step = 41 WHERE name = 'ufm'", "job ufm is at step 41, which its checkpoint"),
        ("UPDATE jobs SET done_step = 1 WHERE name = 'ucm'", "job ucm is at step 1 without a checkpoint"),
        ("UPDATE lanes SET outcome = NULL WHERE run = 'run-old'", "its lane 0 (ufm) has no outcome"),
        ("UPDATE lanes SET live = false WHERE run = 'run-live'", "is open, but does not hold ucm"),
        ("DELETE FROM lanes WHERE run = 'run-live'", "run run-live has no lane"),
        ("DELETE FROM lease", "the row of the lease is missing"),
        (
            "UPDATE jobs SET state_detail = replace(state_detail, 'run-live', 'run-old') WHERE name = 'ucm'",
            "job ucm is active in run run-old, which is not live",
        ),
        (
            "UPDATE events SET subject = 'me' WHERE kind = 'job.added' AND subject = 'ufm'",
            "job me has events but no row",
        ),
        ("UPDATE jobs SET checkpoint = 'x' WHERE name = 'ufm'", "at step 40, which its checkpoint x does not hold"),
    ],
)
def test_planted_damage_is_found(week: Database, damage: str, finding: str) -> None:
    with week.write() as tx:
        triggers = UNGUARDED[tx.dialect.name]
        for statement in triggers:
            tx.execute(text(statement))
        tx.execute(text(damage.replace(":", "\\:")))
    problems = [problem for problem in verify(week) if "append-only" not in problem]
    assert any(finding in problem for problem in problems), problems


def test_missing_triggers_are_found(week: Database) -> None:
    with week.write() as tx:
        tx.execute(text(UNGUARDED[tx.dialect.name][0]))
    assert verify(week) == ["ledger is no longer append-only: one of its triggers is missing"]


def test_a_pruned_history_is_in_order_and_damage_in_the_rest_is_still_found(week: Database) -> None:
    with week.write() as tx:
        before = events.newest_id(tx)
        assert events.prune(tx, NOW + 1, 1_000) > 0
        assert events.newest_id(tx) == before
    assert verify(week) == []
    with week.write() as tx:
        tx.execute(text("INSERT INTO events (at, kind, subject, \"by\", data) VALUES (1, 'job.x', 'ufm', 'x', '{}')"))
        job = jobs.get(tx, "ucm")
        released = job_arrows.requeue(job.state, NOW)
        jobs.change_state(tx, "ucm", job.state, released, "requeue", NOW)
    with week.write() as tx:
        tx.execute(text("UPDATE jobs SET state = 'failed' WHERE name = 'ucm'"))
    assert verify(week) != []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_rows_that_point_nowhere_are_found(week: Database) -> None:
    """SQLite checks foreign keys only where a connection asks for it; PostgreSQL cannot hold such rows."""
    with week.read() as tx:
        connection = tx.connection.driver_connection
    assert connection is not None
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("DELETE FROM runs WHERE key = 'run-live'")
    assert any("points to a row of runs" in problem for problem in verify(week))
