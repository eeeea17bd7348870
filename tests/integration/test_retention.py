"""Saved states leave the store in two phases; a crash anywhere, repeated passes and stores that fail do no harm."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.store.manifest import Component, Manifest, blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreUnreachable
from platforms.artifacts.directory import DirectoryStore
from scheduler.clock import ScaledClock
from scheduler.core import run as arrows
from scheduler.core.retention import DAY, Retention
from scheduler.core.run import Lane, Outcome, Reserved, Run
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.upkeep import housekeeping
from scheduler.service.upkeep.housekeeping import judge, retain, sweep_ended
from scheduler.store import checkpoints, events, jobs, outbox, runs
from scheduler.store.engine import Database
from scheduler.store.errors import Fenced
from tests.lab.night import one_in

NOW = 1_795_000_000
RULE = Retention(newest=2, milestones=0)


class Crash(BaseException):
    """The process is gone."""


class Dying:
    """A store, or a database, that dies before or after its Nth call."""

    def __init__(self, inner: Any, countdown: "Countdown") -> None:
        self._inner, self._countdown = inner, countdown

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in {"delete", "keys", "read"}:
            return found

        def call(*words: Any) -> Any:
            self._countdown.tick()
            answer = found(*words)
            self._countdown.tick()
            return answer

        return call


class Countdown:
    """Raises Crash at the Nth tick; counts them all."""

    def __init__(self, crash_at: int | None = None) -> None:
        self.ticks, self.crash_at = 0, crash_at

    def tick(self) -> None:
        """One point at which the process may die."""
        self.ticks += 1
        if self.ticks == self.crash_at:
            raise Crash


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An artifact store in a folder."""
    return DirectoryStore(tmp_path / "artifacts")


@pytest.fixture
def ports(make_ports: Callable[..., Ports], database: Database, store: DirectoryStore) -> Ports:
    """What housekeeping runs on, under a lease."""
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, JobSpec(name, "manager", ("train",), target_step=1_000, steps_per_hour=10.0), NOW)
    return make_ports(artifacts=store, clock=ScaledClock(0.0, 0.0, 1.0), policy=Policy(retention=RULE))


def publish(store: DirectoryStore, step: int, *, job: str = "ufm", run: str = "run-1", base: str = "b") -> Manifest:
    """Write what a payload would: a component of its own, one shared by all, and the manifest last."""
    own = f"{step:064x}"
    for digest in (own, base * 64):
        store.create(blob_key(job, digest), digest.encode())
    parts = (("own", own, 64), ("base", base * 64, 64))
    key = manifest_key(job, step, 1)
    written = Manifest(job, step, 1, run, 0, None, NOW, 60, {}, tuple(Component(*part) for part in parts))
    store.create(key, written.encode())
    return written


def fill(ports: Ports, steps: range, **words: Any) -> None:
    """Publish and record checkpoints; the job goes on from the last."""
    for step in steps:
        manifest = publish(ports.artifacts, step, **words)  # type: ignore[arg-type]
        with ports.write() as tx:
            checkpoints.record(tx, manifest, NOW)
            jobs.note_progress(tx, manifest.job, step, manifest.key)


def launch(ports: Ports, key: str = "run-2", at: int = NOW + 10, job: str = "ufm") -> None:
    with ports.write() as tx:
        run = Run(key, "desk", (Lane(0, job, 1, (0,), None),), at, at + 900, at + 1_000, Reserved(at))
        runs.insert(tx, run, at)


def manifests(store: DirectoryStore, job: str = "ufm") -> list[int]:
    return [int(key.rsplit("/", 1)[1][:12]) for key in store.keys(f"jobs/{job}/manifests/")]


def blobs(store: DirectoryStore, job: str = "ufm") -> set[int]:
    """Return the steps whose own component is there; -1 stands for the shared one."""
    names = [key.rsplit("/", 1)[1] for key in store.keys(f"jobs/{job}/blobs/")]
    return {-1 if name == "b" * 64 else int(name, 16) for name in names}


