"""What an ended session left: fetched with patience, believed when it is here, told when it is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.payload.store.manifest import Component, Manifest, blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.artifacts.base import StoreError
from platforms.base import Unfinished, Unreachable
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Ended, Outcome
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.observation import LiveJobs, Observation
from scheduler.service.facts.observe import PATIENCE_SECONDS, OutputCollection
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, runs
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script

KEY = "uff-ufm-0001"
STEP = 172


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database, hand_clock: Any) -> SimpleNamespace:
    """A session that ended and yielded at STEP; ``arrivals`` is what each collect does, the last one again."""
    cloud, arrivals, asked = FakeCloud(), list[Callable[[], object]](), list[int]()
    begins = hand_clock.present
    plans = iter([Plan(begins, (Placement("desk", begins, begins + 3_600, (PlannedLane("ufm", 1, STEP),)),), ())])
    platform = FakePlatform(cloud)
    ports = make_ports(
        platforms={"desk": platform},
        pools={"desk": Pool("desk", "fake", "CPU", session_cap_seconds=7_200)},
        plan=lambda snapshot, _: next(plans, Plan(snapshot.now, (), ())),
    )

    def collect(key: str, into: object, now: int) -> None:
        asked.append(now)
        (arrivals.pop(0) if len(arrivals) > 1 else arrivals[0])()

    platform.collect = collect  # type: ignore[method-assign]
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), target_step=1_000, steps_per_hour=200.0), begins)
    cloud.scripts.append(Script(runs_seconds=600))
    cycle = Cycle(ports)
    cycle.run()
    return SimpleNamespace(
        ports=ports, clock=hand_clock, database=database, arrivals=arrivals, asked=asked, cycle=cycle, begins=begins
    )


def say(world: SimpleNamespace) -> None:
    """Have the session's last word in the store."""
    at = world.begins + 600
    document = {"format": 1, "run": KEY, "lane": 0, "job": "ufm", "at": at, "started_at": world.begins, "ended_at": at,
                "phase": "ended", "outcome": "yielded", "why": "deadline", "message": "", "step": STEP,
                "checkpoint_step": STEP, "trained_seconds": 500, "bad_manifests": []}  # fmt: skip
    world.ports.artifacts.put(f"runs/{KEY}/lane-0/result.json", json.dumps(document).encode())


def bring(world: SimpleNamespace, size: int = 1) -> None:
    """Have all of it in the store."""
    say(world)
    save(world, size)


def save(world: SimpleNamespace, size: int = 1) -> None:
    """Have its checkpoint in the store, of which ``size`` bytes have come."""
    digest = "a" * 64
    manifest = Manifest("ufm", STEP, 1, KEY, 0, None, world.begins + 500, 60, {}, (Component("own", digest, 1),))
    world.ports.artifacts.put(blob_key("ufm", digest), b"x" * size)
    world.ports.artifacts.put(manifest_key("ufm", STEP, 1), manifest.encode())


def raises(error: Exception, cause: Exception | None = None) -> Callable[[], object]:
    def arrive() -> None:
        raise error from cause

    return arrive


