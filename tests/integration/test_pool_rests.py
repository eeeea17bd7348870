"""Pools that did wrong rest for a while: no job pays for a wrong accelerator, one refusal closes no pool for days."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar
from jobs.spec import JobSpec
from platforms.base import LaunchRequest, Observed, QuotaReading, Refused
from scheduler.core.blame import rest_seconds
from scheduler.core.job import Active, Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.notify.rules import alert_message, alerts_in
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.faults.places import WRONG_DEVICE, rest
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, ledger, limits, runs
from scheduler.store.engine import Database
from scheduler.views.needs import needs
from tests.lab.fake import FakeCloud, FakePlatform, Script

NOW = 1_795_000_000
WEEKLY = CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", 5))


@pytest.fixture
def world(make_ports: Callable[..., Ports], database: Database) -> SimpleNamespace:
    """Two pools, the better of which promises an accelerator; one job that may run on either."""
    clouds = {"kaggle": FakeCloud(usual=Script(runs_seconds=60)), "desk": FakeCloud()}
    ports = make_ports(
        platforms={name: FakePlatform(cloud) for name, cloud in clouds.items()},
        pools={
            "kaggle": Pool("kaggle", "fake", "T4", (WEEKLY,), speed=4.0, options={"expected_device": "NvidiaTeslaT4"}),
            "desk": Pool("desk", "fake", "CPU"),
        },
        plan=lambda snapshot, _: dispatch(snapshot),
    )
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), target_step=500, steps_per_hour=100.0), NOW)
    return SimpleNamespace(ports=ports, clouds=clouds, clock=ports.clock, database=database, cycle=Cycle(ports))


def live(world: SimpleNamespace) -> list[Any]:
    with world.database.read() as tx:
        return runs.live(tx)


def ends_wrong(world: SimpleNamespace, error_class: str = "wrong_device") -> str:
    """Let the session that runs leave with a last word about its accelerator."""
    (run,) = live(world)
    word = {"outcome": "failed", "error_class": error_class, "why": "expected 1 x NvidiaTeslaT4, got Tesla P100"}
    world.ports.artifacts.put(f"runs/{run.key}/lane-0/result.json", json.dumps(word).encode())
    world.clock.present += 120
    world.cycle.run()
    return str(run.key)


def test_a_wrong_accelerator_closes_its_pool_and_the_job_goes_on_elsewhere_at_once(world: SimpleNamespace) -> None:
    world.cycle.run()
    assert [run.pool for run in live(world)] == ["kaggle"]
    key = ends_wrong(world)
    with world.database.read() as tx:
        record = jobs.get(tx, "ufm")
        until, why = limits.closures(tx)["kaggle"]
        (told,) = needs(tx, world.ports.pools, 0, world.clock.present)
        news = alerts_in(events.tail(tx, kinds=("pool.wrong_device",)), 0)
    assert (record.failures, type(record.state)) == (0, Active)
    assert [run.pool for run in live(world)] == ["desk"], "in the very cycle that heard of it"
    assert until == world.clock.present + 6 * HOUR
    assert why.startswith("wrong accelerator")
    assert key in why
    assert (told.what, told.subject, told.remedy) == ("wrong accelerator", "kaggle", "schedctl pools open kaggle")
    assert "P100" in alert_message(news)["text"]


def test_ten_wrong_accelerators_in_a_row_are_one_a_day_and_no_failure(world: SimpleNamespace) -> None:
    with world.database.write() as tx:
        limits.close_pool(tx, "desk", None, "by hand", NOW, "mia")
    began = world.clock.present
    for _ in range(10):
        for _ in range(50):
            world.cycle.run()
            if live(world):
                break
            world.clock.present += HOUR
        ends_wrong(world)
    with world.database.read() as tx:
        record = jobs.get(tx, "ufm")
    assert (record.failures, type(record.state)) == (0, Queued)
    assert world.clock.present - began > 7 * DAY


def test_a_wrong_accelerator_near_the_end_of_a_rest_gives_the_pool_another_hour(world: SimpleNamespace) -> None:
    with world.database.write() as tx:
        until = rest(tx, "kaggle", WRONG_DEVICE, "the first", NOW)
        early = rest(tx, "kaggle", WRONG_DEVICE, "a launch that was under way", NOW + 60)
        late = rest(tx, "kaggle", WRONG_DEVICE, "a session that waited for hours", until - 60)
    assert early == until == NOW + 6 * HOUR
    assert late == until - 60 + HOUR


def test_what_a_pool_never_promised_is_not_its_fault(world: SimpleNamespace) -> None:
    world.cycle.run()
    ends_wrong(world, "device")
    with world.database.read() as tx:
        assert jobs.get(tx, "ufm").failures == 1
        assert "kaggle" not in limits.closures(tx)


def test_a_pool_that_a_person_closed_stays_closed(world: SimpleNamespace) -> None:
    world.cycle.run()
    with world.database.write() as tx:
        limits.close_pool(tx, "kaggle", None, "by hand", NOW, "mia")
    ends_wrong(world)
    with world.database.read() as tx:
        assert limits.closures(tx)["kaggle"] == (None, "by hand")


class UsedUp(FakePlatform):
    """Calls the week's quota used up, whatever its books say."""

    asked = 0

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Refuse."""
        del request
        self.asked += 1
        raise Refused("fake", "launch", "Maximum weekly GPU quota reached", wait_until=NOW + WEEK, used_up=True)


def refused(world: SimpleNamespace, platform: UsedUp, hours: int) -> int:
    """Let cycles run each five minutes; return how often the platform was asked for a session."""
    world.ports.platforms["kaggle"] = platform
    with world.database.write() as tx:
        limits.close_pool(tx, "desk", None, "by hand", NOW, "mia")
    for _ in range(hours * 12):
        world.cycle.run()
        world.clock.present += 300
    return platform.asked


@pytest.mark.parametrize("told", [True, False])
def test_a_quota_that_is_not_used_up_by_the_books_is_asked_for_again(world: SimpleNamespace, told: bool) -> None:
    reading = QuotaReading("week", NOW - DAY, NOW + 6 * DAY, 30 * HOUR, 20 * HOUR)
    platform = UsedUp(FakeCloud(quota=[reading] if told else []))
    assert 5 <= refused(world, platform, 24) <= 10, "after 10, 20, 40 ... minutes, at most 6 hours"


@pytest.mark.parametrize("told", [True, False])
def test_a_quota_that_the_books_call_used_up_as_well_is_left_alone_until_its_end(
    world: SimpleNamespace, told: bool
) -> None:
    """Somebody used it between the look at the books and the launch."""
    before = QuotaReading("another", NOW - DAY, NOW + 2 * DAY, 30 * HOUR, HOUR)
    cloud = FakeCloud(quota=[before] if told else [])
    week = WEEKLY.calendar.window_at(NOW)

    class Overtaken(UsedUp):
        def launch(self, request: LaunchRequest, now: int) -> Observed:
            cloud.quota = [replace(before, used_seconds=29 * HOUR + 3_000)] if told else []
            theirs = LedgerEntry(EntryKind.ADJUST, "kaggle", None, week.start, week.start + 30 * HOUR - 600, now)
            with world.database.write() as tx:
                ledger.append(tx, [] if told else [theirs])
            return super().launch(request, now)

    assert refused(world, Overtaken(cloud), 24) == 1
    with world.database.read() as tx:
        assert limits.closures(tx)["kaggle"][0] == (NOW + 2 * DAY if told else NOW + WEEK)


@pytest.mark.parametrize(
    ("before", "now", "wait"),
    [
        (None, 100, 600),
        ((0, 600), 599, 600),  # one that was on its way when the rest began
        ((0, 600), 600, 1_200),
        ((0, 600), 1_800, 1_200),
        ((0, 600), 1_801, 600),  # it went well for a while
        ((0, 4_000), 5_000, 6_000),
    ],
)
def test_rests_double_while_trouble_comes_back(before: tuple[int, int] | None, now: int, wait: int) -> None:
    assert rest_seconds(before, now, 600, 6_000) == wait
