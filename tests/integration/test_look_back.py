"""After an old backup was restored: what was launched since is found before anything else is launched."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.checkpoint import blob_key, manifest_key
from jobs.payload.manifest import Component, Manifest
from jobs.spec import JobSpec
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest
from platforms.fake import FakeCloud, FakePlatform, Script
from scheduler.core.job import Active, Queued
from scheduler.core.plan import Plan
from scheduler.core.pool import Pool
from scheduler.core.run import Ended, Running
from scheduler.service import queue
from scheduler.service.cycle import Cycle
from scheduler.service.ports import Policy, Ports
from scheduler.store import due, jobs, lease, ledger, runs
from scheduler.store.engine import Database
from scheduler.store.verify import verify

NOW = 1_795_000_000


class Journal:
    """A log that remembers what was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def __getattr__(self, level: str) -> Any:
        return lambda event, **fields: self.said.append(event)


class Time:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.present = NOW

    def now(self) -> int:
        """Return scheduled seconds."""
        return self.present

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return them as they are."""
        return scheduled_seconds

    def payload_clock(self) -> dict[str, float]:
        """Return the real clock's figures."""
        return {"epoch": 0.0, "origin": 0.0, "scale": 1.0}


@pytest.fixture
def world(database: Database, tmp_path: Path) -> SimpleNamespace:
    """A restored database with two jobs that were never launched, a place, and a store."""
    held = lease.acquire(database, "test", 600)
    assert held is not None
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=1_000, steps_per_hour=10.0), NOW)
        due.set_due(tx, due.RESTORED, 0)
    cloud, store, plans = FakeCloud(sessions_max=5), DirectoryStore(tmp_path / "artifacts"), list[int]()
    clock = Time()

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        plans.append(snapshot.now)
        return Plan(snapshot.now, (), ())

    ports = Ports(
        database=database,
        artifacts=store,
        platforms={"desk": FakePlatform(cloud)},
        pools={"desk": Pool("desk", "fake", "CPU", sessions_max=5)},
        clock=clock,
        policy=Policy(),
        plan=plan,
        data_prefix=lambda job: "",
        bundle="",
        log=Journal(),
        epoch=held.epoch,
    )
    return SimpleNamespace(ports=ports, cloud=cloud, store=store, plans=plans, clock=clock, database=database)


def launched(world: SimpleNamespace, key: str, at: int, *, runs_seconds: int | None) -> None:
    """Launch as the daemon did that the backup knows nothing of."""
    world.cloud.scripts.append(Script(runs_seconds=runs_seconds))
    world.ports.platforms["desk"].launch(LaunchRequest(key, "desk", 1, at + 7_200, {}, "", {}), at)


def published(world: SimpleNamespace, job: str, step: int, attempt: int, run: str, lane: int = 0) -> None:
    digest = f"{step:064x}"
    world.store.create(blob_key(job, digest), b"x")
    manifest = Manifest(job, step, attempt, run, lane, None, NOW, 60, {}, (Component("own", digest, 1),))
    world.store.create(manifest_key(job, step, attempt), manifest.encode())


def cycles(world: SimpleNamespace, until: Callable[[], object], most: int = 20) -> None:
    """Run cycles, a minute apart."""
    cycle = Cycle(world.ports)
    for _ in range(most):
        cycle.run()
        if until():
            return
        world.clock.present += 60
    pytest.fail(f"not within {most} cycles: {world.ports.log.said}")


