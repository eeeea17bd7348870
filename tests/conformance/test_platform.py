"""What every platform promises, by the words of platforms/base.py."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from platforms.base import HourPrice, Refused, SessionState, Unreachable
from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Protocol

    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest, Observed, Platform

    class Place(Protocol):
        """See conftest.py."""

        asks_to_leave: bool
        adapter: Callable[[], Platform]
        now: Callable[[], int]
        later: Callable[[], object]
        launch_lost: Callable[[LaunchRequest], object]
        outage: Callable[[], AbstractContextManager[None]]

        def request(self, key: str, *, lasting: bool = True, seconds: int = 3600) -> LaunchRequest:
            """Describe a session."""
            ...

        def until(self, key: str, *states: SessionState) -> Observed:
            """Wait for a state."""
            ...

        def let_end(self, key: str) -> None:
            """Let a session end while nobody looks."""
            ...

        def end(self, key: str) -> Observed:
            """End a session by force."""
            ...


HOSTILE = ["", ".", "..", "../up", "a/b", "/etc", "-rf", ".hidden", "a b", "a\nb", "a\0b", "ключ", "a" * 300, "a;b"]
OVER = (SessionState.ENDED, SessionState.ABSENT)


def read_all(platform: "Platform", key: str, offset: int = 0, limit: int = 10_000) -> bytes:
    return b"".join(platform.logs(key, offset, limit))


def wait_for_hello(place: "Place") -> None:
    """Wait until the running session "one" has spoken, where that can be seen before its end."""
    platform = place.adapter()
    while platform.capabilities.tails_logs and not read_all(platform, "one"):
        place.later()


def states(platform: "Platform", keys: "Sequence[str]", now: int) -> "Mapping[str, str]":
    return {key: observed.state for key, observed in platform.find(keys, now).items()}


def test_a_launched_session_is_found_and_runs(place: "Place") -> None:
    began = place.now()
    launched = place.adapter().launch(place.request("one"), began)
    assert launched.key == "one"
    assert launched.state in {SessionState.QUEUED, SessionState.RUNNING}
    running = place.until("one", SessionState.RUNNING)
    assert running.started is not None
    assert began <= running.started <= place.now()
    assert running.ended is None


def test_a_key_never_launched_is_left_out(place: "Place") -> None:
    assert place.adapter().find(["nobody"], place.now()) == {}


def test_launching_a_key_again_starts_nothing_and_returns_the_session(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    assert platform.launch(place.request("one"), place.now()) == running
    platform.launch(place.request("two"), place.now())  # there is room for two: the second launch took none


def test_launching_an_ended_key_again_starts_nothing(place: "Place") -> None:
    place.adapter().launch(place.request("one", lasting=False), place.now())
    ended = place.until("one", SessionState.ENDED)
    assert place.adapter().launch(place.request("one"), place.now()) == ended


def test_of_two_launches_of_one_key_at_once_one_starts(place: "Place") -> None:
    request, now = place.request("one"), place.now()

    def launch(_: int) -> str:
        try:
            return place.adapter().launch(request, now).key
        except Unreachable:  # it sees the other's launch half done, and says so
            return ""

    with ThreadPoolExecutor(8) as threads:
        launched = set(threads.map(launch, range(8)))
    assert "one" in launched <= {"one", ""}
    place.until("one", SessionState.RUNNING)
    wait_for_hello(place)
    if place.adapter().capabilities.tails_logs:
        assert read_all(place.adapter(), "one") == b"hello from one\n"


def test_a_new_adapter_finds_and_stops_what_the_old_one_launched(place: "Place") -> None:
    place.adapter().launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    restarted = place.adapter()
    assert restarted.find(["one"], place.now()) == {"one": running}
    restarted.stop("one", place.now(), force=True)
    assert place.until("one", SessionState.ENDED).started == running.started


@pytest.mark.parametrize("force", [False, True])
def test_a_stopped_session_ends_and_says_when(place: "Place", force: bool) -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    place.until("one", SessionState.RUNNING)
    wait_for_hello(place)
    platform.stop("one", place.now(), force=force)
    if not force and not place.asks_to_leave:  # the artifact store's stop flag does; being asked ends nothing
        for _ in range(20):
            place.later()
        assert states(place.adapter(), ["one"], place.now()) == {"one": SessionState.RUNNING}
        platform.stop("one", place.now(), force=True)
    ended = place.until("one", SessionState.ENDED)
    assert ended.started is not None
    assert ended.ended is not None
    assert ended.started <= ended.ended <= place.now() + 1  # a bill counts whole seconds, and rounds up the last


@pytest.mark.parametrize("force", [False, True])
def test_stopping_may_be_repeated_and_ignores_what_it_does_not_know(place: "Place", force: bool) -> None:
    platform = place.adapter()
    platform.launch(place.request("one", lasting=False), place.now())
    ended = place.until("one", SessionState.ENDED)
    for key in ("one", "one", "nobody", *HOSTILE):
        platform.stop(key, place.now(), force=force)
    assert platform.find(["one", "nobody"], place.now()) == {"one": ended}


def test_the_end_of_a_session_stays_as_it_was_first_told(place: "Place") -> None:
    place.adapter().launch(place.request("one", lasting=False), place.now())
    ended = place.until("one", SessionState.ENDED)
    place.later()
    assert place.adapter().find(["one"], place.now() + 100_000) == {"one": ended}


def test_logs_are_read_from_an_offset_up_to_a_limit(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one", lasting=False), place.now())
    place.until("one", SessionState.ENDED)
    assert read_all(platform, "one") == b"hello from one\n"
    assert read_all(platform, "one", offset=6) == b"from one\n"
    assert read_all(platform, "one", offset=6, limit=4) == b"from"
    assert read_all(platform, "one", offset=1000) == b""
    assert read_all(platform, "one", limit=0) == b""
    assert read_all(platform, "nobody") == b""


def test_a_session_above_the_limit_is_refused_until_one_ends(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    platform.launch(place.request("two"), place.now())
    with pytest.raises(Refused) as refused:
        platform.launch(place.request("three"), place.now())
    assert not refused.value.permanent
    assert platform.find(["three"], place.now()) == {}
    place.end("one")
    platform.launch(place.request("three"), place.now())
    place.until("three", SessionState.RUNNING)


def test_launches_at_once_never_exceed_the_limit(place: "Place") -> None:
    requests = [place.request(f"run-{number}") for number in range(6)]

    def launch(request: "LaunchRequest") -> bool:
        try:
            place.adapter().launch(request, place.now())
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(6) as threads:
        assert sum(threads.map(launch, requests)) == 2
    keys = [request.key for request in requests]

    def found() -> "Mapping[str, Observed] | None":
        place.later()
        seen = place.adapter().find(keys, place.now())
        return seen if len(seen) >= 2 else None  # one just launched may be hidden still

    assert len(until(found, "both sessions")) == 2


def test_a_deadline_in_the_past_is_refused(place: "Place") -> None:
    with pytest.raises(Refused):
        place.adapter().launch(place.request("one", seconds=0), place.now())
    assert place.adapter().find(["one"], place.now()) == {}


def test_sweeping_removes_what_is_named_and_over(place: "Place") -> None:
    platform = place.adapter()
    for key in ("kept", "gone"):
        platform.launch(place.request(key, lasting=False), place.now())
        place.until(key, SessionState.ENDED)
    platform.launch(place.request("live"), place.now())
    place.until("live", SessionState.RUNNING)
    for removed in (["gone"], []):
        assert list(platform.sweep({"gone", "live", "unknown"}, place.now())) == removed
    assert states(platform, ["kept", "gone", "live"], place.now()) == {"kept": "ended", "live": "running"}
    assert read_all(platform, "gone") == b""


def test_without_an_answer_nothing_is_claimed_about_a_session(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    while platform.capabilities.tails_logs and not read_all(platform, "one"):
        place.later()
    running = platform.find(["one"], place.now())["one"]
    request = place.request("one")
    with place.outage():
        for call in (
            lambda: platform.find(["one", "nobody"], place.now()),
            lambda: platform.launch(request, place.now()),
            lambda: platform.stop("one", place.now(), force=True),
            lambda: platform.sweep(["one"], place.now()),
        ):
            with pytest.raises(Unreachable):
                call()
        with suppress(Unreachable):  # a session that looks into the artifact store is asked there, without a call
            platform.stop("one", place.now(), force=False)
        with suppress(Unreachable):  # what was read before may be told
            assert read_all(platform, "one") == b"hello from one\n"
    assert platform.find(["one"], place.now()) == {"one": running}


def test_what_ended_unseen_is_not_ended_by_force_past_its_deadline(place: "Place", store: "BlobStore") -> None:
    """It ended during an outage and the next look fails, so that a daemon ends by force what it takes for late."""
    platform = place.adapter()
    platform.launch(place.request("one", lasting=False), place.now())
    place.let_end("one")
    late = place.now() + 7_200
    with place.outage(), suppress(Unreachable):
        platform.find(["one"], late)
    for step in range(3):
        with place.outage(), suppress(Unreachable):
            platform.stop("one", late + 600 * step, force=True)
        platform.stop("one", late + 600 * step, force=True)
    ended = place.until("one", SessionState.ENDED)
    assert ended.started is not None
    platform.collect("one", store, place.now())
    assert read_all(platform, "one") == b"hello from one\n"
    assert place.adapter().find(["one"], place.now()) == {"one": ended}


def test_a_launch_that_can_never_start_is_proved_absent_for_good(place: "Place") -> None:
    request = place.request("one", seconds=600)
    place.launch_lost(request)
    place.until("one", SessionState.ABSENT)
    assert place.adapter().launch(place.request("one"), place.now()).state == SessionState.ABSENT
    assert states(place.adapter(), ["one"], place.now()) == {"one": "absent"}
    assert list(place.adapter().sweep(["one"], place.now())) == ["one"]


@pytest.mark.parametrize("key", HOSTILE)
def test_a_hostile_key_is_refused_and_unknown(place: "Place", key: str) -> None:
    with pytest.raises(Refused) as refused:
        place.adapter().launch(place.request(key), place.now())
    assert refused.value.permanent
    assert place.adapter().find([key], place.now()) == {}
    assert read_all(place.adapter(), key) == b""


def test_books_are_shown_only_by_a_platform_that_keeps_them(place: "Place") -> None:
    platform = place.adapter()
    told = platform.read_quota(place.now())
    prices = [one for one in told if isinstance(one, HourPrice)]
    assert (len(told) > len(prices)) == platform.capabilities.reports_quota
    assert platform.capabilities.tells_price or not prices


def test_collecting_may_be_repeated_and_ignores_what_it_does_not_know(place: "Place", store: "BlobStore") -> None:
    platform = place.adapter()
    platform.launch(place.request("one", lasting=False), place.now())
    place.until("one", SessionState.ENDED)
    for key in ("one", "one", "nobody", *HOSTILE):
        platform.collect(key, store, place.now())
    assert list(store.keys("")) == []


def test_live_sessions_that_nobody_names_are_found_where_a_platform_can_look(place: "Place") -> None:
    platform = place.adapter()
    for key in ("known", "orphan"):
        platform.launch(place.request(key), place.now())
        place.until(key, SessionState.RUNNING)
    found = ["orphan"] if platform.capabilities.finds_orphans else []
    assert [observed.key for observed in place.adapter().orphans({"known"}, place.now())] == found
    assert list(place.adapter().orphans({"known", "orphan"}, place.now())) == []
    platform.stop("orphan", place.now(), force=True)
    place.until("orphan", SessionState.ENDED)
    assert list(place.adapter().orphans({"known"}, place.now())) == []
