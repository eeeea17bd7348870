"""Billed waits: what a platform bills of a session's time in its queue is booked to that session, once and in full."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, WEEK, Calendar, Window
from jobs.spec import JobSpec
from platforms.base import QuotaReading
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import read_books
from scheduler.service.quota.usage import meters
from scheduler.store import events, jobs, ledger, runs
from tests.lab.clocks import HandClock
from tests.lab.fake import FakeCloud, FakePlatform

QUOTA = CalendarQuota("GPU hours", 30 * HOUR, Calendar("week", "UTC", 5))
RESET = QUOTA.calendar.window_at(1_795_000_000).start
NOON = RESET + 12 * HOUR


@dataclass
class Account:
    """One pool and what its platform's books show. Instants are UTC seconds."""

    ports: Ports
    cloud: FakeCloud
    clock: HandClock

    def session(self, number: int, pushed: int, began: int, ended: int, written: int | None = None) -> str:
        """Charge a session that waited from ``pushed`` to ``began`` and trained until ``ended``."""
        key = f"uff-ufm-{number:04}"
        lanes = (Lane(0, "ufm", number, (0,), None),)
        with self.ports.write() as tx:
            runs.insert(
                tx, Run(key, "kaggle", lanes, pushed, ended, ended, Ended(Outcome.FINISHED, ended, began)), pushed
            )
            held = LedgerEntry(EntryKind.HOLD, "kaggle", key, pushed, ended, pushed)
            spent = replace(held, kind=EntryKind.SPEND, start=began, at=ended if written is None else written)
            ledger.append(tx, [held, spent])
        return key

    def reads(self, used: int, at: int) -> None:
        """Read the books at an instant, when they show ``used`` seconds of that week."""
        self.clock.present = at
        window = QUOTA.calendar.window_at(at)
        self.cloud.quota = [QuotaReading(QUOTA.name, window.start, window.end, 30 * HOUR, used)]
        read_books(self.ports, ["kaggle"])

    def adjusted(self) -> list[tuple[str | None, int, int]]:
        """Return what was booked beyond the sessions: for which run, from when, until when."""
        with self.ports.database.read() as tx:
            found = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.ADJUST]
            assert not events.tail(tx, kinds=["quota.orphan_suspected"])
        return [(entry.run, entry.start, entry.end) for entry in found]

    def waited(self, window: Window) -> int:
        """Return the seconds of a window that the ledger calls billed while waiting."""
        with self.ports.database.read() as tx:
            charges = ledger.charges(tx, 0)["kaggle"]
        return sum(charge.within(window.start, window.end) for charge in charges if charge.waited)


@pytest.fixture
def account(make_ports: Callable[..., Ports], hand_clock: HandClock) -> Account:
    cloud = FakeCloud(quota=[QuotaReading(QUOTA.name, 0, 0, 0, 0)])  # it keeps books
    ports = make_ports(
        platforms={"kaggle": FakePlatform(cloud)}, pools={"kaggle": Pool("kaggle", "kaggle", "T4", (QUOTA,))}
    )
    with ports.write() as tx:
        jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), RESET)
    return Account(ports, cloud, hand_clock)


def test_a_billed_wait_is_booked_to_its_session_once(account: Account) -> None:
    key = account.session(1, NOON, NOON + 5_400, NOON + 9_000)
    for later in range(0, 4_000, 600):
        account.reads(9_000, NOON + 9_000 + later)
    assert account.adjusted() == [(key, NOON, NOON + 5_400)]
    with account.ports.database.read() as tx:
        (meter,) = meters(tx, account.ports.pools, NOON + 9_000)
    assert (meter.used, meter.waited) == (9_000, 5_400)


def test_a_wait_that_is_not_billed_is_booked_to_nobody(account: Account) -> None:
    account.session(1, NOON, NOON + 5_400, NOON + 9_000)
    for later in range(0, 4_000, 600):
        account.reads(3_600, NOON + 9_000 + later)
    assert account.adjusted() == []


def test_what_is_billed_of_several_waits_is_shared_out(account: Account) -> None:
    """And what is more than all of them is nobody's of ours."""
    first = account.session(1, NOON, NOON + 1_200, NOON + 9_000)
    second = account.session(2, NOON, NOON + 600, NOON + 9_000)
    trained = 7_800 + 8_400
    account.reads(trained + 900, NOON + 9_000)
    assert account.adjusted() == [(first, NOON + 600, NOON + 1_200), (second, NOON + 300, NOON + 600)]
    account.reads(trained + 1_800, NOON + 9_600)
    account.reads(trained + 1_800 + 7, NOON + 10_300)
    assert account.adjusted()[2:4] == [(first, NOON, NOON + 600), (second, NOON, NOON + 300)]
    assert [(run, end - start) for run, start, end in account.adjusted()[4:]] == [(None, 7)]


def test_a_wait_over_a_reset_is_booked_in_both_weeks(account: Account) -> None:
    """The books of the new week show its part there; those of the old week cannot be read any more."""
    key = account.session(1, RESET - 561, RESET + 300, RESET + HOUR)
    account.reads(HOUR, RESET + HOUR)
    account.reads(HOUR, RESET + 2 * HOUR)
    assert sorted(account.adjusted()) == [(key, RESET - 561, RESET), (key, RESET, RESET + 300)]
    assert account.waited(Window(RESET - WEEK, RESET)) == 561


@pytest.mark.parametrize("known", [False, True])
def test_a_wait_before_a_reset_is_booked_where_the_pool_is_known_to_bill_waits(account: Account, known: bool) -> None:
    """The last look of the old week took the session that waited for one that runs."""
    if known:
        account.session(1, RESET - 9 * HOUR, RESET - 8 * HOUR, RESET - 7 * HOUR)
        account.reads(2 * HOUR, RESET - 7 * HOUR)
    key = account.session(2, RESET - 2 * HOUR, RESET - HOUR, RESET + HOUR)
    before = account.adjusted()
    for later in (0, 600, 1_200, 1_800):
        account.reads(HOUR, RESET + HOUR + later)
    assert account.adjusted()[len(before) :] == ([(key, RESET - 2 * HOUR, RESET - HOUR)] if known else [])


def test_a_session_that_lives_explains_its_wait_until_it_ends(account: Account) -> None:
    lanes = (Lane(0, "ufm", 1, (0,), None),)
    live = Run("uff-ufm-0001", "kaggle", lanes, NOON, NOON + 9_000, NOON + 9_000, Running("r", NOON + 3_000))
    with account.ports.write() as tx:
        runs.insert(tx, live, NOON)
    account.reads(3_600, NOON + 3_600)
    assert account.adjusted() == []
