"""The books of a platform against our ledger, on the scripted platform and each kind of database."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import WEEK, Calendar, Window
from jobs.spec import JobSpec
from platforms.base import LaunchRequest, Observed, QuotaReading, SessionState, StopChannel
from scheduler.core.ledger import EntryKind, LedgerEntry, seconds_within
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.run import Ended, Lane, Outcome, Run, Running, Stopping
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import SETTLED_SECONDS, audit, close_books, launchable, read_books
from scheduler.service.upkeep.housekeeping import find_orphans
from scheduler.store import events, jobs, ledger, limits, runs
from scheduler.store.engine import Database
from tests.lab.fake import FakeCloud, FakePlatform

START = 1_763_769_600 - 86_400 * 7  # a Saturday 00:00 UTC
NOW = START + 100_000
QUOTA = CalendarQuota("GPU hours of the week", 108_000, Calendar("week", "UTC", 5))


def reading(used: int, reserved: int = 0, limit: int = 100_000) -> QuotaReading:
    return QuotaReading("week", START, START + WEEK, limit, used, reserved)


@pytest.fixture
def cloud() -> FakeCloud:
    """A place that keeps books."""
    return FakeCloud(quota=[reading(0)])


@pytest.fixture
def ports(make_ports: Callable[..., Ports], cloud: FakeCloud, hand_clock: Any) -> Ports:
    """One pool on that place, at NOW."""
    hand_clock.present = NOW
    return make_ports(
        platforms={"kaggle": FakePlatform(cloud)},
        pools={"kaggle": Pool("kaggle", "fake", "T4 x2", quotas=(QUOTA,))},
    )


def used(ports: Ports) -> int:
    with ports.database.read() as tx:
        return seconds_within(ledger.charges(tx, 0).get("kaggle", ()), Window(START, START + WEEK))


def charge(ports: Ports, start: int, end: int) -> None:
    with ports.write() as tx:
        ledger.append(tx, [LedgerEntry(EntryKind.ADJUST, "kaggle", None, start, end, end)])


@pytest.mark.parametrize("reported", [0, 1, 3_599, 3_600, 3_601, 90_000])
def test_settled_books_agree_to_the_second(ports: Ports, cloud: FakeCloud, reported: int) -> None:
    """Whatever we charged, the ledger ends at what the platform billed, and reading again changes nothing."""
    charge(ports, NOW - SETTLED_SECONDS - 5_000, NOW - SETTLED_SECONDS - 1_400)
    cloud.quota = [reading(reported)]
    for _ in range(2):
        assert read_books(ports, ["kaggle"]) == {"kaggle"}
        assert used(ports) == reported


def test_the_limit_is_what_the_platform_says_less_what_others_have_reserved(ports: Ports, cloud: FakeCloud) -> None:
    cloud.quota = [reading(0, reserved=7_000, limit=120_000)]
    read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        (seen,) = limits.observed(tx)["kaggle"]
    assert (seen.quota, seen.start, seen.end, seen.limit) == (QUOTA.name, START, START + WEEK, 113_000)


@pytest.mark.parametrize(("reported", "ends"), [(3_000, NOW - 1_400), (3_700, NOW - 1_400), (9_000, NOW)])
def test_a_correction_lies_where_our_sessions_ended_and_foreign_use_until_now(
    ports: Ports, cloud: FakeCloud, reported: int, ends: int
) -> None:
    """A report over the time of our sessions shows what they were billed, also when the bill came after its end."""
    charge(ports, NOW - 5_000, NOW - 1_400)
    cloud.quota = [reading(reported)]
    read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        entry = ledger.entries(tx)[-1]
    assert (entry.end, entry.end - entry.start) == (ends, abs(reported - 3_600))


def test_a_week_that_is_not_the_declared_one_still_leaves_what_it_leaves(ports: Ports, cloud: FakeCloud) -> None:
    """Declared from Saturday to Saturday, told from Monday to Monday: what is left now is what may be used now."""
    charge(ports, NOW - SETTLED_SECONDS - 5_000, NOW - SETTLED_SECONDS - 1_400)
    monday = START + 2 * 86_400 - WEEK
    cloud.quota = [QuotaReading("week", monday, monday + WEEK, 40_000, 30_000, 2_000)]
    for _ in range(2):
        read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        seen = limits.observed(tx)["kaggle"][-1]
        booked = seconds_within(ledger.charges(tx, 0)["kaggle"], Window(START, START + WEEK))
    assert (seen.quota, seen.start, seen.end) == (QUOTA.name, START, START + WEEK)
    assert seen.limit - booked == 40_000 - 30_000 - 2_000


@pytest.mark.parametrize(
    ("reported", "deadline", "stop_channel", "stops"),
    [
        (99_400, NOW + 20_000, StopChannel.STORE, True),
        (99_000, NOW + 20_000, StopChannel.STORE, False),  # there is time until the next look
        (99_400, NOW + 500, StopChannel.STORE, False),  # it ends before the quota does
        (99_400, NOW + 20_000, StopChannel.NONE, False),  # asking is no use, and the place may be lenient
    ],
)
def test_sessions_are_asked_to_save_before_others_have_used_the_quota_up(
    ports: Ports,
    cloud: FakeCloud,
    monkeypatch: pytest.MonkeyPatch,
    reported: int,
    deadline: int,
    stop_channel: StopChannel,
    stops: bool,
) -> None:
    """Kaggle may cut off what runs when the week is used up, and throws away what such a session would have left."""
    running = Running("ufm/v1", NOW - 4_000)
    run = Run("uff-ufm-0001", "kaggle", (Lane(0, "ufm", 1, (0,), None),), NOW - 5_000, deadline, deadline, running)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), NOW)
        runs.insert(tx, run, NOW)
    seen = Observed(run.key, SessionState.RUNNING, "ufm/v1", NOW - 4_000, stop_channel=stop_channel)
    monkeypatch.setattr(ports.platforms["kaggle"], "find", lambda _keys, _now: {run.key: seen})
    cloud.quota = [reading(reported)]
    read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        (found,) = runs.live(tx)
    assert isinstance(found.state, Stopping) == stops
    assert not isinstance(found.state, Stopping) or "600 s are left" in found.state.why


def test_time_that_sessions_run_while_the_books_are_read_is_explained(
    ports: Ports, cloud: FakeCloud, hand_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Duties before it, planning and the answer may take minutes, in which what is billed grows (seed 2002904)."""
    running = Running("ufm/v1", NOW - 4_000)
    lanes = (Lane(0, "ufm", 1, (0,), None),)
    run = Run("uff-ufm-0001", "kaggle", lanes, NOW - 4_000, NOW + 9_000, NOW + 9_060, running)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), NOW)
        runs.insert(tx, run, NOW)

    def slow(now: int) -> list[QuotaReading]:
        hand_clock.present = now + 200
        return [reading(hand_clock.present - running.started)]

    monkeypatch.setattr(ports.platforms["kaggle"], "read_quota", slow)
    hand_clock.present = NOW + 200
    audit(ports, NOW)
    assert hand_clock.present == NOW + 400
    with ports.database.read() as tx:
        assert ledger.entries(tx) == []


