"""A platform's books against ours, second by second: what is written down, what is told, and what is left alone."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import DAY, HOUR, WEEK, Calendar
from jobs.spec import JobSpec
from platforms.base import (
    Capabilities,
    Misconfigured,
    Observed,
    QuotaReading,
    SessionState,
    StopChannel,
    Unreachable,
)
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Placement, PlannedLane
from scheduler.core.reasons import Cause
from scheduler.core.run import Ended, Lane, Outcome, Run, Running, Stopping, Submitting
from scheduler.service.quota.audit import audit, close_books, launchable, read_books, recheck, settled_seconds
from scheduler.store import events, jobs, ledger, limits, runs
from tests.lab.clocks import HandClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.core.run import RunState
    from scheduler.service.outside.ports import Ports
    from scheduler.store.engine import Database
    from tests.integration.conftest import Journal

NOW = 1_795_000_000
QUOTA = CalendarQuota("GPU hours", 30 * HOUR, Calendar("week", "UTC", 5))
WINDOW = QUOTA.calendar.window_at(NOW)
POOL = Pool("kaggle", "kaggle", "T4", (QUOTA,), stop_margin_seconds=300)


@dataclass
class Told:
    """A platform that tells what a test says."""

    books: Any = ()
    sessions: dict[str, Observed] = field(default_factory=dict)
    capabilities: Capabilities = field(default_factory=lambda: Capabilities(reports_quota=True, bills_late=True))

    def read_quota(self, now: int) -> Any:
        """Tell the books, or fail."""
        if isinstance(self.books, Exception):
            raise self.books
        return self.books

    def find(self, keys: Any, now: int) -> dict[str, Observed]:
        """Tell of sessions."""
        return {key: found for key, found in self.sessions.items() if key in keys}


class Hurried(HandClock):
    """An hour of it is a second of ours."""

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return the real seconds of scheduled ones."""
        return scheduled_seconds / 3_600


@dataclass
class Books:
    """The books of one pool: what is charged, what the platform tells, and what comes of it."""

    ports: Ports
    told: Told

    def session(
        self,
        key: str,
        state: RunState,
        start: int,
        deadline: int,
        *,
        price: int = 0,
        pool: str = "kaggle",
        job: str = "ufm",
    ) -> None:
        """Let a session have begun at ``start``; of one that ended its time is charged."""
        with self.ports.write() as tx:
            attempt = 1 + len(runs.since(tx, 0))
            runs.insert(
                tx, Run(key, pool, (Lane(0, job, attempt, (0,), None),), start, deadline, deadline, state), start
            )
            held = LedgerEntry(EntryKind.HOLD, pool, key, start, deadline, start, price_microdollars_per_hour=price)
            ledger.append(tx, [held])
            if isinstance(state, Ended):
                ledger.append(tx, [replace(held, kind=EntryKind.SPEND, start=state.started or start, end=state.at)])

    def says(self, used: int, limit: int = 30 * HOUR, reserved: int = 0, **more: Any) -> list[LedgerEntry]:
        """Read the books once, of which the platform says this; return what was written down."""
        usual = QuotaReading(QUOTA.name, WINDOW.start, WINDOW.end, limit, used, reserved)
        self.told.books = [replace(usual, **more)]
        read_books(self.ports, ["kaggle"])
        return self.adjusted()

    def adjusted(self) -> list[LedgerEntry]:
        """Return what was corrected so far."""
        with self.ports.database.read() as tx:
            return [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.ADJUST]

    def happened(self, *kinds: str) -> list[dict[str, Any]]:
        """Return what events of these kinds tell."""
        with self.ports.database.read() as tx:
            return [dict(event.data) for event in events.tail(tx, kinds=list(kinds))]

    def observed(self) -> list[int]:
        """Return the seconds that the pool's observed limits leave us."""
        with self.ports.database.read() as tx:
            return [limit.limit for limit in limits.observed(tx).get("kaggle", ())]


@pytest.fixture
def books(make_ports: Callable[..., Ports], database: Database) -> Books:
    told = Told()
    with database.write() as tx:
        jobs.add(tx, JobSpec("ufm", "manager", ("train",), target_step=500, steps_per_hour=100.0), NOW)
    return Books(make_ports(platforms={"kaggle": told}, pools={"kaggle": POOL}), told)


