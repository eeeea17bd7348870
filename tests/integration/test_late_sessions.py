"""Late sessions: what a platform shows of a run after it was given up is booked, brought home and ended."""

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import pytest

from jobs.spec import JobSpec
from platforms.artifacts.base import BlobStore
from platforms.base import Observed, PlatformError, Refused, SessionState, Unreachable
from scheduler.core.pool import Pool
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.service.cycle.late_sessions import observe_late
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, ledger, runs, watched
from tests.lab.clocks import HandClock
from tests.lab.fake import FakeCloud, FakePlatform

KEY, PRICE = "uff-ufm-0001", 740_000
BOOKED = (1_000, 1_600)  # seconds after the launch
HELD_UNTIL, WATCHED_UNTIL = 8_000, 90_000


class Witness(FakePlatform):
    """A place that says of each session what it was told to say, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__(FakeCloud())
        self.said: dict[str, Observed] = {}
        self.asked: list[str] = []
        self.failure: PlatformError | None = None

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Say it."""
        return self.said

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Note it."""
        self.asked.append(f"stop {key}{' by force' if force else ''}")

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Note it, and fail if a test wants that."""
        self.asked.append(f"collect {key}")
        if self.failure is not None:
            raise self.failure


class World(SimpleNamespace):
    """One run that was given up and is watched. All instants are seconds after its launch."""

    def given_up(self, booked: tuple[int, int] | None) -> None:
        """Write it down; ``booked`` is what the ledger counts for it."""
        lanes = (Lane(0, "ufm", 1, (0,), None),)
        over = Ended(Outcome.LOST, self.launched + 7_000, self.launched)
        with self.ports.write() as tx:
            jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), self.launched)
            runs.insert(
                tx, Run(KEY, "paid", lanes, self.launched, self.launched + 7_000, self.launched + HELD_UNTIL, over),
                self.launched,
            )  # fmt: skip
            interval = None if booked is None else (self.launched + booked[0], self.launched + booked[1])
            watched.add(tx, KEY, self.launched + WATCHED_UNTIL, interval)

    def shows(self, state: SessionState, started: int | None = None, ended: int | None = None) -> None:
        """Let the platform show the session so from now on."""
        began, over = (None if at is None else self.launched + at for at in (started, ended))
        self.place.said = {KEY: Observed(KEY, state, f"fake {KEY}", began, over)}

    def look(self, at: int = 20_000) -> None:
        """Look for all that is watched."""
        self.clock.present = self.launched + at
        with self.ports.database.read() as tx:
            found = watched.everything(tx)
        observe_late(self.ports, found, self.clock.present)

    def watched(self) -> list[tuple[int, int] | None]:
        """Return what is booked of each watched run."""
        with self.ports.database.read() as tx:
            booked = [one.booked for one in watched.everything(tx)]
        return [None if one is None else (one[0] - self.launched, one[1] - self.launched) for one in booked]

    def adjusted(self) -> list[tuple[int, int, bool]]:
        """Return the adjustments: from, to, and whether given back."""
        with self.ports.database.read() as tx:
            entries = ledger.entries(tx)
            told = events.tail(tx, kinds=["session.late"])
        assert {entry.price_microdollars_per_hour for entry in entries} <= {PRICE}
        assert bool(told) == bool(entries)
        assert all(entry.run == KEY and entry.evidence for entry in entries)
        return [(entry.start - self.launched, entry.end - self.launched, entry.credit) for entry in entries]


@pytest.fixture
def world(make_ports: Callable[..., Ports], hand_clock: HandClock) -> World:
    """The world, with nothing given up yet."""
    place = Witness()
    pool = Pool("paid", "fake", "T4", price_microdollars_per_hour=PRICE)
    ports = make_ports(platforms={"paid": place}, pools={"paid": pool})
    return World(place=place, ports=ports, clock=hand_clock, launched=hand_clock.present)


@pytest.mark.parametrize("booked", [None, BOOKED])
def test_one_that_never_started_is_given_back(world: World, booked: tuple[int, int] | None) -> None:
    world.given_up(booked)
    world.shows(SessionState.ABSENT)
    world.look()
    assert world.adjusted() == ([(*BOOKED, True)] if booked else [])
    assert world.watched() == []
    assert world.place.asked == []