def test_the_books_are_closed_only_when_no_bill_can_grow_any_more(
    ports: Ports, cloud: FakeCloud, hand_clock: Any
) -> None:
    """Whoever stops for good reads them once more, so that the ledger ends at the bill of the last session, too."""
    ended = Ended(Outcome.YIELDED, NOW, NOW - 4_000)
    run = Run("uff-ufm-0001", "kaggle", (Lane(0, "ufm", 1, (0,), None),), NOW - 5_000, NOW, NOW, ended)
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), NOW)
        runs.insert(tx, run, NOW)
        ledger.append(tx, [LedgerEntry(EntryKind.SPEND, "kaggle", run.key, NOW - 4_000, NOW, NOW)])
    cloud.quota = [reading(4_077)]
    assert not close_books(ports, NOW + SETTLED_SECONDS)
    assert used(ports) == 4_000
    hand_clock.present = NOW + SETTLED_SECONDS + 1
    assert close_books(ports, NOW + SETTLED_SECONDS + 1)
    assert used(ports) == 4_077


def test_use_that_no_run_explains_raises_the_alarm(ports: Ports, cloud: FakeCloud) -> None:
    cloud.quota = [reading(7_200)]
    read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        (alarm,) = events.tail(tx, kinds=["quota.orphan_suspected"])
        (entry,) = ledger.entries(tx)
    assert (alarm.subject, alarm.data["seconds"]) == ("kaggle", 7_200)
    assert (entry.kind, entry.run, entry.credit) == (EntryKind.ADJUST, None, False)
    assert "unattributed" in entry.evidence


