"""The short cut to the queue shows what the long way shows."""

from dataclasses import replace
from pathlib import Path

import pytest

from jobs.spec import JobSpec
from scheduler.core.job import Held, Queued
from scheduler.core.plan import Deferral, Plan
from scheduler.core.reasons import NoAllowedPool
from scheduler.store import jobs, plans
from scheduler.store.engine import Database
from scheduler.store.errors import StoreFailure
from scheduler.store.listing import REVISION, list_jobs
from scheduler.store.schema import REVISIONS

NOW = 1_795_000_000


def fill(database: Database) -> None:
    with database.write() as tx:
        for name in ("b", "a"):
            spec = JobSpec(name, "manager", ("train",), target_step=100, steps_per_hour=10.0, not_before=NOW)
            jobs.add(tx, replace(spec, sweep="s" if name == "b" else ""), NOW)
        jobs.change_state(tx, "a", Queued(NOW), Held("ann", "later", NOW), "hold", NOW)
        plans.save(tx, Plan(NOW, (), (Deferral("b", NoAllowedPool(("x",))),)), NOW)


def test_the_listing_holds_what_the_records_hold(database: Database, database_url: str) -> None:
    fill(database)
    with database.read() as tx:
        records = jobs.everything(tx)
    listed = list_jobs(database_url)
    assert [(job.name, job.state, job.position, job.created_at) for job in listed] == [
        (record.spec.name, record.state, record.position, record.created_at) for record in records
    ]
    assert [(job.target_step, job.not_before, job.last_pool) for job in listed] == [(100, NOW, None)] * 2
    assert [job.sweep for job in listed] == ["s", ""]
    assert listed[0].waits is not None
    assert listed[0].waits["code"] == "no_allowed_pool"
    assert listed[1].waits is None
    assert [job.name for job in list_jobs(database_url, {"held"})] == ["a"]


def test_the_short_cut_is_written_for_the_current_schema() -> None:
    assert REVISIONS[-1] == REVISION


def test_what_is_unusual_is_told_by_the_engine(tmp_path: Path, database: Database, database_url: str) -> None:
    with pytest.raises(StoreFailure, match="no database"):
        list_jobs(f"sqlite:///{tmp_path / 'none.db'}")
    with database.write() as tx:
        tx.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(StoreFailure, match="database is newer"):
        list_jobs(database_url)
