"""Late sessions: what a platform shows of a run after it was given up is booked, brought home and ended."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.lane_report import LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import blob_key, manifest_key
from jobs.spec import JobSpec
from platforms.artifacts.base import BlobStore
from platforms.base import Observed, PlatformError, Refused, SessionState, Unreachable
from scheduler.core.job import Active, Done, Queued
from scheduler.core.run import Ended, Lane, Outcome, Run, Running, Stopping
from scheduler.service.cycle import late_sessions
from scheduler.service.cycle.late_sessions import observe_late
from scheduler.service.launch.launch_document import stop_flag_key
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, ledger, runs, watched
from scheduler.views.needs import needs
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
        self.writes("result", 7_000, outcome="yielded")
        with self.ports.write() as tx:
            jobs.add(tx, JobSpec("ufm", "main", ("true",), 100, 10.0), self.launched)
            jobs.note_launch(tx, "ufm", "paid")
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

    def writes(self, name: str, at: int, **said: Any) -> None:
        """Let the session write a heartbeat or its result at an instant."""
        document = LaneReport(KEY, 0, "ufm", at=self.launched + at, phase="training", **said).document()
        self.ports.artifacts.put(f"runs/{KEY}/lane-0/{name}.json", json.dumps(document).encode())

    def saves(self, step: int) -> None:
        """Let the session publish a checkpoint."""
        manifest = {
            "format": 1, "job": "ufm", "step": step, "attempt": 1, "run": KEY, "lane": 0, "parent": None,
            "created_at": self.launched, "trained_seconds": 1, "metrics": {},
            "components": [{"name": "model.bin", "sha256": "a" * 64, "bytes": 1}],
        }  # fmt: skip
        self.ports.artifacts.put(blob_key("ufm", "a" * 64), b"x")
        self.ports.artifacts.put(manifest_key("ufm", step, 1), json.dumps(manifest).encode())

    def kinds(self) -> list[str]:
        """Return what was written down of the session."""
        with self.ports.database.read() as tx:
            return [event.kind for event in events.tail(tx, subject=KEY) if event.kind.startswith("session")]

    def flagged(self) -> bool:
        """Tell whether the session finds a stop flag."""
        return self.ports.artifacts.size(stop_flag_key(KEY)) is not None

    def look(self, at: int = 20_000) -> Mapping[str, str]:
        """Look for all that is watched; return why some of it could not be handled."""
        self.clock.present = self.launched + at
        with self.ports.database.read() as tx:
            found = watched.everything(tx)
        return observe_late(self.ports, found, self.clock.present)[1]

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


@pytest.mark.parametrize("booked", [None, BOOKED])
def test_one_that_starts_after_all_that_was_held_for_it_is_ended_and_counted(
    world: World, booked: tuple[int, int] | None
) -> None:
    """Its entry ended before it began, which ended every cycle for as long as it ran."""
    world.given_up(booked)
    started = HELD_UNTIL + 100
    world.shows(SessionState.RUNNING, started)
    for at in (HELD_UNTIL + 200, HELD_UNTIL + 2 * HOUR):
        assert not world.look(at=at)
        (counted,) = world.watched()
        assert counted is not None
        assert counted[0] == started
        assert at <= counted[1] <= at + HOUR
    assert world.place.asked == [f"stop {KEY} by force"] * 2
    assert world.flagged()
    world.shows(SessionState.ENDED, started, HELD_UNTIL + 9_000)
    assert not world.look(at=HELD_UNTIL + 3 * HOUR)
    assert world.adjusted()[-1] == (started, HELD_UNTIL + 9_000, False)
    assert world.watched() == []


def test_one_that_started_late_and_tells_no_end_counts_until_now(world: World) -> None:
    world.given_up(None)
    world.shows(SessionState.ENDED, HELD_UNTIL + 100)
    world.look(at=HELD_UNTIL + 500)
    assert world.adjusted() == [(HELD_UNTIL + 100, HELD_UNTIL + 500, False)]


def test_one_that_its_platform_calls_ended_and_that_goes_on_is_told_to_leave_and_listened_to(world: World) -> None:
    """Behind a failed node sessions trained on for 25 minutes: no stop flag, no word to people, checkpoints unread."""
    world.given_up(BOOKED)
    world.ports.artifacts.delete(f"runs/{KEY}/lane-0/result.json")
    world.shows(SessionState.ENDED, *BOOKED)
    world.look(at=10_000)
    assert world.flagged()
    assert world.kinds() == []
    assert world.watched() == [BOOKED]  # it left no last word
    world.writes("heartbeat", 10_050, step=70)
    world.saves(100)
    with world.ports.write() as tx:
        state = jobs.get(tx, "ufm").state
        assert isinstance(state, Queued)
    world.look(at=10_060)
    assert world.kinds() == ["session.lives"]
    with world.ports.database.read() as tx:
        (need,) = [need for need in needs(tx, {"paid"}, 0, world.clock.present) if need.subject == KEY]
        assert need.what == "session goes on unwanted"
        assert runs.heartbeats(tx, [KEY])[KEY, 0].step == 70
        assert isinstance(jobs.get(tx, "ufm").state, Done)  # what it published is read at once
    world.look(at=10_060 + HOUR - 60)
    assert world.watched() == [BOOKED]
    world.look(at=10_060 + HOUR + 60)
    assert (world.watched(), world.kinds(), world.adjusted()) == ([], ["session.lives"], [])


def test_the_successor_of_one_that_reached_the_target_late_is_asked_to_leave(world: World) -> None:
    world.given_up(BOOKED)
    world.ports.artifacts.delete(f"runs/{KEY}/lane-0/result.json")
    with world.ports.write() as tx:
        lanes = (Lane(0, "ufm", jobs.note_launch(tx, "ufm", "paid"), (0,), None),)
        running = Running("fake", world.launched + 9_000)
        runs.insert(
            tx, Run("uff-ufm-0002", "paid", lanes, world.launched, world.launched, world.launched, running),
            world.launched,
        )  # fmt: skip
        before = jobs.get(tx, "ufm").state
        jobs.change_state(tx, "ufm", before, Active("uff-ufm-0002", world.launched), "activate", world.launched)
    world.saves(100)
    world.writes("heartbeat", 10_050, step=100)
    world.look(at=10_060)
    with world.ports.database.read() as tx:
        state = runs.get(tx, "uff-ufm-0002").state
    assert isinstance(state, Stopping)
    assert "reached its target" in state.why


def test_a_fault_of_one_keeps_no_other_watched_run_from_its_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.given_up(None)
    other = "uff-ufm-0009"
    with world.ports.write() as tx:
        lanes = (Lane(0, "ufm", 9, (0,), None),)
        over = Ended(Outcome.LOST, world.launched + 7_000, world.launched)
        run = Run(other, "paid", lanes, world.launched, world.launched, world.launched + HELD_UNTIL, over)
        runs.insert(tx, run, world.launched)
        watched.add(tx, other, world.launched + WATCHED_UNTIL, None)
    world.shows(SessionState.ABSENT)
    world.place.said[other] = replace(world.place.said[KEY], key=other)
    real = late_sessions._settle

    def broken(ports: Ports, one: watched.Watched, *rest: Any) -> None:
        if one.run.key == KEY:
            raise ValueError("ends before it starts")
        real(ports, one, *rest)

    monkeypatch.setattr(late_sessions, "_settle", broken)
    assert set(world.look()) == {KEY}
    with world.ports.database.read() as tx:
        assert [one.run.key for one in watched.everything(tx)] == [KEY]
