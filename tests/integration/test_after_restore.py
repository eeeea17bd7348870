"""After an old backup was restored: what was launched since is found before anything else is launched."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.payload.store.manifest import Component, Manifest, blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreError
from platforms.base import LaunchRequest
from scheduler.core.job import Active, Done, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Lane, Reserved, Run, Running
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.cycle.late_sessions import AHEAD
from scheduler.service.launch.launch_document import store_lanes, stored_lanes
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import due, events, jobs, ledger, runs
from scheduler.store.engine import Database
from scheduler.store.verify import verify
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """A restored database with two jobs that were never launched, a place, and a store.

    ``lanes`` is who shall be launched together as soon as anything may be.
    """
    cloud, plans, planned_lanes = FakeCloud(sessions_max=5), list[int](), list[PlannedLane]()

    def plan(snapshot: Any, incumbent: Plan | None) -> Plan:
        plans.append(snapshot.now)
        placements = (
            (Placement("desk", snapshot.now, snapshot.now + 3_600, tuple(planned_lanes)),) if planned_lanes else ()
        )
        return Plan(snapshot.now, placements, ())

    pools = {"desk": Pool("desk", "fake", "CPU", sessions_max=5, devices_per_session=2)}
    ports = make_ports(platforms={"desk": FakePlatform(cloud)}, pools=pools, plan=plan)
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=1_000, steps_per_hour=10.0), NOW)
        due.set_due(tx, due.RESTORED, 0)
    return SimpleNamespace(
        ports=ports,
        cloud=cloud,
        store=ports.artifacts,
        plans=plans,
        clock=ports.clock,
        database=database,
        lanes=planned_lanes,
    )


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


@pytest.mark.parametrize("held", [False, True])
def test_a_job_that_reached_its_target_since_the_backup_is_done(world: SimpleNamespace, *, held: bool) -> None:
    """Its platform has forgotten the session, so no run is found that could close the job; it waited for ever."""
    if held:
        queue.hold(world.database, "ufm", "lunch", NOW, "ann")
    published(world, "ufm", 1_000, 1, "uff-ufm-0001")
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert isinstance(jobs.get(tx, "ufm").state, Done)
        assert isinstance(jobs.get(tx, "ucm").state, Queued)
    assert verify(world.database) == []


def noted(world: SimpleNamespace, key: str, *planned_lanes: tuple[str, int]) -> None:
    """Note the lanes of a session, as the daemon did before it launched it."""
    lanes = tuple(Lane(index, job, attempt, (index,), None) for index, (job, attempt) in enumerate(planned_lanes))
    store_lanes(world.store, Run(key, "desk", lanes, NOW, NOW + 7_200, NOW + 7_300, Reserved(NOW)))


def test_a_second_lane_that_has_not_reported_yet_is_known_by_the_note_of_the_launch(world: SimpleNamespace) -> None:
    """The key names the first job alone; launched again, the other one would train in two lanes."""
    launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=None)
    noted(world, "uff-ufm-0001", ("ufm", 1), ("ucm", 3), ("stranger", 1), ("ufm", 2), ("ucm", 4))
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        live = runs.get(tx, "uff-ufm-0001")
        assert [(lane.job, lane.attempt) for lane in live.lanes] == [("ufm", 1), ("ucm", 3)]
        assert isinstance(jobs.get(tx, "ucm").state, Active)
        assert jobs.get(tx, "ucm").attempts == 3
    assert verify(world.database) == []


def test_lanes_that_the_books_know_or_that_nobody_can_have_are_not_believed(world: SimpleNamespace) -> None:
    with world.database.write() as tx:
        jobs.note_launch(tx, "ucm", "desk")
    for planned_lane in (("ucm", 1), ("ucm", 0), ("ucm", 1_000_000_000)):
        noted(world, "uff-ufm-0001", ("ufm", 1), planned_lane)
        launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert [lane.job for lane in runs.get(tx, "uff-ufm-0001").lanes] == ["ufm"]
        assert jobs.get(tx, "ucm").attempts == 1


@pytest.mark.parametrize(("attempt", "entered"), [(AHEAD, True), (AHEAD + 1, False)])
def test_so_many_launches_ahead_are_looked_for_and_no_more(
    world: SimpleNamespace, attempt: int, *, entered: bool
) -> None:
    key = f"uff-ufm-{attempt:04d}"
    launched(world, key, NOW - 100, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert [run.key for run in runs.live(tx)] == [key] * entered


@pytest.mark.parametrize(("attempt", "lanes"), [(AHEAD, [(0, "ufm"), (1, "ucm")]), (AHEAD + 1, [(0, "ufm")])])
def test_a_noted_lane_is_believed_as_far_ahead_as_keys_are_looked_for(
    world: SimpleNamespace, attempt: int, lanes: list[tuple[int, str]]
) -> None:
    noted(world, "uff-ufm-0001", ("ufm", 1), ("ucm", attempt))
    launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert [(lane.index, lane.job) for lane in runs.get(tx, "uff-ufm-0001").lanes] == lanes


@pytest.mark.parametrize(("one", "other"), [("ufm", "ucm"), ("ucm", "ufm")])
def test_sessions_are_entered_in_the_order_of_every_job_in_them(world: SimpleNamespace, one: str, other: str) -> None:
    """The second session of one came after two of the other alone: entered before them, it would hide the later one."""
    keys = [f"uff-{one}-0001", f"uff-{other}-0002", f"uff-{other}-0003", f"uff-{one}-0002"]
    ends = dict(zip(keys, (1_000, 900, 800, None), strict=True))
    for number, (key, seconds) in enumerate(ends.items()):
        launched(world, key, NOW - 5_000 + 1_000 * number, runs_seconds=seconds)
    noted(world, keys[0], (one, 1), (other, 1))
    noted(world, keys[3], (one, 2), (other, 4))
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        spent = {entry.run: entry.end - entry.start for entry in ledger.entries(tx) if entry.kind == "spend"}
        assert spent == {key: seconds for key, seconds in ends.items() if seconds}
        assert [lane.job for lane in runs.get(tx, keys[3]).lanes] == [one, other]
        assert [jobs.get(tx, name).attempts for name in (one, other)] == [2, 4]
    assert verify(world.database) == []


@pytest.mark.parametrize(
    ("first", "second"),
    [((("ufm", 1), ("ucm", 2)), (("ucm", 1), ("ufm", 2))), ((("ufm", 1), ("ucm", 1)), (("ucm", 1),) * 2)],
    ids=["each-after-the-other", "one-lane-in-both"],
)
def test_notes_that_contradict_each_other_do_not_stop_the_daemon(
    world: SimpleNamespace, first: tuple[tuple[str, int], ...], second: tuple[tuple[str, int], ...]
) -> None:
    for key, planned_lanes in (("uff-ufm-0001", first), ("uff-ucm-0001", second)):
        launched(world, key, NOW - 5_000, runs_seconds=1_000)
        noted(world, key, *planned_lanes)
    cycles(world, lambda: world.plans)
    assert verify(world.database) == []


def test_a_note_that_nobody_can_read_is_waited_for_while_its_session_may_run(world: SimpleNamespace) -> None:
    planned_lane = {"lane": 1, "job": "ucm", "attempt": 1}
    odd = [{**planned_lane, "attempt": "1"}, {**planned_lane, "job": 2}, {**planned_lane, "lane": None}, {"lane": 1}, 3]
    for note in (b"{", b"[]", b"\xff", *(json.dumps({"lanes": [lane]}).encode() for lane in odd)):
        world.store.put("runs/uff-ufm-0001/lanes.json", note)
        launched(world, "uff-ufm-0001", NOW - 100, runs_seconds=200)
        cycles(world, lambda: "lanes.unreadable" in world.ports.log.said, most=1)
        assert not world.plans
        world.ports.log.said.clear()
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert [lane.job for lane in runs.get(tx, "uff-ufm-0001").lanes] == ["ufm"]
        assert isinstance(runs.get(tx, "uff-ufm-0001").state, Ended)


def test_who_shares_a_session_is_noted_before_its_platform_is_called(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[int, tuple[str, int]]] = []
    real = world.ports.platforms["desk"].launch

    def launch(request: LaunchRequest, now: int) -> Any:
        asked.append(stored_lanes(world.store, request.key))
        return real(request, now)

    monkeypatch.setattr(world.ports.platforms["desk"], "launch", launch)
    world.lanes.extend([PlannedLane("ufm", 1, 5), PlannedLane("ucm", 1, 5)])
    cycles(world, lambda: asked)
    assert asked == [{0: ("ufm", 1), 1: ("ucm", 1)}]


def test_a_launch_whose_lanes_cannot_be_noted_is_not_made(
    world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(key: str, data: bytes) -> None:
        raise StoreError("write", key, "no space is left")

    monkeypatch.setattr(world.store, "put", put)
    world.lanes.extend([PlannedLane("ufm", 1, 5), PlannedLane("ucm", 1, 5)])
    cycles(world, lambda: "launch.store" in world.ports.log.said)
    assert not world.cloud.sessions


def test_nothing_is_planned_before_every_place_has_answered(world: SimpleNamespace) -> None:
    world.cloud.outage = {"find"}
    with pytest.raises(pytest.fail.Exception):
        cycles(world, lambda: world.plans, most=3)
    assert world.plans == []
    with world.database.read() as tx:
        assert not events.tail(tx, kinds=["restore.looked_back"])
    world.cloud.outage = set()
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert len(events.tail(tx, kinds=["restore.looked_back"])) == 1


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


def test_where_devices_are_counted_a_session_may_have_had_all(world: SimpleNamespace) -> None:
    world.ports.pools["desk"] = replace(world.ports.pools["desk"], device_counts=(1, 2, 4), devices_max=8)
    launched(world, "uff-ufm-0001", NOW - 3_000, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert [lane.devices for lane in runs.get(tx, "uff-ufm-0001").lanes] == [(0, 1, 2, 3)]


def test_a_job_that_is_held_keeps_its_state_and_its_session_is_known(world: SimpleNamespace) -> None:
    queue.hold(world.database, "ufm", "a look", NOW, "ann")
    launched(world, "uff-ufm-0003", NOW - 100, runs_seconds=None)
    cycles(world, lambda: world.plans)
    with world.database.read() as tx:
        assert not isinstance(jobs.get(tx, "ufm").state, Active | Queued)
        assert jobs.get(tx, "ufm").attempts == 3
        assert isinstance(runs.get(tx, "uff-ufm-0003").state, Running)
