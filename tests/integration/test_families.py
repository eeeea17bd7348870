"""Jobs that begin with another's weights: chosen once, kept while needed, given to a session whole or not at all."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jobs as product
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY
from jobs.payload.store.manifest import blob_key
from jobs.problem import Refusal
from jobs.spec import JobSpec
from platforms.artifacts.base import Grant
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, SessionState
from platforms.registry import PlatformContext, load
from platforms.relay import checkpoint_keys
from scheduler.cli.commands.queue_changes import restart
from scheduler.core.job import Queued, finish
from scheduler.core.retention import Retention
from scheduler.core.run import Lane, Reserved, Run
from scheduler.service.facts.overheads import Overhead
from scheduler.service.facts.snapshot import gather
from scheduler.service.launch.launch_document import launch_document
from scheduler.service.outside.ports import Policy, Ports
from scheduler.service.upkeep.housekeeping import judge
from scheduler.store import checkpoints, events, generations, jobs
from scheduler.views.weekly_report import facts_within
from tests.lab.clocks import starting_now
from tests.lab.lineage import NOW, World, make_family


@pytest.fixture
def world(make_ports: Callable[..., Ports]) -> World:
    """The family, at NOW."""
    return make_family(make_ports)


def test_what_a_job_starts_from_is_chosen_at_its_first_launch_and_stays(world: World) -> None:
    first = world.save("uff-main", 200)
    assert world.launch()["parent"] == first.key
    world.save("uff-main", 300)
    world.end()
    assert world.launch()["parent"] == first.key, "a second first session is given the same"
    assert world.lineage() == [(1, 200)]
    world.save("ufm", 40)
    world.end()
    lane = world.launch()
    assert (lane["parent"], lane["restore"]) == ("", ["jobs/ufm/manifests/000000000040-000001.json"])
    with world.database.read() as tx:
        (told,) = [event for event in events.tail(tx, subject="ufm") if event.kind == "job.start_from"]
    assert (told.data["step"], told.data["checkpoint"]) == (200, first.key)


def test_a_session_may_read_what_it_starts_from_and_nothing_else_of_that_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[Grant]()
    address = world.ports.artifacts.payload_address

    def watched_address(grant: Grant) -> Any:
        given.append(grant)
        return address(grant)

    monkeypatch.setattr(world.ports.artifacts, "payload_address", watched_address)
    first = world.save("uff-main", 200)
    world.launch()
    (grant,) = given
    assert {key for key in grant.reads if "uff-main" in key} == {
        first.key,
        blob_key("uff-main", first.components[0].sha256),
    }
    assert grant.jobs == ("ufm",), "and write nothing of it"


def test_one_that_its_own_job_found_damaged_is_exchanged_too(world: World) -> None:
    older, newer = world.save("uff-main", 150), world.save("uff-main", 200)
    assert world.launch()["parent"] == newer.key
    world.end()
    with world.database.write() as tx:
        checkpoints.quarantine(tx, newer.key, "torn", NOW)
    assert world.launch()["parent"] == older.key


def test_without_any_checkpoint_past_the_gate_nothing_is_launched(world: World) -> None:
    world.save("uff-main", 50)
    assert world.reserves("ufm") == 0
    assert world.lineage() == []
    assert isinstance(world.record().state, Queued)


def test_what_a_job_started_from_is_kept_until_it_is_done(world: World) -> None:
    first = world.save("uff-main", 200)
    world.launch()
    world.end()
    for step in range(300, 900, 50):
        world.save("uff-main", step)

    def stays() -> tuple[bool, str]:
        with world.database.read() as tx:
            judged = judge(tx, Retention(newest=2, milestones=1), NOW + 9 * DAY, "uff-main")
        return next((one.verdict.stays, one.verdict.why) for one in judged if one.record.manifest.key == first.key)

    assert stays() == (True, "ufm starts from it")
    world.save("ufm", 500)
    assert stays() == (True, "ufm starts from it"), "its own may turn out to be damaged"
    with world.database.write() as tx:
        record = jobs.get(tx, "ufm")
        jobs.change_state(tx, "ufm", record.state, finish(record.state, NOW), "finish", NOW)
    assert not stays()[0]


def test_a_restart_begins_anew_and_keeps_the_last_of_what_was(world: World) -> None:
    world.save("uff-main", 200)
    world.launch()
    world.save("ufm", 40)
    world.save("ufm", 80)
    with pytest.raises(Refusal, match="Hold it first"):
        restart(world.database, "ufm", None, NOW, "ann")
    world.end()
    newer = world.save("uff-main", 600)
    record, generation, _ = restart(world.database, "ufm", None, world.clock.present, "ann")
    assert (record.done_step, record.checkpoint, generation.number) == (0, None, 2)
    lane = world.launch()
    assert (lane["parent"], lane["restore"], lane["attempt"]) == (newer.key, [], 2)
    assert world.lineage() == [(1, 200), (2, 600)]
    with world.database.read() as tx:
        judged = {one.record.manifest.step: one.verdict for one in judge(tx, Retention(), NOW + 99 * DAY, "ufm")}
        assert generations.of_attempt(tx, "ufm", 1) == generations.of_job(tx, "ufm")[0]
        told = facts_within(tx, {}, NOW, NOW + DAY, 1.0, [], [], jobs.everything(tx))
    assert told.firsts == {"uff-main": [1], "ufm": [2]}  # its report calls no rule broken
    assert judged[80].stays
    assert judged[80].why == "the last of generation 1"
    assert not judged[40].stays


def test_a_restart_from_a_step(world: World) -> None:
    for step in (150, 200, 300):
        world.save("uff-main", step)
    with pytest.raises(Refusal, match="has not begun yet"):
        restart(world.database, "ufm", 200, NOW, "ann")
    world.launch()
    world.end()
    with pytest.raises(Refusal, match=r"no checkpoint at step 201. It has: 300, 200, 150"):
        restart(world.database, "ufm", 201, NOW, "ann")
    restart(world.database, "ufm", 200, NOW, "ann")
    assert world.lineage() == [(1, 300), (2, 200)]
    with world.database.write() as tx:
        jobs.note_launch(tx, "uff-main", "pool")
    with pytest.raises(Refusal, match="starts from no other job"):
        restart(world.database, "uff-main", 5, NOW, "ann")
    _, _, waiting = restart(world.database, "uff-main", None, NOW, "ann")
    assert waiting == ["ufm"], "its gate is shut again"


def test_a_job_that_has_begun_waits_for_its_gate_no_more(world: World) -> None:
    def gates() -> dict[str, bool]:
        with world.database.read() as tx:
            snapshot = gather(tx, world.ports.pools, world.clock.present, DAY, {})
        return {view.name: view.gate is not None for view in snapshot.jobs}

    world.save("uff-main", 200)
    world.launch()
    world.end()
    assert gates() == {"uff-main": False, "ufm": True}
    world.save("ufm", 40)
    with world.database.write() as tx:
        jobs.note_launch(tx, "uff-main", "pool")
    restart(world.database, "uff-main", None, NOW, "ann")
    assert world.record("uff-main").done_step == 0
    assert gates() == {"uff-main": False, "ufm": False}


def test_a_new_job_of_a_removed_ones_name_inherits_nothing(world: World) -> None:
    world.save("uff-main", 200)
    world.launch()
    world.end()
    with world.database.write() as tx:
        jobs.remove(tx, "ufm", NOW, "ann")
        assert generations.kept(tx, "uff-main") == {}
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), target_step=500, steps_per_hour=100.0), NOW)
        assert generations.of_job(tx, "ufm") == []


def order(store: DirectoryStore, key: str, clock: Any, parent: str) -> LaunchRequest:
    """A session of the shipped trainer, as the daemon orders it."""
    words = ("{python}", "{payload}/trainers/charlm.py", "--width", "8", "--context", "4", "--embedding", "4")
    spec = JobSpec(key, "manager", words, target_step=5, steps_per_hour=10.0)
    deadline = int(clock.now()) + 7_200
    run = Run(key, "pool", (Lane(0, key, 1, (), None),), int(clock.now()), deadline, deadline, Reserved(0))
    document = launch_document(
        run=run,
        pool=Pool("pool", "local", "cpu", ()),
        specs={key: spec},
        overheads={key: Overhead(60, 0.3, 10, 0.3)},
        stalls={key: {}},
        restore={key: ()},
        parents={key: parent},
        data={key: "data"},
        store=store.payload_address(Grant(key, (key,), (), (), 60)),
        clock=clock.payload_clock(),
        policy=Policy(),
    )
    return LaunchRequest(key, "pool", 1, deadline, document, "", {})


@pytest.fixture
def train(tmp_path: Path) -> Callable[[DirectoryStore, str, str], dict[str, Any]]:
    """Runs a session to its end; returns its last word."""
    clock = starting_now(1_000_000, 60.0)
    context = PlatformContext(
        tmp_path / "state", sys.executable, Path(product.__file__).parent, 1, 43_200, clock.payload_clock()
    )
    platform = load("local", {}, context)

    def run(store: DirectoryStore, key: str, parent: str) -> dict[str, Any]:
        platform.launch(order(store, key, clock, parent), clock.now())
        for _ in range(3_000):
            if platform.find([key], clock.now())[key].state == SessionState.ENDED:
                break
            threading.Event().wait(0.01)
        platform.stop(key, clock.now(), force=True)
        found: dict[str, Any] = json.loads(store.read(f"runs/{key}/lane-0/result.json"))
        return found

    return run


def test_a_session_begins_with_its_parents_weights_or_not_at_all(
    tmp_path: Path, train: Callable[[DirectoryStore, str, str], dict[str, Any]]
) -> None:
    store = DirectoryStore(tmp_path / "artifacts")
    for name in ("train-0.jsonl", "heldout.jsonl"):
        lines = [json.dumps({"text": f"{name} {number} " + "abc " * 40}) for number in range(200)]
        store.put(f"data/{name}", "\n".join(lines).encode())
    assert train(store, "uff-main", "")["outcome"] == "finished"
    (key,) = store.keys("jobs/uff-main/manifests/")
    main = json.loads(store.read(key))
    assert train(store, "ufm", key)["outcome"] == "finished"
    (own,) = store.keys("jobs/ufm/manifests/")
    child = json.loads(store.read(own))
    assert child["metrics"]["start_held_out_loss"] == main["metrics"]["held_out_loss"], "main's, not a beginner's"
    assert (child["step"], child["parent"]) == (5, None), "its own steps count from 0"

    wanted = {key, *(blob_key("uff-main", part["sha256"]) for part in main["components"])}
    assert set(checkpoint_keys(store, {"restore": [], "parent": key})) == wanted, "what a relay brings along"
    assert set(checkpoint_keys(store, {"restore": [own], "parent": key})).isdisjoint(wanted)

    weights = next(part for part in main["components"] if part["name"] == "weights.npy")
    store.put(blob_key("uff-main", weights["sha256"]), b"torn")
    said = train(store, "ucm", key)
    assert (said["outcome"], said["error_class"]) == ("failed", "parent")
    assert "weights.npy" in said["message"] or "weights.npy" in said.get("why", "")
    assert list(store.keys("jobs/ucm/manifests/")) == []
