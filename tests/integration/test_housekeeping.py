"""Recurring duties: late after down time, never lost, never doubled, and not put off by a clock that was wrong."""

from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jobs.nouns.window import DAY
from jobs.spec import JobSpec
from platforms.base import LaunchRequest, SessionState
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import Ports
from scheduler.service.upkeep import housekeeping
from scheduler.store import jobs, runs, watched
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """When the only duty, a daily one, was done."""
    instants: list[int] = []
    monkeypatch.setattr(housekeeping, "_TASKS", {"duty": (lambda _, now: instants.append(now), DAY)})
    return instants


def keep_house(database: Database, *instants: int) -> None:
    ports = cast("Any", SimpleNamespace(database=database, write=database.write, calls=Calls(60.0)))
    for now in instants:
        housekeeping.run_due(ports, now)


def test_a_duty_is_done_when_due_and_once_after_down_time(database: Database, done: list[int]) -> None:
    keep_house(database, NOW, NOW + 60, NOW + DAY - 1, NOW + DAY, NOW + 10 * DAY, NOW + 10 * DAY + 60)
    assert done == [NOW, NOW + DAY, NOW + 10 * DAY]


def test_a_duty_set_while_the_clock_was_ahead_is_not_put_off_for_years(database: Database, done: list[int]) -> None:
    keep_house(database, NOW, NOW + 3_000 * DAY, NOW + 60, NOW + DAY, NOW + DAY + 60)
    assert done == [NOW, NOW + 3_000 * DAY, NOW + 60, NOW + DAY + 60]


def launch(cloud: FakeCloud, key: str, at: int) -> None:
    FakePlatform(cloud).launch(LaunchRequest(key, "place", 1, at + 3_600, {}, "", {}), at)


def test_what_was_launched_after_the_list_was_made_is_not_forgotten(make_ports: Callable[..., Ports]) -> None:
    """Whoever stood still meanwhile does not know what another daemon launched and has not settled (seed 2004828)."""
    cloud = FakeCloud(usual=Script(runs_seconds=50))

    class Slow(FakePlatform):
        def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
            launch(cloud, "uff-ufm-0002", now - 100)
            return super().sweep(over, now)

    ports = make_ports(platforms={"first": Slow(FakeCloud()), "second": FakePlatform(cloud)})
    begun = NOW - 9 * DAY
    launch(cloud, "uff-ufm-0001", begun)
    ended = Ended(Outcome.YIELDED, begun + 50, begun)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), begun)
        lanes = (Lane(0, "ufm", 1, (0,), None),)
        runs.insert(tx, Run("uff-ufm-0001", "second", lanes, begun, begun + 60, begun + 60, ended), begun)
        watched.add(tx, "uff-ufm-0001", NOW + DAY, None)
    housekeeping.sweep_sessions(ports, NOW)
    assert "uff-ufm-0001" in FakePlatform(cloud).find(["uff-ufm-0001"], NOW), "what is watched is not home yet"
    with ports.write() as tx:
        watched.remove(tx, "uff-ufm-0001")
    housekeeping.sweep_sessions(ports, NOW)
    found = FakePlatform(cloud).find(["uff-ufm-0001", "uff-ufm-0002"], NOW)
    assert {key: seen.state for key, seen in found.items()} == {"uff-ufm-0002": SessionState.ENDED}