def run_for(world: SimpleNamespace, seconds: int, every: int = 60) -> Any:
    """Run cycles for so long, or until the run has ended; return its state."""
    state: Any = None
    for _ in range(seconds // every):
        world.clock.present += every
        world.cycle.run()
        with world.database.read() as tx:
            state = runs.get(tx, KEY).state
        if isinstance(state, Ended):
            return state
    return state


def step(world: SimpleNamespace) -> int:
    with world.database.read() as tx:
        return jobs.get(tx, "ufm").done_step


def told(world: SimpleNamespace, kind: str) -> int:
    with world.database.read() as tx:
        return len(events.tail(tx, kinds=[kind], subject=KEY))


@pytest.mark.parametrize("first", ["nothing", "damaged", "unreachable"])
def test_what_comes_late_counts_and_the_end_is_believed_then(world: SimpleNamespace, first: str) -> None:
    """The fault that was seen: yielded at step 172, and the job stood at 0."""
    begun: dict[str, list[Callable[[], object]]] = {
        "nothing": [lambda: say(world)],
        "damaged": [lambda: bring(world, size=0)],
        "unreachable": [raises(Unreachable("desk", "collect", "one file came damaged"))],
    }
    world.arrivals.extend([*begun[first] * 3, lambda: bring(world)])
    ended = run_for(world, 3 * 3_600)
    assert isinstance(ended, Ended)
    assert (ended.outcome, step(world)) == (Outcome.YIELDED, STEP)
    assert ended.at == world.begins + 600  # the wait costs nothing
    assert len(world.asked) == 4
    assert (told(world, "session.awaited"), told(world, "session.lost")) == (1, 0)


@pytest.mark.parametrize("arrives", ["claim", "damaged"])
def test_what_never_comes_is_lost_in_the_end_and_said_to_be(world: SimpleNamespace, arrives: str) -> None:
    """Asked for hours, less often each time, also by a daemon that starts again."""
    say(world)
    world.arrivals.append(
        (lambda: None) if arrives == "claim" else raises(Unreachable("desk", "collect", "1 file came damaged"))
    )
    assert not isinstance(run_for(world, PATIENCE_SECONDS // 2), Ended)
    world.cycle = Cycle(world.ports)
    ended = run_for(world, PATIENCE_SECONDS, every=600)
    assert isinstance(ended, Ended)
    assert (ended.outcome, step(world)) == (Outcome.YIELDED, 0)
    assert PATIENCE_SECONDS <= world.clock.present - world.begins - 600 <= PATIENCE_SECONDS + 1_800
    with world.database.read() as tx:
        (lane,) = runs.get(tx, KEY).lanes
    assert lane.message.startswith("lost: ")
    assert told(world, "session.lost") == 1
    assert len(world.asked) < 40


@pytest.mark.parametrize(
    "trouble",
    [
        raises(Unfinished("desk", "collect", "it goes on: 3 of 9 files are home")),
        raises(Unreachable("desk", "collect", "no room"), StoreError("create", "x", "no space left on device")),
    ],
)
def test_what_gets_on_and_what_our_own_store_does_not_take_costs_no_patience(
    world: SimpleNamespace, trouble: Callable[[], object]
) -> None:
    world.arrivals.append(trouble)
    assert not isinstance(run_for(world, 2 * PATIENCE_SECONDS, every=600), Ended)
    world.arrivals[:] = [lambda: bring(world)]
    assert isinstance(run_for(world, 3_600), Ended)
    assert step(world) == STEP


def test_a_manifest_that_nobody_can_read_is_told(world: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a damaged one, which says so itself: one that the disk does not give."""
    say(world)
    save(world)
    world.arrivals.append(lambda: None)
    honest = world.ports.artifacts.read

    def read(key: str, *limits: Any) -> bytes:
        if "/manifests/" in key:
            raise StoreError("read", key, "input/output error")
        return bytes(honest(key, *limits))

    monkeypatch.setattr(world.ports.artifacts, "read", read)
    run_for(world, 900)
    with world.database.read() as tx:
        (event,) = events.tail(tx, kinds=["report.refused"], subject="ufm")
    assert "input/output error" in event.data["why"]


@pytest.mark.parametrize("restored", [STEP - 100, None])
def test_the_same_step_of_an_earlier_attempt_is_not_what_this_one_saved(
    world: SimpleNamespace, restored: int | None
) -> None:
    """A damaged checkpoint of an attempt, passed over by the next, which then saves that step again."""
    with world.database.read() as tx:
        run = runs.get(tx, KEY)
    (lane,) = run.lanes
    run = replace(run, lanes=(replace(lane, attempt=2, restore_step=STEP if restored else None),))
    earlier = [manifest_key("ufm", STEP, 1)]
    seen = Observation(listed={"ufm"}, collected={KEY})
    seen.results[KEY, 0] = LaneReport(run=KEY, lane=0, job="ufm", checkpoint_step=STEP, restored_step=restored)
    home = OutputCollection(world.ports)
    home.update([run], LiveJobs({"ufm": 1_000}, {"ufm": STEP - 100}, earlier), seen, world.clock.present)
    assert seen.awaited == {KEY: f"step {STEP} of ufm has not arrived, or is damaged"}
    seen.awaited.clear()
    home.update([run], LiveJobs({}, {}, [*earlier, manifest_key("ufm", STEP, 2)]), seen, world.clock.present)
    assert not seen.awaited
