"""A sweep that is halved, through real cycles: the best candidates go on, the budget holds, people may undo it."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import Halving, JobSpec, Needs
from scheduler.core.job import Active, Done, Held, Queued
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.reasons import BudgetSpent
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.halvings import budgets
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import events, jobs, ledger, runs
from tests.lab.fake import FakeCloud, FakePlatform, Script

RULE = Halving("held_out_loss", 10 * HOUR, candidates=3, rungs=(10, 30))
CONTENT = b"weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAMES = ("lr-a", "lr-b", "lr-c")


class World:
    """Three candidates of the sweep "lr"; what is planned starts at once on a desk that has room for all."""

    def __init__(self, make_ports: Callable[..., Ports], rule: Halving = RULE) -> None:
        self.plans: list[Plan] = []
        self.cloud = FakeCloud(usual=Script(stop_seconds=30), sessions_max=3)
        desk = Pool("desk", "fake", "CPU", session_cap_seconds=8 * HOUR, sessions_max=3, overrun_seconds=60)
        self.ports = make_ports(
            platforms={"desk": FakePlatform(self.cloud)},
            pools={"desk": desk},
            plan=lambda snapshot, _: self.plans.pop() if self.plans else Plan(snapshot.now, (), ()),
        )
        self.clock: Any = self.ports.clock
        self.database = self.ports.database
        spec = JobSpec("", "job", ("train",), rule.rungs[0], 100.0, sweep="lr", halving=rule)
        with self.database.write() as tx:
            for name in NAMES:
                jobs.add(tx, replace(spec, name=name), self.clock.now())
        self.cycle = Cycle(self.ports)

    def start(self, *names: str, hours: float = 2) -> None:
        """Let jobs be planned for now, in a session each."""
        self.clock.present += 60
        now = self.clock.now()
        end = now + int(hours * HOUR)
        self.plans.append(
            Plan(now, tuple(Placement("desk", now, end, (PlannedLane(name, 1, 10),)) for name in names), ())
        )
        self.cycle.plan_at = now
        self.cycle.run()

    def finish(self, name: str, value: float | None, outcome: str = "finished") -> None:
        """Let the session of a job save at its target, unless it fails, and leave."""
        state = self.record(name).state
        assert isinstance(state, Active)
        self.clock.present += 600
        now, step = self.clock.now(), self.record(name).spec.target_step
        with self.database.read() as tx:
            run = runs.get(tx, state.run)
        if outcome == "finished":
            metrics = {} if value is None else {"held_out_loss": value}
            weights = Component("weights.npy", DIGEST, len(CONTENT))
            manifest = Manifest(name, step, run.lanes[0].attempt, run.key, 0, None, now, 60, metrics, (weights,))
            self.ports.artifacts.put(blob_key(name, DIGEST), CONTENT)
            document = json.dumps({"format": 1, **asdict(manifest)}, default=asdict).encode()
            self.ports.artifacts.put(manifest.key, document)
        self.cloud.cut(run.key, now, "exit code 0")
        word = {"format": 1, "run": run.key, "lane": 0, "job": name, "started_at": run.planned_start, "at": now}
        word |= {"outcome": outcome, "error_class": None, "message": "out of memory", "phase": "ended"}
        self.ports.artifacts.put(f"runs/{run.key}/lane-0/result.json", json.dumps(word).encode())
        self.clock.present += 60
        self.cycle.run()

    def record(self, name: str) -> jobs.JobRecord:
        """A job as stored."""
        with self.database.read() as tx:
            return jobs.get(tx, name)

    def left(self) -> int:
        """The device seconds that the budget leaves."""
        with self.database.read() as tx:
            return budgets(tx)["lr"]


@pytest.fixture
def world(make_ports: Callable[..., Ports]) -> World:
    """A sweep of which the best one trains from step 10 to step 30."""
    return World(make_ports)


def test_the_best_trains_on_and_the_others_end_at_their_rung(world: World) -> None:
    world.start(*NAMES)
    world.finish("lr-a", 0.7)
    waits = world.record("lr-a").state
    assert isinstance(waits, Done)
    assert (waits.why, waits.full_target_step) == ("rung 1 of 2 is trained; the best 1 of 3 continue", 30)
    world.finish("lr-b", 0.5)
    world.cycle = Cycle(world.ports)  # whatever happens to the daemon meanwhile
    world.finish("lr-c", 0.6)
    best = world.record("lr-b")
    assert (isinstance(best.state, Queued), best.spec.target_step, best.done_step) == (True, 30, 10)
    dropped = world.record("lr-a").state
    assert isinstance(dropped, Done)
    assert dropped.why == "not among the best 1 in 3 at rung 1 of 2, held_out_loss 0.7"
    with world.database.read() as tx:
        kinds = [(event.kind, event.subject) for event in events.tail(tx, kinds=["job.promote", "job.drop"])]
    assert sorted(kinds) == [("job.drop", "lr-a"), ("job.drop", "lr-c"), ("job.promote", "lr-b")]
    world.start("lr-b")
    world.finish("lr-b", 0.4)
    assert world.record("lr-b").state == Done(world.clock.now())  # at its full target


def test_a_failure_or_a_missing_metric_is_the_worst_and_nobody_waits_for_it(world: World) -> None:
    world.start(*NAMES)
    world.finish("lr-a", None)
    world.finish("lr-b", 9.0)
    queue.hold(world.database, "lr-c", "look", world.clock.now(), "ann")
    world.finish("lr-c", None, "yielded")
    assert isinstance(world.record("lr-c").state, Held)
    assert world.record("lr-b").spec.target_step == 30
    assert "held_out_loss missing" in getattr(world.record("lr-a").state, "why", "")


def test_what_people_remove_is_noticed_by_the_next_cycle(world: World) -> None:
    world.start("lr-a", "lr-b")
    world.finish("lr-a", 0.7)
    world.finish("lr-b", 0.5)
    assert world.record("lr-b").spec.target_step == 10
    queue.remove(world.database, "lr-c", world.clock.now(), "ann")
    world.cycle.run()
    assert world.record("lr-b").spec.target_step == 30


def test_a_person_may_have_a_dropped_candidate_trained_to_the_end(world: World) -> None:
    world.start(*NAMES)
    for name, value in zip(NAMES, (0.5, 0.6, 0.7), strict=True):
        world.finish(name, value)
    record = queue.release(world.database, "lr-c", world.clock.now(), "ann")
    assert (isinstance(record.state, Queued), record.spec.target_step, record.done_step) == (True, 30, 10)
    rule = replace(RULE, budget_seconds=11 * HOUR)
    queue.edit(world.database, "lr-c", replace(record.spec, halving=rule), world.clock.now(), "ann")
    assert world.record("lr-c").spec.halving == replace(rule, left_at=0)
    world.start("lr-a", "lr-c")
    world.finish("lr-c", 0.1)
    world.finish("lr-a", 0.2)
    assert [world.record(name).state.full_target_step for name in ("lr-a", "lr-c")] == [None, None]  # type: ignore[union-attr]


def test_no_session_is_reserved_beyond_the_budget(make_ports: Callable[..., Ports]) -> None:
    world = World(make_ports, replace(RULE, budget_seconds=4 * HOUR))
    world.start(*NAMES, hours=2)
    states = [type(world.record(name).state) for name in NAMES]
    assert states == [Active, Active, Queued]  # two hours and five set-ups, what is left, nothing
    assert world.left() == 0
    with world.database.read() as tx:
        held = ledger.device_seconds(tx, NAMES, 0)
        snapshot = load_snapshot(tx, world.ports.pools, world.clock.now(), 24 * HOUR)
    assert sum(held.values()) == 4 * HOUR
    blocked = next(view.blocked for view in snapshot.jobs if view.name == "lr-c")
    assert isinstance(blocked, BudgetSpent)
    assert "leaves 0.00 device hours" in blocked.sentence()
    world.finish("lr-a", 0.5)  # it took less than was held for it
    assert 0 < world.left() < 4 * HOUR
    rule = replace(RULE, budget_seconds=6 * HOUR)
    spec = replace(world.record("lr-c").spec, halving=rule)
    before = world.left()
    queue.edit(world.database, "lr-c", spec, world.clock.now(), "ann")
    assert world.left() == before + 2 * HOUR


def test_nobody_is_promoted_when_the_budget_is_spent(make_ports: Callable[..., Ports]) -> None:
    world = World(make_ports, replace(RULE, budget_seconds=3 * 700))
    for name, value in zip(NAMES, (0.5, 0.6, 0.7), strict=True):
        world.start(name)
        world.finish(name, value)
    assert world.left() < 660
    assert world.record("lr-a").spec.target_step == 10
    state = world.record("lr-a").state
    spec = replace(world.record("lr-a").spec, halving=replace(RULE, budget_seconds=HOUR))
    queue.edit(world.database, "lr-a", spec, world.clock.now(), "ann")
    assert isinstance(state, Done)
    world.cycle.run()
    assert world.record("lr-a").spec.target_step == 30


def test_a_job_keeps_a_budget_of_its_own(make_ports: Callable[..., Ports]) -> None:
    world = World(make_ports)
    with world.database.write() as tx:
        jobs.add(tx, JobSpec("alone", "job", ("train",), 10, 100.0, budget_seconds=HOUR), world.clock.now())
    world.start("alone", hours=2)
    with world.database.read() as tx:
        assert ledger.device_seconds(tx, ["alone"], 0) == {"alone": HOUR}
        assert budgets(tx)["job alone"] == 0
    world.finish("alone", None, "yielded")
    with world.database.read() as tx:
        used = ledger.device_seconds(tx, ["alone"], 0)["alone"]
        assert 0 < used < HOUR
        assert budgets(tx)["job alone"] == HOUR - used
    world.start("alone", hours=2)
    assert isinstance(world.record("alone").state, Active)
    world.finish("alone", None, "yielded")
    spec = replace(world.record("alone").spec, budget_seconds=used)
    queue.edit(world.database, "alone", spec, world.clock.now(), "ann")
    world.start("alone", hours=2)
    with world.database.read() as tx:
        snapshot = load_snapshot(tx, world.ports.pools, world.clock.now(), 24 * HOUR)
    blocked = next(view.blocked for view in snapshot.jobs if view.name == "alone")
    assert isinstance(blocked, BudgetSpent)
    assert blocked.sentence().endswith("queue edit alone --set budget=TIME")


def test_a_small_rest_of_a_budget_is_used_on_fewer_devices(make_ports: Callable[..., Ports]) -> None:
    """On two devices at once the rest would last for no useful session, on one it does."""
    world = World(make_ports)
    spec = JobSpec("wide", "job", ("train",), 10, 100.0, needs=Needs(1, 2), budget_seconds=HOUR)
    least = spec.setup_seconds + spec.checkpoint_seconds + 60  # of overrun
    for rest, devices_max in ((2 * least, 2), (2 * least - 1, 1)):
        with world.database.write() as tx:
            jobs.add(tx, replace(spec, name=f"wide-{rest}", budget_seconds=rest), world.clock.now())
            snapshot = load_snapshot(tx, world.ports.pools, world.clock.now(), 24 * HOUR)
        (view,) = [view for view in snapshot.jobs if view.name == f"wide-{rest}"]
        assert (view.blocked, view.needs.devices_max) == (None, devices_max)


def test_of_two_candidates_in_one_session_the_first_has_the_rest_of_their_budget(
    make_ports: Callable[..., Ports],
) -> None:
    spec = JobSpec("", "job", ("train",), 10, 100.0)
    least = spec.setup_seconds + spec.checkpoint_seconds + 60
    world = World(make_ports, replace(RULE, budget_seconds=2 * least - 1))
    world.clock.present += 60
    now = world.clock.now()
    lanes = tuple(PlannedLane(name, 1, 10) for name in NAMES[:2])
    world.plans.append(Plan(now, (Placement("desk", now, now + HOUR, lanes),), ()))
    world.cycle.plan_at = now
    world.cycle.run()
    assert isinstance(world.record("lr-a").state, Active)
    assert isinstance(world.record("lr-b").state, Queued)