def test_without_an_answer_nothing_is_launched_and_the_pool_is_closed_until_there_is_one(
    ports: Ports, cloud: FakeCloud
) -> None:
    due = [Placement("kaggle", NOW, NOW + 3_600, (PlannedLane("ufm", 1, 100),))]
    cloud.outage = {"read_quota"}
    assert launchable(ports, due) == []
    with ports.database.read() as tx:
        until, why = limits.closures(tx)["kaggle"]
    assert until is not None
    assert until > NOW
    assert "quota unreadable" in why
    cloud.outage = set()
    assert launchable(ports, due) == due
    with ports.database.read() as tx:
        assert limits.closures(tx) == {}


def test_the_ledger_ends_at_the_emulators_bill(ports: Ports, account: Any, hand_clock: Any) -> None:
    """A whole session through the adapter: what we charged by its log is corrected to the second."""
    account.adapter().launch(account.request("uff-ufm-0001", "finish"), account.now())
    ended = account.settle("uff-ufm-0001")
    charge(ports, ended.started, ended.ended)
    assert isinstance(ports.platforms, dict)
    ports.platforms["kaggle"] = account.adapter()
    hand_clock.present = account.now() + SETTLED_SECONDS
    read_books(ports, ["kaggle"])
    start, end = account.place.week(account.now())
    with ports.database.read() as tx:
        booked = seconds_within(ledger.charges(tx, 0)["kaggle"], Window(int(start), int(end)))
    assert booked == math.ceil(account.place.seconds_used(start, end))


def test_a_place_without_books_is_never_asked(database: Database, ports: Ports, cloud: FakeCloud) -> None:
    cloud.quota = []
    cloud.outage = {"read_quota"}
    silent = FakePlatform(cloud)
    assert not silent.capabilities.reports_quota
    assert isinstance(ports.platforms, dict)
    ports.platforms["kaggle"] = silent
    assert read_books(ports, ["kaggle", "gone"]) == {"kaggle", "gone"}


def test_a_live_session_that_no_run_names_raises_the_alarm_until_it_has_ended(
    ports: Ports, cloud: FakeCloud, hand_clock: Any
) -> None:
    """As after a restored backup: it is told, and left alone."""
    request = LaunchRequest("uff-ufm-0009", "kaggle", 1, NOW + 3_600, {}, "", {})
    FakePlatform(cloud).launch(request, NOW)
    find_orphans(ports, NOW + 60)
    with ports.database.read() as tx:
        (alarm,) = events.tail(tx, kinds=["session.orphan"])
    assert (alarm.subject, alarm.data["pool"]) == ("uff-ufm-0009", "kaggle")
    cloud.outage = {"orphans"}
    find_orphans(ports, NOW + 120)  # no answer is no alarm, and no crash
    cloud.outage = set()
    hand_clock.present = NOW + 3_600
    find_orphans(ports, NOW + 3_600)
    with ports.database.read() as tx:
        assert len(events.tail(tx, kinds=["session.orphan"])) == 1


@pytest.mark.parametrize(
    ("scale", "extra", "said"),
    [
        (1.0, 900, "quota.adjusted"),
        (1.0, 901, "quota.orphan_suspected"),
        (600.0, 2_400, "quota.adjusted"),  # four real seconds
        (600.0, 2_401, "quota.orphan_suspected"),
    ],
)
def test_an_alarm_waits_for_more_than_answers_take_by_any_clock(
    ports: Ports,
    cloud: FakeCloud,
    hand_clock: Any,
    monkeypatch: pytest.MonkeyPatch,
    scale: float,
    extra: int,
    said: str,
) -> None:
    """A rehearsal's clock may do a week in minutes: what a poll takes is hours by it, and nobody's use."""
    monkeypatch.setattr(type(hand_clock), "wall_seconds", lambda _, scheduled: scheduled / scale)
    charge(ports, NOW - 50_000, NOW - 46_400)
    cloud.quota = [reading(3_600 + extra)]
    read_books(ports, ["kaggle"])
    with ports.database.read() as tx:
        kinds = [each.kind for each in events.tail(tx, subject="kaggle") if each.kind.startswith("quota.")]
    assert kinds == [said]
