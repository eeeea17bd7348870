"""A job that continues in a session is stored as a part of it, and pays from where it began."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.spec import JobSpec
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.store import jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.store.errors import Stale
from scheduler.views.costs import costs

NOW = 1_795_000_000
POOLS = {"kaggle": Pool("kaggle", "kaggle", "T4 x2", devices_per_session=2)}


@pytest.fixture
def session(database: Database) -> Run:
    """A session of two jobs that runs; the first of them is over."""
    lanes = Lane(0, "short", 1, (0,), None, Outcome.FINISHED), Lane(1, "long", 1, (1,), None)
    run = Run("uff-short-0001", "kaggle", lanes, NOW, NOW + 10 * HOUR, NOW + 10 * HOUR, Running("remote", NOW))
    with database.write() as tx:
        for name in ("short", "long", "next"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), 1_000, 10.0), NOW)
        runs.insert(tx, run, NOW)
    return run


def test_a_job_continues_as_a_lane_of_the_run(database: Database, session: Run) -> None:
    lane = Lane(2, "next", 1, (0,), None, begun_at=NOW + HOUR)
    with database.write() as tx:
        runs.add_lane(tx, session, lane, ["jobs/next/manifests/1"], NOW + HOUR)
    with database.read() as tx:
        assert runs.get(tx, session.key) == replace(session, lanes=(*session.lanes, lane))
        assert runs.restore_keys(tx, session.key, "next") == ["jobs/next/manifests/1"]
        assert runs.attempts(tx, "next")[1].lane == 2
    with pytest.raises(Stale), database.write() as tx:  # whoever decided on what was before decides again
        runs.add_lane(tx, session, replace(lane, index=3, attempt=2), [], NOW + HOUR)


def test_the_parts_of_the_bill_are_those_of_the_jobs_and_add_up(database: Database, session: Run) -> None:
    with database.write() as tx:
        runs.add_lane(tx, session, Lane(2, "next", 1, (0,), None, begun_at=NOW + HOUR), [], NOW + HOUR)
        runs.change_state(tx, session.key, session.state, Ended(Outcome.FINISHED, NOW + 4 * HOUR, NOW), "end", NOW)
        spend = LedgerEntry(EntryKind.SPEND, "kaggle", session.key, NOW, NOW + 4 * HOUR, NOW)
        ledger.append(tx, [replace(spend, price_microdollars_per_hour=1_000_000)])
    with database.read() as tx:
        seconds = ledger.device_seconds(tx, ["short", "long", "next"], NOW)
        rows = costs(tx, POOLS, NOW, "UTC", NOW + 5 * HOUR)
    assert seconds == {"short": HOUR, "long": 4 * HOUR, "next": 3 * HOUR}
    assert {row.job: row.seconds for row in rows} == {"short": HOUR // 2, "long": 2 * HOUR, "next": 3 * HOUR // 2}
    assert sum(row.microdollars for row in rows) == 4_000_000
