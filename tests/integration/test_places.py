"""Closures that the daemon and people make, and places that do not answer or cannot be used."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from jobs.nouns.pool import Pool
from platforms.base import Misconfigured, PlatformError, Unreachable
from scheduler.core.reasons import Cause
from scheduler.service.faults.places import SILENT_SECONDS, Places, let_in, refused_by
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import read_books
from scheduler.store import events, limits
from scheduler.store.engine import Database
from scheduler.store.limits import Closure
from scheduler.views.needs import needs

NOW = 1_795_000_000
NO_TOKEN = Misconfigured("kaggle", "log in", "no credentials found")
NO_ANSWER = Unreachable("kaggle", "find", "no answer")


@dataclass
class Opening:
    """What makes a platform: of ``made_of``, unless there is a ``problem``."""

    made_of: str = "a"
    problem: PlatformError | None = None
    reload: list[bool] = field(default_factory=list)

    def __call__(self, *, reload: bool = False) -> str:
        """Return what it is made of."""
        self.reload.append(reload)
        if self.problem is not None:
            raise self.problem
        return self.made_of


@dataclass
class Scene:
    """One pool of a daemon."""

    ports: Ports
    opening: Opening
    places: Places

    def close(
        self, until: int | None, why: str, at: int = NOW, by: str = "daemon", cause: Cause = Cause.PERSON
    ) -> Closure:
        """Close the pool and return how it stands."""
        with self.ports.write() as tx:
            limits.close_pool(tx, "kaggle", until, why, at, by, cause)
        found = self.closure
        assert found is not None
        return found

    @property
    def closure(self) -> Closure | None:
        """How the pool is closed, if it is."""
        with self.ports.database.read() as tx:
            return next(iter(limits.standing(tx).values()), None)

    def kinds(self, *kinds: str) -> list[str]:
        """Return the events of these kinds."""
        with self.ports.database.read() as tx:
            return [event.kind for event in events.tail(tx, kinds=kinds)]

    def whats(self, at: int) -> list[str]:
        """Return what needs a person."""
        with self.ports.database.read() as tx:
            return [need.what for need in needs(tx, self.ports.pools, 0, at)]


@pytest.fixture
def scene(make_ports: Callable[..., Ports], database: Database) -> Scene:
    del database
    opening = Opening()
    ports = make_ports(pools={"kaggle": Pool("kaggle", "fake", "T4")}, openings={"kaggle": opening})
    return Scene(ports, opening, Places(ports))


@pytest.mark.parametrize(
    ("before", "by", "until", "stands"),
    [
        (None, "anna", NOW + 600, None),
        (None, "anna", None, None),
        (NOW + 900, "anna", NOW + 600, NOW + 900),
        (NOW + 900, "daemon", NOW + 600, NOW + 900),
        (NOW + 600, "daemon", NOW + 900, NOW + 900),
        (NOW + 600, "anna", None, None),
        (NOW, "anna", NOW + 600, NOW + 600),
        (NOW - 1, "daemon", NOW + 600, NOW + 600),
    ],
)
def test_the_daemon_never_shortens_a_closure_that_is_in_force(
    scene: Scene, before: int | None, by: str, until: int | None, stands: int | None
) -> None:
    """A person closed an account that was under review; two unread quotas later the daemon had opened it."""
    scene.close(before, "account under review", NOW - 50, by)
    kept = scene.close(until, "quota denied", NOW, cause=Cause.QUOTA_DENIED)
    assert kept.until == stands
    assert (kept.why == "account under review") == (stands == before)


def test_people_close_and_open_as_they_like_and_a_reason_that_goes_on_counts_from_its_beginning(scene: Scene) -> None:
    scene.close(None, "under review", by="anna")
    assert scene.close(NOW + 60, "back soon", NOW + 5, by="ben") == Closure("kaggle", NOW + 60, "back soon", NOW + 5)
    scene.close(NOW + 600, "no answer", NOW + 70, cause=Cause.QUOTA_UNREADABLE)
    assert scene.close(NOW + 900, "HTTP 500", NOW + 300, cause=Cause.QUOTA_UNREADABLE).at == NOW + 70
    assert scene.close(None, "no token", NOW + 400, cause=Cause.CREDENTIALS).at == NOW + 400
    assert scene.kinds("pool.closed") == ["pool.closed"] * 5


def test_a_platform_that_cannot_be_made_is_told_once_and_opened_when_it_can(scene: Scene, journal: Any) -> None:
    scene.opening.problem = NO_TOKEN
    for at in range(NOW, NOW + 90, 30):
        scene.places.open(at)
    assert scene.closure == Closure("kaggle", None, f"waits for a person: {NO_TOKEN}", NOW, Cause.CREDENTIALS)
    assert (journal.said.count("pool.waits"), scene.kinds("pool.closed")) == (1, ["pool.closed"])
    assert scene.whats(NOW + 90) == ["pool cannot be used"]
    scene.opening.problem = None
    scene.places.open(NOW + 120)
    assert scene.closure is None


def test_what_a_person_closed_stays_closed_whatever_becomes_of_its_platform(scene: Scene) -> None:
    stands = scene.close(NOW + 9_000, "under review", by="anna")
    scene.opening.problem = NO_TOKEN
    scene.places.open(NOW + 30)
    scene.opening.problem = None
    scene.places.open(NOW + 60)
    assert scene.closure == stands


@pytest.mark.parametrize("words", ["waits for a person to pay", "quota unreadable: 1", "planning fails with it"])
@pytest.mark.parametrize("until", [None, NOW + 9_000])
def test_a_persons_words_never_open_a_pool(scene: Scene, words: str, until: int | None) -> None:
    """A closure "waits for a person to pay" was undone by the next start of a daemon."""
    stands = scene.close(until, words, by="anna")
    for at in (NOW + 30, NOW + 60):
        scene.places = Places(scene.ports)
        scene.places.open(at)
        scene.places.note({"kaggle"}, {}, at)
        scene.places.note((), {"kaggle": NO_TOKEN}, at)
        scene.places.note({"kaggle"}, {}, at + 1)
        with scene.ports.write() as tx:
            let_in(tx, "kaggle", at)
    assert scene.closure == stands
    assert scene.whats(NOW + 90) == (["pool closed"] if until is None else [])


@pytest.mark.parametrize("mend", ["file", "person", "launch", "restart"])
def test_a_refused_launch_rests_an_hour_or_until_it_may_be_mended(scene: Scene, mend: str) -> None:
    scene.places.open(NOW)
    with scene.ports.write() as tx:
        refused_by(tx, "kaggle", NO_TOKEN, NOW)
    scene.places.open(NOW + 30)
    scene.places.note({"kaggle"}, {}, NOW + 30)
    closure = scene.closure
    assert closure is not None, "that other calls are answered does not mend it"
    assert closure.until == NOW + 3_600
    assert scene.whats(NOW + 4_000) == ["pool cannot be used"], "until it is proven"
    match mend:
        case "file":
            scene.opening.made_of = "b"
        case "person":
            with scene.ports.database.write() as tx:
                limits.open_pool(tx, "kaggle", NOW + 40, "anna")
        case "launch":
            with scene.ports.write() as tx:
                let_in(tx, "kaggle", NOW + 3_700)
        case _:
            scene.places = Places(scene.ports)
    scene.places.open(NOW + 3_800)
    assert scene.closure is None
    assert scene.opening.reload[-1] == (mend == "person")
    scene.places.open(NOW + 3_900)
    assert not scene.opening.reload[-1], "once is enough"


def test_a_place_that_is_silent_for_half_an_hour_is_told_and_no_more_when_it_answers(scene: Scene) -> None:
    scene.places.note((), {"kaggle": NO_ANSWER}, NOW)
    scene.places.note((), {"kaggle": NO_ANSWER}, NOW + SILENT_SECONDS - 1)
    assert scene.whats(NOW + SILENT_SECONDS) == []
    scene.places.note({"kaggle"}, {}, NOW + SILENT_SECONDS)
    for at in (0, SILENT_SECONDS, SILENT_SECONDS + 30):
        scene.places.note((), {"kaggle": NO_ANSWER}, NOW + 9_000 + at)
    assert scene.kinds("pool.silent", "pool.answers") == ["pool.silent"]
    assert scene.whats(NOW + 20_000) == ["platform does not answer"]
    restarted = Places(scene.ports)
    restarted.note((), {"kaggle": NO_ANSWER}, NOW + 20_000)
    restarted.note((), {"kaggle": NO_ANSWER}, NOW + 30_000)
    assert scene.kinds("pool.silent") == ["pool.silent"], "it was told before"
    restarted.note({"kaggle"}, {}, NOW + 30_030)
    assert scene.whats(NOW + 30_031) == []
    assert scene.closure is None


def test_a_token_that_goes_bad_under_a_session_closes_the_pool_until_it_is_let_in(scene: Scene) -> None:
    scene.places.note((), {"kaggle": NO_TOKEN}, NOW)
    assert scene.whats(NOW) == ["pool cannot be used"]
    scene.places.note((), {"kaggle": NO_TOKEN}, NOW + 2 * SILENT_SECONDS)
    assert scene.kinds("pool.silent") == []
    scene.places.note({"kaggle"}, {}, NOW + 9_000)
    assert scene.closure is None


@pytest.mark.parametrize(
    ("error", "at_once", "later"),
    [(NO_TOKEN, ["pool cannot be used"], ["pool cannot be used"]), (NO_ANSWER, [], ["platform does not answer"])],
)
def test_books_that_cannot_be_read_are_told_by_their_reason(
    make_ports: Callable[..., Ports], hand_clock: Any, error: PlatformError, at_once: list[str], later: list[str]
) -> None:
    class Closed:
        """A place that keeps books and shows them to nobody."""

        capabilities = type("Kept", (), {"reports_quota": True})

        def read_quota(self, now: int) -> Any:
            """Refuse."""
            raise error

    pools = {"kaggle": Pool("kaggle", "fake", "T4")}
    ports = make_ports(pools=pools, platforms={"kaggle": Closed()})
    hand_clock.present = NOW
    scene = Scene(ports, Opening(), Places(ports))
    assert read_books(ports, ["kaggle"]) == set()
    assert scene.whats(NOW) == at_once
    for step in range(4):
        hand_clock.present = NOW + step * 700
        read_books(ports, ["kaggle"])
    assert scene.whats(NOW + 2_200) == later