@pytest.mark.parametrize(
    ("booked", "started", "ended", "counted"),
    [
        (None, 100, 7_100, (100, 7_100)),
        (None, None, 7_100, (0, 7_100)),  # it may have begun when it was launched
        (None, 100, None, (100, HELD_UNTIL)),  # and gone on for as long as it was held
        (BOOKED, 100, 7_100, (100, 7_100)),
        (BOOKED, None, 7_100, (BOOKED[0], 7_100)),
        (BOOKED, None, 500, (BOOKED[0], BOOKED[0])),
    ],
)
def test_one_that_ran_is_brought_home_and_counted_as_the_platform_says(
    world: World, booked: tuple[int, int] | None, started: int | None, ended: int | None, counted: tuple[int, int]
) -> None:
    world.given_up(booked)
    world.shows(SessionState.ENDED, started, ended)
    world.look()
    assert world.adjusted() == [*([(*BOOKED, True)] if booked else []), (*counted, False)]
    assert world.watched() == []
    assert world.place.asked == [f"collect {KEY}"]


def test_what_was_counted_rightly_is_not_counted_again(world: World) -> None:
    world.given_up(BOOKED)
    world.shows(SessionState.ENDED, *BOOKED)
    world.look()
    assert world.adjusted() == []
    assert world.watched() == []


def test_one_whose_end_is_not_told_counts_until_now_at_most(world: World) -> None:
    world.given_up(None)
    world.shows(SessionState.ENDED, 100)
    world.look(at=5_000)
    assert world.adjusted() == [(100, 5_000, False)]


def test_what_it_left_is_asked_for_until_it_came_or_was_refused(world: World) -> None:
    world.given_up(None)
    world.shows(SessionState.ENDED, 100, 7_100)
    world.place.failure = Unreachable("fake", "collect", "no answer")
    world.look()
    assert (world.watched(), world.adjusted()) == ([None], [])
    world.place.failure = Refused("fake", "collect", "it is gone")
    world.look()
    assert (world.watched(), world.adjusted()) == ([], [(100, 7_100, False)])


def test_one_that_runs_is_ended_and_counted_once_as_far_as_it_may_go(world: World) -> None:
    world.given_up(BOOKED)
    world.shows(SessionState.RUNNING, 300)
    for looks in (1, 2):
        world.look(at=5_000)
        assert world.adjusted() == [(*BOOKED, True), (300, HELD_UNTIL, False)]
        assert world.watched() == [(300, HELD_UNTIL)]
        assert world.place.asked == [f"stop {KEY} by force"] * looks
    world.shows(SessionState.ENDED, 300, 5_100)
    world.look(at=6_000)
    assert world.adjusted()[2:] == [(300, HELD_UNTIL, True), (300, 5_100, False)]
    assert world.watched() == []


def test_one_that_waits_for_a_machine_is_ended_and_costs_nothing(world: World) -> None:
    world.given_up(None)
    world.shows(SessionState.QUEUED)
    world.look(at=5_000)
    assert (world.watched(), world.adjusted()) == ([None], [])
    assert world.place.asked == [f"stop {KEY} by force"]


def test_one_that_nobody_knows_is_watched_until_its_time_is_over(world: World) -> None:
    world.given_up(BOOKED)
    world.look(at=WATCHED_UNTIL)
    assert world.watched() == [BOOKED]
    world.look(at=WATCHED_UNTIL + 1)
    assert (world.watched(), world.adjusted()) == ([], [])


def test_an_answer_without_meaning_ends_no_watch(world: World) -> None:
    world.given_up(BOOKED)
    world.shows(SessionState.UNCLEAR)
    world.look(at=WATCHED_UNTIL + 1)
    assert world.watched() == [BOOKED]


def test_one_of_a_pool_that_is_not_configured_waits_for_it(world: World) -> None:
    world.given_up(BOOKED)
    del world.ports.platforms["paid"]
    world.look(at=WATCHED_UNTIL + 1)
    assert world.watched() == [BOOKED]
