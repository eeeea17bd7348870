"""Make the database of a release, as its own code writes it, to be kept for all later ones to upgrade.

Run once per release that changes the schema, with that release's code, and never again for an old one:

    python tests/integration/old_databases/make.py tests/integration/old_databases

It writes ``<revision>.db.gz``: two jobs, one run that ended and was charged, one that is live, and rows in all tables.
"""

from __future__ import annotations

import gzip
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Plan
from scheduler.core.quota import ObservedLimit
from scheduler.core.reasons import Outbid
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.store import checkpoints, due, jobs, ledger, limits, outbox, plans, rates, runs, trees
from scheduler.store.engine import Database, open_database
from scheduler.store.schema import REVISIONS

if TYPE_CHECKING:
    from sqlalchemy import Connection

NOW = 1_795_000_000


def fill(database: Database) -> None:
    """Write what a daemon would have written in a morning."""
    key = manifest_key("ufm", 40, 1)
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=100, steps_per_hour=10.0), NOW)
        launch(tx, "uff-ufm-0001", "ufm")
        run = runs.get(tx, "uff-ufm-0001")
        running = run_arrows.accept(run_arrows.submit(run.state, NOW), "remote", NOW)
        runs.change_state(tx, run.key, run.state, running, "accept", NOW)
        runs.note_heartbeat(tx, run.key, 0, {"step": 40, "loss": 2.5})
        manifest = Manifest("ufm", 40, 1, run.key, 0, None, NOW, 60, {}, (Component("model", "a" * 64, 3),))
        checkpoints.record(tx, manifest, NOW)
        jobs.note_progress(tx, "ufm", 40, key)
        runs.close_lane(tx, run.key, 0, Outcome.YIELDED, 40, None, "", NOW + 500)
        ended = run_arrows.end(running, Outcome.YIELDED, NOW + 500, NOW)
        runs.change_state(tx, run.key, running, ended, "end_yielded", NOW + 500)
        ledger.append(tx, [LedgerEntry(EntryKind.SPEND, "kaggle", run.key, NOW, NOW + 500, NOW + 500)])
        active = jobs.get(tx, "ufm").state
        jobs.change_state(tx, "ufm", active, job_arrows.requeue(active, NOW + 500), "requeue", NOW + 500)
        launch(tx, "uff-ucm-0001", "ucm")
        rates.put(tx, rates.RateRecord(2.5, 0.1, 3, 60, 5, job="ufm", pool="kaggle", at=NOW))
        limits.observe(tx, "kaggle", ObservedLimit("week", NOW, NOW + 604_800, 108_000, NOW, "told"))
        limits.close_pool(tx, "desk", NOW + 600, "busy", NOW)
        plans.save(tx, Plan(NOW, (), (Deferral("ufm", Outbid("kaggle", "ucm", 1.0, 3.0)),), 1.0, 2.0, "list", ()), NOW)
        outbox.add(tx, "weekly", "2026-W46", "email", {"subject": "The week"}, NOW)
        trees.record(tx, "code", "c" * 64, NOW)
        due.set_due(tx, "sweep-sessions", NOW + 86_400)


def launch(tx: Connection, key: str, job: str) -> None:
    """Reserve one run of ``job``."""
    attempt = jobs.note_launch(tx, job, "kaggle")
    lane = Lane(0, job, attempt, (0,), None)
    runs.insert(tx, Run(key, "kaggle", (lane,), NOW, NOW + 900, NOW + 1_000, Reserved(NOW)), NOW)
    ledger.append(tx, [LedgerEntry(EntryKind.HOLD, "kaggle", key, NOW, NOW + 1_000, NOW)])
    queued = jobs.get(tx, job).state
    assert isinstance(queued, Queued)
    jobs.change_state(tx, job, queued, job_arrows.activate(queued, key, NOW), "activate", NOW)


def main(folder: Path) -> None:
    """Write the file of the present revision; refuses to replace one."""
    target = folder / f"{REVISIONS[-1]}.db.gz"
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "scheduler.db"
        database = open_database(f"sqlite:///{path}", create=True)
        fill(database)
        database.close()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("VACUUM")
        with target.open("xb") as stream, gzip.GzipFile("", "wb", fileobj=stream, mtime=0) as packed:
            packed.write(path.read_bytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
