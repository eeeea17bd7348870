"""The queue's own history tells the planner what comes next, and people see what is kept for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR, WEEK
from jobs.spec import Gate, JobSpec
from scheduler.core.job import Cancelled, Done, Failed, Held, Queued
from scheduler.planner.model.forecast import expected
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.store import codec, jobs
from scheduler.store.schema import jobs as table

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.core.job import JobState
    from scheduler.core.snapshot import Snapshot
    from scheduler.store.engine import Database

NOW = 1_795_000_000
POOLS = {"desk": Pool("desk", "fake", "CPU", session_cap_seconds=12 * HOUR)}
UFM = JobSpec("ufm", "manager", ("train",), 5_000, steps_per_hour=100.0)


def put(tx: Connection, name: str, state: JobState, **values: int) -> None:
    """Let a job be in a state, and have been launched or trained."""
    named = {"state": codec.state_name(state), "state_detail": codec.state_detail(state), **values}
    tx.execute(table.update().where(table.c.name == name).values(**named))


def add(database: Database, spec: JobSpec, *days_ago: float) -> None:
    """Queue a job so long ago, and let further generations of it begin; the last one is in the queue."""
    with database.write() as tx:
        for number, ago in enumerate(days_ago):
            at = NOW - round(ago * DAY)
            if number == 0:
                jobs.add(tx, spec, at)
                continue
            put(tx, spec.name, Done(at), attempts=number, done_step=5_000)
            jobs.restart(tx, spec.name, at, "somebody")


def seen(database: Database, now: int = NOW) -> Snapshot:
    with database.read() as tx:
        return load_snapshot(tx, POOLS, now, WEEK)


def test_generations_of_a_job_are_arrivals_of_its_kind(database: Database) -> None:
    add(database, UFM, 20, 13, 6)
    add(database, replace(UFM, name="ucm"), 3)
    (found,) = seen(database).arrivals
    assert (found.kind, found.instants) == ("ufm", tuple(NOW - days * DAY for days in (20, 13, 6)))
    assert (found.latest.done_step, found.latest.running, found.latest.kind) == (0, None, "ufm")
    (coming,) = expected(seen(database))
    assert (coming.kind, coming.expected_at) == ("ufm", NOW + DAY)


def test_the_next_has_its_gate_and_nothing_done_however_far_the_last_one_is(database: Database) -> None:
    add(database, replace(UFM, name="main"), 30)
    add(database, replace(UFM, gate=Gate("main", 0.4)), 20, 13, 6)
    with database.write() as tx:
        put(tx, "ufm", Queued(NOW), done_step=3_000)
    (found,) = seen(database).arrivals
    assert (found.latest.done_step, found.latest.gate) == (0, Gate("main", 0.4))


def test_jobs_of_a_sweep_are_one_kind(database: Database) -> None:
    for number, ago in enumerate((15, 8, 1)):
        add(database, replace(UFM, name=f"lr-{number}", sweep="lr"), ago)
    (found,) = seen(database).arrivals
    assert (found.kind, len(found.instants), found.latest.name) == ("lr", 3, "lr-2")
    assert {view.kind for view in seen(database).jobs} == {"lr"}


def test_what_came_on_one_day_tells_nothing(database: Database) -> None:
    for number in range(3):
        add(database, replace(UFM, name=f"lr-{number}", sweep="lr"), 8 + number / 24)
    assert seen(database).arrivals == ()


@pytest.mark.parametrize("state", [Cancelled("me", NOW), Failed("script", "no", NOW), Held("me", "", NOW)])
def test_of_what_was_given_up_no_next_one_is_expected(database: Database, state: JobState) -> None:
    add(database, UFM, 20, 13, 6)
    with database.write() as tx:
        put(tx, "ufm", state)
    assert seen(database).arrivals == ()


def test_what_the_user_expects_counts(database: Database) -> None:
    add(database, replace(UFM, expects="12d"), 10)
    (found,) = seen(database).arrivals
    assert found.expected == (NOW + 2 * DAY,)
    (coming,) = expected(seen(database))
    assert (coming.expected_at, coming.sure, coming.said) == (NOW + 2 * DAY, 1.0, True)


def test_a_definition_of_an_older_version_expects_nothing(database: Database) -> None:
    add(database, UFM, 3)
    with database.write() as tx:
        stored = codec.load_object(tx.execute(table.select()).one().spec)
        del stored["expects"]
        tx.execute(table.update().values(spec=codec.dump(stored)))
    with database.read() as tx:
        record = jobs.get(tx, "ufm")
    assert record.spec.expects == ""
    assert isinstance(record.state, Queued)