def test_sessions_and_steps_that_the_backup_does_not_know_are_taken_into_the_books(world: SimpleNamespace) -> None:
    """One that is over is charged what it ran; the next, which trains two jobs, is adopted with both."""
    launched(world, "uff-ufm-0001", NOW - 5_000, runs_seconds=1_000)
    launched(world, "uff-ufm-0002", NOW - 3_000, runs_seconds=None)
    published(world, "ufm", 10, 1, "uff-ufm-0001")
    published(world, "ufm", 20, 2, "uff-ufm-0002")
    published(world, "ucm", 7, 1, "uff-ufm-0002", lane=1)
    cycles(world, lambda: world.plans)
    assert world.ports.log.said.count("restore.session_found") == 2
    with world.database.read() as tx:
        over, live = runs.get(tx, "uff-ufm-0001"), runs.get(tx, "uff-ufm-0002")
        assert isinstance(over.state, Ended)
        assert isinstance(live.state, Running)
        assert [(lane.job, lane.attempt) for lane in live.lanes] == [("ufm", 2), ("ucm", 1)]
        for name, step, attempts in (("ufm", 20, 2), ("ucm", 7, 1)):
            job = jobs.get(tx, name)
            assert isinstance(job.state, Active)
            assert (job.done_step, job.attempts) == (step, attempts)
        spent = [(entry.start, entry.end) for entry in ledger.entries(tx) if entry.kind == "spend"]
        assert spent == [(NOW - 5_000, NOW - 4_000)]
        assert due.RESTORED not in due.next_due(tx)
    assert verify(world.database) == []


def test_a_second_lane_that_has_not_saved_yet_is_known_by_its_report(world: SimpleNamespace) -> None:
    """The key names the first job alone; launched again, the other one would train in two seats."""
    launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=None)
    for lane, job, attempt in ((0, "ufm", 1), (1, "ucm", 3), (2, "stranger", 1)):
        report = json.dumps({"lane": lane, "job": job, "attempt": attempt, "phase": "training"}).encode()
        world.store.put(f"runs/uff-ufm-0001/lane-{lane}/heartbeat.json", report)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        live = runs.get(tx, "uff-ufm-0001")
        assert [(lane.job, lane.attempt) for lane in live.lanes] == [("ufm", 1), ("ucm", 3)]
        assert isinstance(jobs.get(tx, "ucm").state, Active)
        assert jobs.get(tx, "ucm").attempts == 3
    assert verify(world.database) == []


def test_a_report_that_nobody_can_read_stops_no_look(world: SimpleNamespace) -> None:
    launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=None)
    world.store.put("runs/uff-ufm-0001/lane-1/heartbeat.json", b"{")
    cycles(world, lambda: world.plans)
    assert "report.unreadable" in world.ports.log.said
    with world.database.read() as tx:
        assert [lane.job for lane in runs.get(tx, "uff-ufm-0001").lanes] == ["ufm"]


def test_nothing_is_planned_before_every_place_has_answered(world: SimpleNamespace) -> None:
    world.cloud.outage = {"find"}
    with pytest.raises(pytest.fail.Exception):
        cycles(world, lambda: world.plans, most=3)
    assert world.plans == []
    world.cloud.outage = set()
    cycles(world, lambda: world.plans)


def test_a_store_that_does_not_answer_is_waited_for(world: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "artifacts").rename(tmp_path / "unmounted")
    with pytest.raises(pytest.fail.Exception):
        cycles(world, lambda: world.plans, most=3)
    (tmp_path / "unmounted").rename(tmp_path / "artifacts")
    cycles(world, lambda: world.plans)


def test_without_a_restore_nobody_looks_back(world: SimpleNamespace) -> None:
    with world.database.write() as tx:
        due.forget(tx, due.RESTORED)
    launched(world, "uff-ufm-0001", NOW - 5_000, runs_seconds=None)
    cycles(world, lambda: world.plans, most=1)
    with world.database.read() as tx:
        assert runs.recent(tx) == []


def test_a_job_that_is_held_keeps_its_state_and_its_session_is_known(world: SimpleNamespace) -> None:
    queue.hold(world.database, "ufm", "a look", NOW, "ann")
    launched(world, "uff-ufm-0003", NOW - 100, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert not isinstance(jobs.get(tx, "ufm").state, Active | Queued)
        assert jobs.get(tx, "ufm").attempts == 3
        assert isinstance(runs.get(tx, "uff-ufm-0003").state, Running)