def test_nothing_goes_before_its_grace_and_components_go_last(ports: Ports, store: DirectoryStore) -> None:
    fill(ports, range(1, 6))
    retain(ports, NOW)
    with ports.database.read() as tx:
        marked = {mark.key: mark for mark in checkpoints.marked(tx)}
    assert [int(key[-24:-12]) for key in marked] == [1, 2, 3]
    assert {mark.delete_at for mark in marked.values()} == {NOW + DAY}
    assert {mark.why for mark in marked.values()} == {"2 newer ones are good, and it is not a milestone"}
    retain(ports, NOW + DAY - 1)
    assert manifests(store) == [1, 2, 3, 4, 5]
    retain(ports, NOW + DAY)
    assert manifests(store) == [4, 5]
    assert blobs(store) == {1, 2, 3, 4, 5, -1}
    retain(ports, NOW + 2 * DAY)
    assert blobs(store) == {4, 5, -1}
    with ports.database.read() as tx:
        assert checkpoints.marked(tx) == []
        assert [one.state for one in checkpoints.everything(tx, "ufm")] == [*["good"] * 2, *["expired"] * 3]
        assert len(events.tail(tx, kinds=["checkpoint.expired"])) == 3


def test_what_is_needed_after_all_is_unmarked(ports: Ports, store: DirectoryStore) -> None:
    """The newest turns out to be damaged, and a person pins another, after both their elders were marked."""
    fill(ports, range(1, 6))
    retain(ports, NOW)
    with ports.write() as tx:
        checkpoints.quarantine(tx, manifest_key("ufm", 5, 1), "torn", NOW + 5)
        jobs.note_progress(tx, "ufm", 4, manifest_key("ufm", 4, 1), fork=True)
        checkpoints.pin(tx, manifest_key("ufm", 1, 1), True, NOW + 5, "ann")
    retain(ports, NOW + DAY)
    assert manifests(store) == [1, 3, 4, 5]