def length(entry: LedgerEntry) -> int:
    return entry.end - entry.start


def over(at: int, started: int) -> Ended:
    return Ended(Outcome.FINISHED, at, started)


@pytest.mark.parametrize(
    ("ended", "used", "entered"),
    [
        (NOW - 601, 1, 1),
        (NOW - 600, 1, 0),
        (NOW - 600, 120, 0),
        (NOW - 600, 121, 121),
        (NOW - 601, -1, -1),
        (NOW - 600, -500, 0),
    ],
)
def test_a_bill_that_may_still_grow_is_believed_when_it_is_settled_or_far_off(
    books: Books, ended: int, used: int, entered: int
) -> None:
    books.session("uff-ufm-0001", over(ended, ended - HOUR), ended - HOUR, NOW + HOUR)
    found = books.says(HOUR + used)
    assert [(-length(entry) if entry.credit else length(entry)) for entry in found] == ([entered] if entered else [])
    for entry in found:  # where the last session of ours ended, so that a report over its time has it
        assert (entry.end, entry.run, entry.at) == (ended, None, NOW)
        assert f"kaggle reports {HOUR + used} s used, {HOUR} s are explained" in entry.evidence


@pytest.mark.parametrize(("used", "kind"), [(900, "quota.adjusted"), (901, "quota.orphan_suspected")])
def test_more_than_polls_explain_is_somebody_else_until_now(
    books: Books, journal: Journal, used: int, kind: str
) -> None:
    books.session("uff-ufm-0001", over(NOW - 2 * HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW)
    (entry,) = books.says(HOUR + used)
    assert (length(entry), entry.credit) == (used, False)
    assert entry.end == (NOW if "orphan" in kind else NOW - 2 * HOUR)
    assert books.happened("quota.adjusted", "quota.orphan_suspected") == [{"seconds": used, "quota": QUOTA.name}]
    assert [line.split()[:2] for line in journal.lines] == [["error" if "orphan" in kind else "info", kind]]


def test_time_that_is_longer_than_its_window_fills_it(books: Books) -> None:
    (entry,) = books.says(2 * WEEK, limit=3 * WEEK)
    assert (entry.start, length(entry)) == (WINDOW.start, WEEK)


def test_live_sessions_explain_what_they_ran_so_far_and_no_more_than_they_hold(books: Books) -> None:
    books.session("uff-ufm-0001", Running("r", NOW - 1_000), NOW - 1_100, NOW + HOUR)
    assert books.says(1_000) == []
    assert books.says(1_120) == []
    assert books.says(1_220) == []  # its hold counts the 100 s that it waited
    assert [length(entry) for entry in books.says(1_221)] == [121]


def test_a_session_that_waited_for_its_machine_is_nobody_elses_use(books: Books) -> None:
    """Billed from its launch on, an hour before its meter: its hold counts that already, and there is no alarm."""
    books.session("uff-ufm-0001", Running("r", NOW - 60), NOW - HOUR, NOW + HOUR)
    assert books.says(HOUR) == []
    assert books.happened("quota.orphan_suspected", "quota.adjusted") == []


def test_what_an_old_session_waited_for_excuses_nobody_today(books: Books) -> None:
    """Its wait was in the books when they were read since; an hour more is somebody else's."""
    old = NOW - 10 * HOUR
    books.session("uff-ufm-0001", over(old, old - HOUR), old - 2 * HOUR, old)
    books.says(HOUR)
    books.ports.clock.present += 2 * HOUR  # type: ignore[attr-defined]  # a hand's clock
    books.says(2 * HOUR)
    assert len(books.happened("quota.orphan_suspected")) == 1


@pytest.mark.parametrize(("reserved", "limit"), [(0, 108_000), (HOUR, 108_000), (HOUR + 500, 107_500), (40 * HOUR, 0)])
def test_what_others_reserved_is_not_ours_to_plan_with(books: Books, reserved: int, limit: int) -> None:
    """An hour is held by our own session."""
    books.session("uff-ufm-0001", Running("r", NOW), NOW, NOW + HOUR)
    books.says(0, reserved=reserved)
    assert books.observed() == [limit]


def test_a_week_that_begins_elsewhere_rules_by_what_it_leaves_now(books: Books) -> None:
    """Of a window as long as the declared one, and no other, the rest counts from here on."""
    books.session("uff-ufm-0001", over(NOW - HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW)
    shifted: dict[str, Any] = {"quota": "theirs", "start": NOW - DAY, "end": NOW - DAY + WEEK}
    books.says(10 * HOUR, **shifted)
    assert books.observed() == [22 * HOUR]  # 20 are left, and 2 of ours are in the declared week
    books.says(10 * HOUR, **{**shifted, "end": NOW + DAY})
    assert books.observed() == [22 * HOUR]


@pytest.mark.parametrize(
    "error",
    [Unreachable("kaggle", "read_quota", "gone", "wait"), Misconfigured("kaggle", "read_quota", "no key", "give it")],
)
def test_books_that_cannot_be_read_close_the_pool_until_the_next_look(books: Books, error: Exception) -> None:
    books.told.books = error
    due = [Placement(name, NOW, NOW + HOUR, (PlannedLane("ufm", 1, 1),)) for name in ("kaggle", "desk")]
    assert [one.pool for one in launchable(books.ports, due)] == ["desk"]
    with books.ports.database.read() as tx:
        until, why = limits.closures(tx)["kaggle"]
    assert until == NOW + 600
    assert why.startswith("quota unreadable")
    assert ("waits for a person" in why) == isinstance(error, Misconfigured)
    books.says(0)
    with books.ports.database.read() as tx:
        assert limits.closures(tx) == {}
    assert [one.pool for one in launchable(books.ports, due)] == ["kaggle", "desk"]


@pytest.mark.parametrize(
    ("left", "told", "asked"),
    [
        (900, StopChannel.STORE, True),  # one look, and the pool's margin
        (901, StopChannel.STORE, False),
        (900, StopChannel.NONE, False),
        (0, StopChannel.PLATFORM, True),
    ],
)
def test_sessions_are_asked_to_save_before_others_have_used_up_their_quota(
    books: Books, left: int, told: StopChannel, asked: bool
) -> None:
    books.session("uff-ufm-0001", Running("r", NOW - 100), NOW - 100, NOW + HOUR)
    books.told.sessions["uff-ufm-0001"] = Observed(
        "uff-ufm-0001", SessionState.RUNNING, "r", NOW - 100, stop_channel=told
    )
    books.says(10_000, limit=10_000 + left)
    with books.ports.database.read() as tx:
        (run,) = runs.live(tx)
    assert isinstance(run.state, Stopping) == asked
    if isinstance(run.state, Stopping):
        assert f"{left} s are left, and the running sessions have planned {HOUR} s" in run.state.why


def test_sessions_that_fit_into_what_is_left_go_on(books: Books) -> None:
    books.session("uff-ufm-0001", Running("r", NOW - 100), NOW - 100, NOW + 500)
    books.told.sessions["uff-ufm-0001"] = Observed("uff-ufm-0001", SessionState.RUNNING, "r", NOW - 100)
    for left, states in ((500, Running), (499, Stopping)):
        books.says(10_000, limit=10_000 + left)
        with books.ports.database.read() as tx:
            assert [type(run.state) for run in runs.live(tx)] == [states]


def test_what_runs_elsewhere_settles_nothing_and_is_asked_nothing(books: Books) -> None:
    """Nor is a session that does not run yet, though its quota is nearly used up."""
    with books.ports.write() as tx:
        for job in ("ucm", "urm"):
            jobs.add(tx, JobSpec(job, "manager", ("train",), target_step=500, steps_per_hour=100.0), NOW)
    ended = NOW - 601
    books.session("uff-ufm-0001", over(ended, ended - HOUR), ended - HOUR, NOW + HOUR)
    books.session("uff-ufm-0002", Running("r", NOW - 100), NOW - 100, NOW + HOUR, pool="desk")
    assert [length(entry) for entry in books.says(HOUR + 1)] == [1], "all of this pool has ended"

    books.session("uff-ufm-0003", Running("r", NOW - 100), NOW - 100, NOW + 2 * HOUR, job="ucm")
    books.session("uff-ufm-0004", Submitting(NOW, 1), NOW, NOW + HOUR, job="urm")
    for number in (2, 3, 4):
        key = f"uff-ufm-{number:04d}"
        books.told.sessions[key] = Observed(key, SessionState.RUNNING, "r", NOW - 100, stop_channel=StopChannel.STORE)
    books.says(HOUR + 100, limit=HOUR + 1_000)
    with books.ports.database.read() as tx:
        states = {run.key: run.state for run in runs.live(tx)}
    asked = states.pop("uff-ufm-0003")
    assert isinstance(asked, Stopping)
    assert asked.why.endswith(f"900 s are left, and the running sessions have planned {2 * HOUR} s")
    assert [type(state) for _, state in sorted(states.items())] == [Running, Submitting]


@pytest.mark.parametrize("limit", [HOUR, HOUR - 1, 0])
def test_a_quota_that_is_used_up_has_nothing_left_rather_than_less(books: Books, limit: int) -> None:
    books.session("uff-ufm-0001", Running("r", NOW - 100), NOW - 100, NOW + HOUR)
    books.told.sessions["uff-ufm-0001"] = Observed(
        "uff-ufm-0001", SessionState.RUNNING, "r", NOW - 100, stop_channel=StopChannel.STORE
    )
    books.says(HOUR, limit=limit)
    with books.ports.database.read() as tx:
        (run,) = runs.live(tx)
    assert isinstance(run.state, Stopping)
    assert "nearly used up: 0 s are left" in run.state.why


@pytest.mark.parametrize(("cause", "stays"), [(Cause.PERSON, True), (Cause.QUOTA_UNREADABLE, False)])
def test_books_that_can_be_read_open_only_what_they_closed(books: Books, cause: Cause, stays: bool) -> None:
    with books.ports.write() as tx:
        limits.close_pool(tx, "kaggle", None, "why", NOW, cause=cause)
    books.says(0)
    with books.ports.database.read() as tx:
        assert ("kaggle" in limits.closures(tx)) == stays


def test_a_long_reason_is_cut(books: Books) -> None:
    books.told.books = Unreachable("kaggle", "read_quota", "x" * 1_000, "wait")
    read_books(books.ports, ["kaggle"])
    with books.ports.database.read() as tx:
        assert len(limits.closures(tx)["kaggle"][1]) == 500


def test_books_are_closed_when_no_bill_can_grow_any_more(books: Books) -> None:
    books.session("uff-ufm-0001", over(NOW, NOW - HOUR), NOW - HOUR, NOW)
    books.told.books = [QuotaReading(QUOTA.name, WINDOW.start, WINDOW.end, 30 * HOUR, HOUR + 7)]
    assert close_books(books.ports, NOW + 600) is False
    assert books.observed() == []
    books.ports.clock.present = NOW + 602  # type: ignore[attr-defined]  # a hand's clock
    assert close_books(books.ports, NOW + 602) is True
    assert [length(entry) for entry in books.adjusted()] == [7]


def test_a_place_without_books_has_none_to_close(books: Books) -> None:
    books.session("uff-ufm-0001", Running("r", NOW), NOW, NOW + HOUR)
    books.told.capabilities = Capabilities()
    assert close_books(books.ports, NOW) is True
    audit(books.ports, NOW)
    assert books.observed() == []


def test_a_clock_that_hurries_waits_for_real_time(books: Books) -> None:
    """Two real seconds for a bill to settle and a poll to tell of a beginning, four before somebody is suspected."""
    clock = Hurried(NOW)
    hurried = Books(replace(books.ports, clock=clock), books.told)
    assert settled_seconds(clock) == 2 * HOUR
    hurried.session("uff-ufm-0001", over(NOW - 2 * HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW)
    assert hurried.says(3 * HOUR) == []
    assert [length(entry) for entry in hurried.says(3 * HOUR + 1)] == [2 * HOUR + 1]
    hurried.says(7 * HOUR + 1)
    assert hurried.happened("quota.orphan_suspected") == []
    hurried.says(11 * HOUR + 2)  # four more, and a second
    assert len(hurried.happened("quota.orphan_suspected")) == 1


@pytest.mark.parametrize(("left", "asked"), [(2 * HOUR + 300, True), (2 * HOUR + 301, False)])
def test_who_looks_again_in_two_real_seconds_asks_for_saves_by_then(books: Books, left: int, asked: bool) -> None:
    hurried = Books(replace(books.ports, clock=Hurried(NOW)), books.told)
    hurried.session("uff-ufm-0001", Running("r", NOW - 100), NOW - 100, NOW + 9 * HOUR)
    books.told.sessions["uff-ufm-0001"] = Observed("uff-ufm-0001", SessionState.RUNNING, "r", NOW - 100)
    hurried.says(0, limit=left)
    with books.ports.database.read() as tx:
        assert [isinstance(run.state, Stopping) for run in runs.live(tx)] == [asked]


@dataclass
class Answered:
    """Calls that were answered a while ago."""

    at: int

    def gather(self, kind: str, work: dict[str, Any]) -> dict[str, int]:
        """Return the answers of then."""
        return dict.fromkeys(work, self.at)


@pytest.mark.parametrize(
    ("clock", "ago", "fresh"),
    [(HandClock, 600, True), (HandClock, 601, False), (Hurried, 60 * HOUR, True), (Hurried, 60 * HOUR + 1, False)],
)
def test_an_answer_that_came_late_is_good_for_a_while(
    books: Books, clock: type[HandClock], ago: int, fresh: bool
) -> None:
    late: Any = Answered(NOW - ago)
    found = read_books(replace(books.ports, clock=clock(NOW), calls=late), ["kaggle", "desk"])
    assert found == ({"kaggle", "desk"} if fresh else {"desk"})


@pytest.mark.parametrize(
    ("ended", "bill", "entries"),
    [
        (NOW - HOUR, (0, 0), []),
        (NOW - HOUR, (0, 60), [(60, False)]),
        (NOW - HOUR, (-30, -60), [(30, False), (60, True)]),
        (NOW - HOUR + 1, (0, 60), None),  # its bill may still grow
        (NOW - DAY - 1, (0, 60), None),
    ],
)
def test_a_late_bill_is_held_against_our_books_once(
    books: Books, ended: int, bill: tuple[int, int], entries: list[tuple[int, bool]] | None
) -> None:
    key, began = "uff-ufm-0001", ended - HOUR
    books.session(key, over(ended, began), began, NOW, price=700)
    books.session("uff-ufm-0002", over(ended, began), began, NOW)
    seen = Observed(key, SessionState.ENDED, "r", began + bill[0], ended + bill[1], detail="Billable 3,660 s")
    books.told.sessions[key] = seen
    for _ in range(2):
        recheck(books.ports, NOW)
    found = books.adjusted()
    assert sorted((length(entry), entry.credit) for entry in found) == sorted(entries or [])
    for entry in found:
        assert (entry.run, entry.at, entry.price_microdollars_per_hour) == (key, NOW, 700)
        assert entry.evidence == f"the platform bills {HOUR + bill[1] - bill[0]} s: Billable 3,660 s"
    told = [] if entries is None else [{"pool": "kaggle", "seconds": bill[1] - bill[0]}]
    assert books.happened("bill.checked") == told


@pytest.mark.parametrize(
    "seen",
    [
        None,
        Observed("uff-ufm-0001", SessionState.RUNNING, "r", NOW - 3 * HOUR),
        Observed("uff-ufm-0001", SessionState.ENDED, "r", NOW - 3 * HOUR),
        Observed("uff-ufm-0001", SessionState.ENDED, "r", None, NOW),
    ],
)
def test_a_bill_that_is_not_told_whole_is_asked_for_again(books: Books, seen: Observed | None) -> None:
    books.session("uff-ufm-0001", over(NOW - 2 * HOUR, NOW - 3 * HOUR), NOW - 3 * HOUR, NOW)
    if seen is not None:
        books.told.sessions["uff-ufm-0001"] = seen
    recheck(books.ports, NOW)
    assert books.happened("bill.checked") == []
    books.told.sessions["uff-ufm-0001"] = Observed(
        "uff-ufm-0001", SessionState.ENDED, "r", NOW - 3 * HOUR, NOW - 2 * HOUR
    )
    recheck(books.ports, NOW)
    assert books.happened("bill.checked") == [{"pool": "kaggle", "seconds": 0}]
