"""A budget of SageMaker hours or dollars is never exceeded in any window, whatever AWS makes of the sessions.

Admission and ledger are the scheduler's, requests and settlements the adapter's. What AWS bills is drawn, and added up
here by a calendar of the standard library's, second by second of Berlin's time across both changes of its clocks.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, MoneyQuota, Quota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from platforms.base import SessionState
from platforms.sagemaker.answers import SageMakerOrder, observed, training_job
from platforms.sagemaker.settings import read_settings
from scheduler.core.admission import room
from scheduler.core.ledger import EntryKind, LedgerEntry, corrections, fold
from tests.lab.night import share

BERLIN = "Europe/Berlin"
ZONE = ZoneInfo(BERLIN)
PRICE = 736_400
OVERRUN = 300
SESSION_MIN = 900
QUOTAS: list[Quota] = [
    CalendarQuota("hours of the day", 4 * HOUR, Calendar("day", BERLIN)),
    CalendarQuota("hours of the week", 11 * HOUR, Calendar("week", BERLIN)),
    RollingQuota("hours in 24 hours", 5 * HOUR, DAY),
    MoneyQuota("money of the day", 2_500_000, Calendar("day", BERLIN)),
    MoneyQuota("money of the week", 7_000_000, Calendar("week", BERLIN)),
    MoneyQuota("money of the month", 9_000_000, Calendar("month", BERLIN)),
]
# Two days before the clocks go forward, and before they go back, which is also two days before a month begins.
STARTS = [datetime(2026, 3, 27, 12, tzinfo=ZONE), datetime(2026, 10, 24, 0, tzinfo=ZONE)]
OPTIONS = {
    "region": "us-east-1",
    "bucket": "team",
    "role": "arn:aws:iam::123456789012:role/uff",
    "image": "pytorch",
    "instance_types": "ml.g4dn.xlarge",
}


@dataclass(frozen=True)
class Fate:
    """What becomes of a launch. Seconds; ``share`` is what a spot job is billed of its span, in percent."""

    gap: int
    wanted: int
    queue: int
    runs: int | None  # None: as long as it is let
    grace: int
    share: int
    bill_after: int
    capacity: bool


fates = st.builds(
    Fate,
    gap=st.sampled_from([0, HOUR, 5 * HOUR]) | st.integers(0, 9 * HOUR),
    wanted=st.just(5 * HOUR) | st.integers(SESSION_MIN, 5 * HOUR),
    queue=st.integers(0, 2_000),
    runs=st.sampled_from([None, None, None, 1, HOUR, 2 * HOUR]),
    grace=st.sampled_from([0, OVERRUN, OVERRUN]),
    share=st.sampled_from([100, 100, 35]),
    bill_after=st.sampled_from([0, 30, 900]),
    capacity=st.sampled_from([True, True, True, False]),
)


@dataclass
class Session:
    """A training job as AWS knows it, and when what AWS says of it is first believed."""

    key: str
    held_until: int
    description: dict[str, Any]
    billed: tuple[int, int] | None
    over: int
    bill_at: int


@dataclass
class World:
    """The books of one pool, and the truth."""

    pool: Pool
    now: int
    entries: list[LedgerEntry] = field(default_factory=list)
    live: list[Session] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)

    def launch(self, fate: Fate) -> None:
        """Launch as the daemon does: as long as is admitted, with a hold; then let AWS do as fated."""
        self.now += fate.gap
        self.settle()
        found = room(self.pool, self.charges(), [one.held_until for one in self.live], self.now)
        seconds = min(fate.wanted, found.seconds - OVERRUN)
        if seconds < SESSION_MIN:
            return
        key, deadline = f"uff-lm-{len(self.sessions)}", self.now + seconds
        self.write(key, EntryKind.HOLD, self.now, deadline + OVERRUN)
        order = SageMakerOrder(key, "us", "aws", "s3://b/c/", "s3://b/l/", "s3://b/o", deadline - self.now)
        limit = training_job(order, read_settings(OPTIONS))["StoppingCondition"]["MaxRuntimeInSeconds"]
        started = self.now + min(fate.queue, seconds - 1)
        # Told to leave at its deadline, or ended by AWS when it has run for MaxRuntime; then grace and upload.
        last = min(deadline, started + limit) + fate.grace
        ended = min(last, started + (fate.runs or last))
        description = {"TrainingJobName": key, "TrainingJobArn": "arn", "CreationTime": _utc(self.now)}
        bill = (started, started + (ended - started) * fate.share // 100) if fate.capacity else None
        if bill:
            status = {"TrainingJobStatus": "Stopped", "SecondaryStatus": "MaxRuntimeExceeded"}
            times = {"TrainingStartTime": _utc(started), "TrainingEndTime": _utc(ended)}
            description |= {**status, **times}
        else:
            ended = started
            description |= {"TrainingJobStatus": "Failed", "FailureReason": "CapacityError: none"}
        session = Session(key, deadline + OVERRUN, description, bill, ended, ended + fate.bill_after)
        self.live.append(session)
        self.sessions.append(session)

    def settle(self) -> None:
        """Look at each live session as the daemon does; and once more, an hour later, at each that is over."""
        for session in self.sessions:
            if session.billed and self.now >= session.bill_at:
                session.description["BillableTimeInSeconds"] = session.billed[1] - session.billed[0]
        for session in list(self.live):
            seen = observed(session.description, self.now)
            if self.now < session.over or seen.state is SessionState.RUNNING:
                continue
            self.live.remove(session)
            if seen.state is SessionState.ABSENT:
                self.write(session.key, EntryKind.RELEASE, self.now, self.now)
            else:
                assert seen.started is not None
                assert seen.ended is not None
                self.write(session.key, EntryKind.SPEND, seen.started, seen.ended)
        for session in self.sessions:
            if session not in self.live and session.billed and self.now >= session.over + HOUR:
                own = [entry for entry in self.entries if entry.run == session.key]
                seen = observed(session.description, self.now)
                assert seen.started is not None
                assert seen.ended is not None
                for start, end, credit in corrections(fold(own).get("aws", ()), seen.started, seen.ended):
                    self.write(session.key, EntryKind.ADJUST, start, end, credit=credit)

    def write(self, key: str, kind: EntryKind, start: int, end: int, *, credit: bool = False) -> None:
        """Append one entry to the books."""
        self.entries.append(LedgerEntry(kind, "aws", key, start, end, self.now, credit, PRICE))

    def charges(self) -> Any:
        """What counts against the pool."""
        return fold(self.entries).get("aws", ())

    def bills(self) -> list[tuple[int, int]]:
        """What AWS really asks for."""
        return [session.billed for session in self.sessions if session.billed]


def _utc(instant: int) -> datetime:
    return datetime.fromtimestamp(instant, UTC)


def spans(quota: Quota, bills: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Every window of a quota that a bill could fill, by the standard library's calendar."""
    if isinstance(quota, RollingQuota):
        edges = {edge for bill in bills for edge in bill}
        return [(edge - quota.span_seconds, edge) for edge in edges | {edge + quota.span_seconds for edge in edges}]
    first = datetime.fromtimestamp(min(start for start, _ in bills), ZONE).date() - timedelta(days=40)
    days = [first + timedelta(days=number) for number in range(120)]
    if not isinstance(quota, CalendarQuota | MoneyQuota):
        raise AssertionError(quota)
    period = quota.calendar.period
    firsts = [
        day
        for day in days
        if period == "day" or (period == "week" and day.weekday() == 0) or (period == "month" and day.day == 1)
    ]
    midnights = [int(datetime(day.year, day.month, day.day, tzinfo=ZONE).timestamp()) for day in firsts]
    return list(pairwise(midnights))