def test_a_pin_that_comes_in_the_last_moment_counts(
    ports: Ports, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the judgement that marks and the one that deletes."""
    fill(ports, range(1, 6))
    retain(ports, NOW)
    with ports.write() as tx:
        checkpoints.pin(tx, manifest_key("ufm", 1, 1), True, NOW + 5, "ann")
    monkeypatch.setattr("scheduler.service.upkeep.housekeeping._mark", lambda *_: None)
    for day in (1, 2, 3):
        retain(ports, NOW + day * DAY)
    assert (manifests(store), blobs(store)) == ([1, 4, 5], {1, 4, 5, -1})


def test_a_live_session_keeps_what_it_may_read_and_every_component(ports: Ports, store: DirectoryStore) -> None:
    fill(ports, range(1, 10))
    launch(ports)
    store.create(blob_key("ufm", f"{99:064x}"), b"an upload under way, no manifest yet")
    for day in range(8):
        retain(ports, NOW + day * DAY)
    assert manifests(store) == [5, 6, 7, 8, 9]  # the five it was told of
    assert blobs(store) == {*range(1, 10), 99, -1}
    with ports.write() as tx:
        run = runs.get(tx, "run-2")
        runs.close_lane(tx, run.key, 0, Outcome.CANCELLED, None, None, "", NOW)
        ended = arrows.end(run.state, Outcome.CANCELLED, NOW, None)
        runs.change_state(tx, run.key, run.state, ended, "end", NOW)
    for day in range(8, 12):
        retain(ports, NOW + day * DAY)
    assert manifests(store) == [8, 9]
    assert blobs(store) == {8, 9, -1}


def test_components_go_between_two_sessions_of_a_busy_job(ports: Ports, store: DirectoryStore) -> None:
    """A job that always has a session when housekeeping looks: the cycle calls when one has ended."""
    fill(ports, range(1, 6))
    for day in range(2):
        retain(ports, NOW + day * DAY)
    launch(ports, job="ucm")
    sweep_ended(ports, ["ufm"], NOW + 2 * DAY - 1)
    assert blobs(store) == {1, 2, 3, 4, 5, -1}
    sweep_ended(ports, ["ucm"], NOW + 2 * DAY)
    assert blobs(store) == {1, 2, 3, 4, 5, -1}
    sweep_ended(ports, ["ufm"], NOW + 2 * DAY)
    assert blobs(store) == {4, 5, -1}


def test_a_component_that_is_named_again_stays(ports: Ports, store: DirectoryStore) -> None:
    """Somebody publishes the very bytes that were about to go, and the database has not heard of it yet."""
    fill(ports, range(1, 6))
    for day in range(2):
        retain(ports, NOW + day * DAY)
    own = (Component("own", f"{1:064x}", 64),)
    written = Manifest("ufm", 77, 2, "run-3", 0, None, NOW, 60, {}, own)
    store.create(manifest_key("ufm", 77, 2), written.encode())
    retain(ports, NOW + 3 * DAY)
    assert blobs(store) == {1, 4, 5, -1}


def test_a_manifest_that_nobody_can_read_stops_the_sweep_of_its_job_alone(ports: Ports, store: DirectoryStore) -> None:
    for job in ("ufm", "ucm"):
        fill(ports, range(1, 6), job=job)
    store.create(manifest_key("ufm", 66, 9), b"{")
    for day in range(4):
        retain(ports, NOW + day * DAY)
    assert blobs(store) == {1, 2, 3, 4, 5, -1}
    assert blobs(store, "ucm") == {4, 5, -1}
    assert "retention.waits" in ports.log.said  # type: ignore[attr-defined]
    with ports.database.read() as tx:
        (told,) = events.tail(tx, kinds=["report.refused"])
    assert told.subject == "ufm"
    assert "not JSON" in told.data["why"]


def test_a_store_that_does_not_answer_changes_nothing_and_work_goes_on_later(
    ports: Ports, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ports, range(1, 6))
    retain(ports, NOW)
    with monkeypatch.context() as patch:
        patch.setattr(store, "delete", lambda key: _down("delete", key))
        patch.setattr(store, "keys", lambda prefix: _down("list", prefix))
        retain(ports, NOW + DAY)
    assert manifests(store) == [1, 2, 3, 4, 5]
    for day in (2, 3):
        retain(ports, NOW + day * DAY)
    assert (manifests(store), blobs(store)) == ([4, 5], {4, 5, -1})


def _down(action: str, key: str) -> Iterator[str]:
    raise StoreUnreachable(action, key, "no route")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_crash_at_any_point_loses_nothing_that_is_needed_and_the_next_pass_ends_the_work(
    ports: Ports, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after every commit and every call of the store, or some of them, one crash each."""
    count = Countdown()
    _deal(ports, DirectoryStore(tmp_path / "counted"), count, monkeypatch, "ufm")
    assert count.ticks > 30
    for point in range(1, count.ticks + 1, one_in()):
        job = f"job{point}"
        with ports.write() as tx:
            jobs.add(tx, JobSpec(job, "manager", ("train",), target_step=1_000, steps_per_hour=10.0), NOW)
        store = DirectoryStore(tmp_path / f"at-{point}")
        with pytest.raises(Crash):
            _deal(ports, store, Countdown(point), monkeypatch, job)
        with ports.database.read() as tx:
            for record in checkpoints.unexpired(tx, job):  # whatever a session may be told of is whole
                for component in record.manifest.components:
                    assert store.size(blob_key(job, component.sha256)) is not None, point
                assert store.size(record.manifest.key) is not None, point
        again = replace(ports, artifacts=store)
        for day in range(2, 6):
            retain(again, NOW + day * DAY)
        assert (manifests(store, job), blobs(store, job)) == ([4, 5], {4, 5, -1}), point
        with ports.database.read() as tx:
            assert checkpoints.marked(tx, job) == [], point


def _deal(ports: Ports, store: DirectoryStore, countdown: Countdown, monkeypatch: pytest.MonkeyPatch, job: str) -> None:
    """Three passes on a store, with a point at each call of it and around each commit."""
    fill(replace(ports, artifacts=store), range(1, 6), job=job)
    watched = replace(ports, artifacts=Dying(store, countdown))
    real = Database.write

    def write(self: Database) -> Any:
        return _Watched(real(self), countdown)

    with monkeypatch.context() as patch:
        patch.setattr(Database, "write", write)
        for day in range(3):
            retain(watched, NOW + day * DAY)


class _Watched:
    """A transaction with a point before and after its commit."""

    def __init__(self, inner: Any, countdown: Countdown) -> None:
        self._inner, self._countdown = inner, countdown

    def __enter__(self) -> Any:
        return self._inner.__enter__()

    def __exit__(self, *words: object) -> Any:
        try:
            if words[0] is None:
                self._countdown.tick()
        except Crash as crash:
            self._inner.__exit__(Crash, crash, None)
            raise
        answer = self._inner.__exit__(*words)
        self._countdown.tick()
        return answer


def test_people_see_what_goes_when_and_why(ports: Ports) -> None:
    fill(ports, range(1, 6))
    retain(ports, NOW)
    with ports.database.read() as tx:
        judged = judge(tx, RULE, NOW, "ufm")
    assert [(one.record.manifest.step, one.verdict.stays, one.delete_at) for one in judged] == [
        (5, True, None),
        (4, True, None),
        (3, False, NOW + DAY),
        (2, False, NOW + DAY),
        (1, False, NOW + DAY),
    ]


def test_a_daemon_that_lost_its_lease_deletes_nothing(ports: Ports, store: DirectoryStore) -> None:
    fill(ports, range(1, 6))
    for day in range(2):
        retain(ports, NOW + day * DAY)
    stale = replace(ports, epoch=ports.epoch - 1)
    with pytest.raises(Fenced):
        sweep_ended(stale, ["ufm"], NOW + 5 * DAY)
    assert blobs(store) == {1, 2, 3, 4, 5, -1}


def test_rows_are_pruned_when_their_time_has_come(ports: Ports) -> None:
    with ports.write() as tx:
        outbox.add(tx, "weekly", "2026-W01", "email", {"text": "long words"}, NOW)
        (message,) = outbox.pending(tx, NOW)
        outbox.sent(tx, message.id, NOW)
        outbox.add(tx, "weekly", "2026-W02", "email", {"text": "not sent yet"}, NOW)
    housekeeping.prune_rows(ports, NOW + 90 * DAY)
    with ports.write() as tx:
        assert tx.exec_driver_sql("SELECT body FROM outbox ORDER BY id").scalars().all()[0] != "{}"
    housekeeping.prune_rows(ports, NOW + 90 * DAY + 1)
    with ports.write() as tx:
        bodies = tx.exec_driver_sql("SELECT body FROM outbox ORDER BY id").scalars().all()
        assert bodies[0] == "{}"
        assert bodies[1] != "{}"
        assert not outbox.add(tx, "weekly", "2026-W01", "email", {}, NOW), "what was sent is never sent again"
        assert len(events.tail(tx)) == 2
    housekeeping.prune_rows(ports, NOW + 401 * DAY)
    with ports.database.read() as tx:
        assert len(events.tail(tx)) == 1


def test_rows_of_checkpoints_long_gone_are_forgotten(ports: Ports, store: DirectoryStore) -> None:
    fill(ports, range(1, 6))
    for day in range(3):
        retain(ports, NOW + day * DAY)
    housekeeping.prune_rows(ports, NOW + 400 * DAY)
    with ports.database.read() as tx:
        assert len(checkpoints.everything(tx)) == 5
    housekeeping.prune_rows(ports, NOW + 400 * DAY + 1)
    with ports.database.read() as tx:
        assert [one.manifest.step for one in checkpoints.everything(tx)] == [5, 4]


def test_reports_of_sessions_long_over_leave_the_store(ports: Ports, store: DirectoryStore) -> None:
    for number in (1, 2):
        launch(ports, f"run-{number}", at=NOW, job="ufm" if number == 1 else "ucm")
        store.put(f"runs/run-{number}/stop", b"")
        store.put(f"runs/run-{number}/lane-0/result.json", b"{}")
    store.put("runs/somebody-elses/stop", b"")
    with ports.write() as tx:
        state = runs.get(tx, "run-1").state
        runs.change_state(tx, "run-1", state, arrows.end(state, Outcome.CANCELLED, NOW, None), "end", NOW)
    housekeeping.sweep_store(ports, NOW + 30 * DAY)
    assert len(list(store.keys("runs/"))) == 5
    housekeeping.sweep_store(ports, NOW + 30 * DAY + 1)
    assert list(store.keys("runs/")) == ["runs/run-2/lane-0/result.json", "runs/run-2/stop", "runs/somebody-elses/stop"]
