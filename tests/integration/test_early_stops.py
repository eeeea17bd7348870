"""A stop rule through real cycles: the session saves, the job ends at its best checkpoint, a person undoes it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import Gate, JobSpec, StopRule
from scheduler.core.job import Active, Done, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Stopping
from scheduler.report.facts import JobFacts
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.service.upkeep.housekeeping import judge
from scheduler.store import checkpoints, events, jobs, runs
from scheduler.views.weekly_report import facts_within
from tests.lab.fake import FakeCloud, FakePlatform, Script

KEY = "uff-ufm-0001"
RULE = StopRule("held_out_loss", patience=3, least=0.01)
CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class World:
    """A job with a stop rule that runs in a session of four hours; ``child`` waits for its end."""

    def __init__(self, make_ports: Callable[..., Ports], rule: StopRule) -> None:
        plans: list[Plan] = []
        self.cloud = FakeCloud(usual=Script(stop_seconds=30))
        self.ports = make_ports(
            platforms={"desk": FakePlatform(self.cloud)},
            pools={"desk": Pool("desk", "fake", "CPU", session_cap_seconds=4 * HOUR)},
            plan=lambda snapshot, _: plans.pop() if plans else Plan(snapshot.now, (), ()),
        )
        self.clock: Any = self.ports.clock
        self.database = self.ports.database
        self.begins = self.clock.now()
        plans.append(
            Plan(
                self.begins,
                (Placement("desk", self.begins, self.begins + 4 * HOUR, (PlannedLane("ufm", 1, 400),)),),
                (),
            )
        )
        with self.database.write() as tx:
            jobs.add(tx, JobSpec("ufm", "manager", ("train",), 1_000, 100.0, stop=rule), self.begins)
            jobs.add(tx, JobSpec("child", "job", ("train",), 10, 100.0, gate=Gate("ufm", 1.0)), self.begins)
        self.cycle = Cycle(self.ports)
        self.cycle.run()

    def save(self, step: int, value: float, metric: str = "held_out_loss") -> str:
        """Let the session save a checkpoint, and a cycle see it."""
        metrics = {metric: value}
        weights = Component("weights.npy", DIGEST, len(CONTENT))
        manifest = Manifest("ufm", step, 1, KEY, 0, None, self.clock.now(), 60, metrics, (weights,))
        self.ports.artifacts.put(blob_key("ufm", DIGEST), CONTENT)
        self.ports.artifacts.put(manifest.key, json.dumps({"format": 1, **asdict(manifest)}, default=asdict).encode())
        self.say("heartbeat", phase="training", step=step, checkpoint_step=step)
        self.run()
        return manifest.key

    def say(self, name: str, **said: object) -> None:
        """Let the session leave a document."""
        word = {"format": 1, "run": KEY, "lane": 0, "job": "ufm", "started_at": self.begins, "at": self.clock.now()}
        self.ports.artifacts.put(f"runs/{KEY}/lane-0/{name}.json", json.dumps(word | said).encode())

    def run(self, seconds: int = 60) -> None:
        """Let a cycle run so many seconds later."""
        self.clock.present += seconds
        self.cycle.run()

    def end(self, outcome: str = "yielded") -> None:
        """Let the session leave, and a cycle see it."""
        self.cloud.cut(KEY, self.clock.now() + 1, "exit code 0")
        self.say("result", outcome=outcome, error_class=None, message="", phase="ended")
        self.run(300)

    @property
    def record(self) -> jobs.JobRecord:
        """The job as stored."""
        with self.database.read() as tx:
            return jobs.get(tx, "ufm")


@pytest.fixture
def world(make_ports: Callable[..., Ports]) -> World:
    """A job that ends when three checkpoints in a row gained less than a hundredth."""
    return World(make_ports, RULE)


def plateau(world: World) -> str:
    """Let the job learn nothing after step 20; return the key of its best checkpoint."""
    world.save(10, 2.0)
    best = world.save(20, 1.0)
    for step in (30, 40, 50):
        world.save(step, 1.0 + step / 100)
    return best


@pytest.mark.parametrize("outcome", ["yielded", "failed", "preempted"])
def test_a_job_that_learns_nothing_more_saves_ends_and_is_done_at_its_best(world: World, outcome: str) -> None:
    best = plateau(world)
    state = world.record.state
    assert isinstance(state, Active)
    assert (state.wish, "has not improved by 0.01 for 3 checkpoints" in state.why) == ("finish", True)
    world.run()
    with world.database.read() as tx:
        run = runs.get(tx, KEY)
    assert isinstance(run.state, Stopping)
    world.save(55, 1.6)  # saved as it leaves
    world.end(outcome)
    record = world.record
    assert isinstance(record.state, Done)
    assert record.state.full_target_step == 1_000
    assert (record.checkpoint, record.done_step, record.spec.target_step) == (best, 20, 20)
    assert not record.result_lost
    with world.database.read() as tx:
        snapshot = load_snapshot(tx, world.ports.pools, world.clock.now(), 7 * 24 * HOUR)
        told = events.tail(tx, kinds=["job.finish"], subject="ufm")
    assert [view.name for view in snapshot.jobs] == ["child"]
    assert snapshot.jobs[0].blocked is None
    assert snapshot.progress("ufm") == 1.0
    assert (told[0].data["step"], told[0].data["full_target_step"]) == (20, 1_000)


def test_what_arrives_after_the_end_changes_nothing(world: World) -> None:
    best = plateau(world)
    world.end()
    world.save(60, 0.1)
    record = world.record
    assert (record.checkpoint, record.done_step, isinstance(record.state, Done)) == (best, 20, True)


def test_a_person_may_have_the_rest_trained_from_the_newest_checkpoint_without_the_rule(world: World) -> None:
    plateau(world)
    world.end()
    record = queue.release(world.database, "ufm", world.clock.now(), "ann")
    assert isinstance(record.state, Queued)
    assert (record.done_step, record.spec.target_step, record.spec.stop) == (50, 1_000, None)
    world.run()
    assert isinstance(world.record.state, Queued)


def test_a_person_may_withdraw_it_while_the_session_saves(world: World) -> None:
    plateau(world)
    record = queue.release(world.database, "ufm", world.clock.now(), "ann")
    assert (record.spec.stop, isinstance(record.state, Active)) == (None, True)
    world.end()
    assert isinstance(world.record.state, Queued)


def test_a_hold_comes_first(world: World) -> None:
    plateau(world)
    queue.hold(world.database, "ufm", "let me look", world.clock.now(), "ann")
    world.end()
    assert world.record.done_step == 50
    assert type(world.record.state).__name__ == "Held"


def test_a_value_ends_it_at_once(make_ports: Callable[..., Ports]) -> None:
    world = World(make_ports, StopRule("accuracy", value=0.9, aim="high"))
    world.save(10, 0.5, "accuracy")
    assert world.record.state.wish is None  # type: ignore[union-attr] # it runs
    world.save(20, 0.91, "accuracy")
    world.end()
    assert (world.record.done_step, isinstance(world.record.state, Done)) == (20, True)


def test_a_forecast_ends_it_at_its_best_and_the_hours_go_back(make_ports: Callable[..., Ports]) -> None:
    world = World(make_ports, StopRule("held_out_loss", value=0.5, forecast=0.95))
    best = [world.save(100 * number, 2 + 1 / number) for number in range(1, 9)][-1]
    state = world.record.state
    assert isinstance(state, Active)
    assert (state.wish, state.why) == ("finish", "held_out_loss will not be 0.5 at step 1,000, with 95 % certainty")
    world.end()
    record = world.record
    assert isinstance(record.state, Done)
    assert (record.checkpoint, record.done_step, record.state.full_target_step) == (best, 800, 1_000)
    assert record.state.why.endswith("about 2.0 h of sessions are saved")
    with world.database.read() as tx:
        (event,) = events.tail(tx, kinds=["job.finish"], subject="ufm")
        week = facts_of(tx, world)
    assert event.data["spared_seconds"] == 2 * HOUR
    assert "about 2.0 h" in week.why
    released = queue.release(world.database, "ufm", world.clock.now(), "ann")
    assert (released.done_step, released.spec.target_step, released.spec.stop) == (800, 1_000, None)


def facts_of(tx: Connection, world: World) -> JobFacts:
    """What the weekly report says about the job."""
    now = world.clock.now()
    facts = facts_within(tx, world.ports.pools, now - HOUR, now, 1.0, [], [], jobs.everything(tx))
    return next(job for job in facts.jobs if job.name == "ufm")


def test_the_best_checkpoint_is_kept_and_a_damaged_one_is_no_result(world: World) -> None:
    best = plateau(world)
    with world.database.read() as tx:
        judged = judge(tx, world.ports.policy.retention, world.clock.now())
    assert best in {one.record.manifest.key for one in judged if one.verdict.stays}
    with world.database.write() as tx:
        checkpoints.quarantine(tx, best, "torn", world.clock.now())
    world.end()
    assert (world.record.done_step, world.record.spec.target_step) == (30, 30)