def fullest(quota: Quota, bills: list[tuple[int, int]]) -> float:
    """What the fullest window of a quota holds, as a share of its limit."""
    used = [sum(max(0, min(end, b) - max(start, a)) for start, end in bills) for a, b in spans(quota, bills)]
    if isinstance(quota, MoneyQuota):
        return max(used) * PRICE / 3_600 / quota.limit_microdollars
    return max(used) / quota.limit_seconds


def pool(*quotas: Quota, sessions: int = 1) -> Pool:
    return Pool(
        name="aws",
        platform="sagemaker",
        accelerator="T4",
        quotas=quotas,
        sessions_max=sessions,
        session_cap_seconds=5 * HOUR,
        overrun_seconds=OVERRUN,
        price_microdollars_per_hour=PRICE,
    )


@settings(max_examples=share(200))
@given(
    st.lists(st.sampled_from(QUOTAS), min_size=1, max_size=3, unique=True),
    st.sampled_from(STARTS),
    st.integers(1, 2),
    st.lists(fates, min_size=1, max_size=14),
)
def test_no_window_of_hours_or_dollars_is_ever_exceeded(
    quotas: list[Quota], start: datetime, sessions: int, fated: list[Fate]
) -> None:
    world = World(pool(*quotas, sessions=sessions), int(start.timestamp()))
    for fate in fated:
        world.launch(fate)
    if not world.bills():
        return
    for quota in quotas:
        assert fullest(quota, world.bills()) <= 1, quota.name
    world.now += 2 * DAY
    world.settle()
    settled = sum(charge.sign * (charge.end - charge.start) for charge in world.charges())
    assert settled == sum(end - begin for begin, end in world.bills())


def test_budgets_can_be_used_up_to_their_last_minutes() -> None:
    """Else the property above would hold of a scheduler that launches nothing."""
    greedy = Fate(gap=900, wanted=5 * HOUR, queue=0, runs=None, grace=OVERRUN, share=100, bill_after=0, capacity=True)
    for quota in QUOTAS:
        for start in STARTS:
            world = World(pool(quota), int(start.timestamp()))
            for _ in range(200):
                world.launch(greedy)
            assert 0.9 < fullest(quota, world.bills()) <= 1, (quota.name, start)


@pytest.mark.parametrize("night", [datetime(2026, 3, 28, 22, tzinfo=ZONE), datetime(2026, 10, 24, 22, tzinfo=ZONE)])
def test_a_session_over_midnight_counts_in_both_days_when_the_clocks_change(night: datetime) -> None:
    """Two hours before midnight and three after it, of a night with 23 hours or 25."""
    world = World(pool(QUOTAS[0]), int(night.timestamp()))
    long = Fate(gap=0, wanted=5 * HOUR, queue=0, runs=None, grace=0, share=100, bill_after=0, capacity=True)
    world.launch(long)
    ((start, end),) = world.bills()
    midnight = int((night + timedelta(hours=2)).timestamp())
    assert (midnight - start, end - midnight) == (2 * HOUR, 3 * HOUR)
    for _ in range(10):
        world.launch(replace(long, gap=HOUR))
    assert fullest(QUOTAS[0], world.bills()) <= 1
