"""The scripted place: every trouble it can make, and its bill."""

import dataclasses

import pytest

from platforms.base import LaunchRequest, QuotaReading, Refused, SessionState, Unreachable
from tests.lab.fake import FakeCloud, FakePlatform, Fault, Script

NOW = 1_000_000


def launch(cloud: FakeCloud, script: Script, key: str = "one", seconds: int = 3600) -> None:
    cloud.scripts.append(script)
    FakePlatform(cloud).launch(LaunchRequest(key, "pool", 1, NOW + seconds, {}, "", {}), NOW)


def state(cloud: FakeCloud, after: int, key: str = "one") -> str | None:
    observed = FakePlatform(cloud).find([key], NOW + after).get(key)
    return None if observed is None else observed.state.value


def test_a_lost_answer_hides_a_session_that_started() -> None:
    cloud = FakeCloud()
    with pytest.raises(Unreachable):
        launch(cloud, Script(fault=Fault.LOST_ANSWER))
    assert state(cloud, 0) == "running"
    assert cloud.billed_seconds(NOW + 50) == 50


def test_a_lost_request_starts_nothing() -> None:
    cloud = FakeCloud()
    with pytest.raises(Unreachable):
        launch(cloud, Script(fault=Fault.LOST_REQUEST))
    assert state(cloud, 0) is None
    assert cloud.billed_seconds(NOW + 50) == 0


def test_a_refusal_says_until_when_and_is_used_up() -> None:
    cloud = FakeCloud()
    with pytest.raises(Refused) as refused:
        launch(cloud, Script(fault=Fault.REFUSED, refused_until=NOW + 60))
    assert refused.value.wait_until == NOW + 60
    launch(cloud, Script())
    assert state(cloud, 0) == "running"


def test_a_hidden_session_shows_up_late_but_counts_at_once() -> None:
    cloud = FakeCloud(sessions_max=1)
    launch(cloud, Script(hidden_seconds=120))
    assert state(cloud, 119) is None
    assert state(cloud, 120) == "running"
    with pytest.raises(Refused):
        launch(cloud, Script(), key="two")


@pytest.mark.parametrize(
    ("script", "ended_at", "why"),
    [
        (Script(), NOW + 3600, "deadline"),
        (Script(runs_seconds=100), NOW + 100, "exit code 0"),
        (Script(preempted_after_seconds=50, runs_seconds=100), NOW + 50, "preempted"),
        (Script(queued_seconds=30, runs_seconds=100), NOW + 130, "exit code 0"),
    ],
)
def test_a_session_ends_by_whatever_comes_first(script: Script, ended_at: int, why: str) -> None:
    cloud = FakeCloud()
    launch(cloud, script)
    platform = FakePlatform(cloud)
    assert platform.find(["one"], ended_at - 1)["one"].state == SessionState.RUNNING
    ended = platform.find(["one"], ended_at)["one"]
    assert (ended.state, ended.started, ended.ended, ended.detail) == (
        SessionState.ENDED,
        NOW + script.queued_seconds,
        ended_at,
        why,
    )
    assert cloud.billed_seconds(NOW + 100_000) == ended_at - NOW - script.queued_seconds


def test_the_session_cap_holds_whatever_the_deadline_says() -> None:
    cloud = FakeCloud(session_cap_seconds=600)
    launch(cloud, Script(queued_seconds=100))
    assert FakePlatform(cloud).find(["one"], NOW + 10_000)["one"].ended == NOW + 700


def test_a_session_stopped_in_the_queue_never_starts_and_costs_nothing() -> None:
    cloud = FakeCloud()
    launch(cloud, Script(queued_seconds=600))
    assert state(cloud, 599) == "queued"
    FakePlatform(cloud).stop("one", NOW + 100, force=False)
    assert state(cloud, 100) == "absent"
    assert cloud.billed_seconds(NOW + 10_000) == 0


def test_a_deaf_session_ends_only_by_force() -> None:
    cloud = FakeCloud()
    launch(cloud, Script(stop_seconds=None))
    platform = FakePlatform(cloud)
    platform.stop("one", NOW + 10, force=False)
    assert state(cloud, 1000) == "running"
    platform.stop("one", NOW + 1000, force=True)
    assert platform.find(["one"], NOW + 1000)["one"].ended == NOW + 1000


def test_a_second_stop_does_not_prolong_the_first() -> None:
    cloud = FakeCloud()
    launch(cloud, Script(stop_seconds=60))
    platform = FakePlatform(cloud)
    platform.stop("one", NOW + 10, force=False)
    platform.stop("one", NOW + 50, force=False)
    assert platform.find(["one"], NOW + 1000)["one"].ended == NOW + 70


def test_what_is_swept_is_forgotten_but_stays_on_the_bill() -> None:
    cloud = FakeCloud()
    launch(cloud, Script(runs_seconds=100))
    assert FakePlatform(cloud).sweep(["one"], NOW + 100) == ["one"]
    assert state(cloud, 100) is None
    assert cloud.billed_seconds(NOW + 1000) == 100


def test_the_books_show_the_window_that_is_open() -> None:
    reading = QuotaReading("week", NOW, NOW + 100, 30, 10)
    later = dataclasses.replace(reading, start=NOW + 100, end=NOW + 200)
    platform = FakePlatform(FakeCloud(quota=[reading, later]))
    assert platform.capabilities.reports_quota
    assert platform.read_quota(NOW + 99) == [reading]
    assert platform.read_quota(NOW + 100) == [later]
    assert platform.read_quota(NOW + 200) == []
