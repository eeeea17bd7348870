"""A token that Kaggle refuses: the pool waits for a person, and trains again without a restart once that is mended."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs.spec import JobSpec
from scheduler.app import App
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import Snapshot
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.requests import queue
from scheduler.store import lease, limits, runs

Account = Any


@dataclass
class World:
    """A daemon's cycle with one job, on an emulated account."""

    app: App
    account: Account
    cycle: Cycle
    key: Path

    def write(self, secret: str) -> None:
        """Exchange the credential file, as people do."""
        fresh = self.key.with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps({"username": "alice", "key": secret}))
        fresh.replace(self.key)

    def closed(self) -> str:
        """Return why the pool is closed, empty when it is open."""
        with self.app.database.read() as tx:
            return limits.closures(tx).get("kaggle", (None, ""))[1]

    def live(self) -> int:
        """Return how many sessions run."""
        with self.app.database.read() as tx:
            return len(runs.live(tx))


def planned(snapshot: Snapshot, _: Plan | None) -> Plan:
    """Plan one session for the job as soon as its pool is open."""
    (view,) = snapshot.pools
    waiting = [job for job in snapshot.jobs if job.running is None]
    if view.closed_until is not None or not waiting:
        return Plan(snapshot.now, (), ())
    return Plan(
        snapshot.now, (Placement("kaggle", snapshot.now, snapshot.now + 20_000, (PlannedLane("ufm", 1, 1),)),), ()
    )


@pytest.fixture
def world(account: Account, tmp_path: Path) -> Iterator[World]:
    key = account.folder / "kaggle.json"
    app = account.app(tmp_path)
    spec = JobSpec("ufm", "manager", ("{python}", "-c", "import signal; signal.pause()"), 100, 1_000.0)
    queue.add(app.database, [spec], account.now(), "test")
    taken = lease.acquire(app.database, "test", 600)
    assert taken is not None
    ports = replace(app.ports(structlog.get_logger(), taken.epoch), plan=planned, data_prefix=lambda _: "")
    yield World(app, account, Cycle(ports), key)
    app.database.close()


def mend_by_file(world: World, secret: str) -> None:
    world.write(secret)


def mend_at_kaggle(world: World, secret: str) -> None:
    """The account takes the key that we have, and a person says so."""
    del secret
    world.account.place.key = "wrong-secret-of-ours"
    with world.app.database.write() as tx:
        limits.open_pool(tx, "kaggle", world.account.now(), "anna")


@pytest.mark.parametrize("mend", [mend_by_file, mend_at_kaggle])
def test_a_refused_token_waits_for_a_person_and_works_when_it_is_mended(
    world: World, mend: Callable[[World, str], None]
) -> None:
    right = json.loads(world.key.read_text())["key"]
    world.write("wrong-secret-of-ours")
    for _ in range(3):
        world.cycle.run()
    assert "waits for a person" in world.closed()
    assert "are refused" in world.closed()
    assert "wrong-secret" not in world.closed()
    assert world.live() == 0
    mend(world, right)
    for _ in range(3):
        world.cycle.run()
    assert world.closed() == ""
    assert world.live() == 1


def test_a_token_that_goes_bad_under_a_session_is_told_and_its_session_goes_on(world: World) -> None:
    world.cycle.run()
    assert world.live() == 1
    right = json.loads(world.key.read_text())["key"]
    world.write("wrong-secret-of-ours")
    world.cycle.run()
    assert world.closed().startswith("waits for a person: ")
    world.key.unlink()
    world.cycle.run()
    assert str(world.key) in world.closed()
    assert world.live() == 1, "silence is unknown, not dead"
    world.write(right)
    world.cycle.run()
    world.cycle.run()
    assert world.closed() == ""
    assert world.live() == 1
