"""An answer without its word is no answer: whatever comes in its place, nothing is concluded from it, at any place."""

import json
import os
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platforms.base import SessionState, Unreachable
from tests.lab.twists import wordless

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Protocol

    from platforms.base import LaunchRequest, Observed, Platform

    class Place(Protocol):
        """See conftest.py."""

        adapter: Callable[[], Platform]
        now: Callable[[], int]
        outage: Callable[[], AbstractContextManager[None]]
        faults: Any
        records: Callable[[str], list[Path]]

        def request(self, key: str, *, lasting: bool = True, seconds: int = 3600) -> LaunchRequest:
            """Describe a session."""
            ...

        def until(self, key: str, *states: SessionState) -> Observed:
            """Wait for a state."""
            ...


LIVE = {SessionState.QUEUED, SessionState.RUNNING, SessionState.UNCLEAR}
AT_MOST = 40  # of what can come in the place of answers, or stand where a record was; which, is drawn


def spoilt(place: "Place") -> "Iterator[str]":
    """Have what "one" is known by lack its word, in one way after the other; yields how, while it does."""
    if place.faults is None and not place.records("one"):
        with place.outage():
            yield "outage"
    ways = [*_answers(place), *((path, body) for path in place.records("one") for body in _bodies(path))]
    for where, body in random.Random(1).sample(ways, min(AT_MOST, len(ways))):
        if isinstance(where, Path):
            kept = where.read_bytes()
            _stand(where, body)
            try:
                yield f"{where.name}: {body!r}"
            finally:
                _stand(where, kept)
        else:
            place.faults.twist = lambda call, _answer, where=where, body=body: body if call == where else None
            try:
                yield f"{where}: {body!r}"
            finally:
                place.faults.twist = lambda _call, _answer: None


def _answers(place: "Place") -> list[tuple[str, bytes]]:
    if place.faults is None:
        return []
    told: dict[str, Mapping[str, Any]] = {}
    place.faults.twist = lambda call, answer: told.setdefault(call, answer) and None
    place.adapter().find(["one"], place.now())
    place.faults.twist = lambda _call, _answer: None
    assert told
    return [(call, body) for call, answer in told.items() for body in wordless(answer)]


def _bodies(record: Path) -> list[bytes | None]:
    return [*wordless(json.loads(record.read_bytes())), None]


def _stand(path: Path, body: bytes | None) -> None:
    """Let ``body`` stand at ``path``, or for None a pipe that nobody writes to."""
    path.unlink()
    if body is None:
        os.mkfifo(path)
    else:
        path.write_bytes(body)


def _swept(platform: "Platform", now: int) -> Iterable[object]:
    return platform.sweep(["one"], now)


def _orphans(platform: "Platform", now: int) -> Iterable[object]:
    return platform.orphans(["one"], now)


def _books(platform: "Platform", now: int) -> Iterable[object]:
    return platform.read_quota(now) and ()


def _log(platform: "Platform", now: int) -> Iterable[object]:
    del now
    return platform.logs("one", 0, 0)


def test_a_session_that_runs_is_never_said_to_be_over_or_unknown(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    for what in spoilt(place):
        try:
            seen = platform.find(["one"], place.now())
        except Unreachable:
            continue
        assert seen["one"].state in LIVE, what
        assert seen["one"].ended is None, what
        assert seen["one"].detail or seen["one"].state is not SessionState.UNCLEAR, what
    assert platform.find(["one"], place.now()) == {"one": running}


def test_launching_its_key_starts_nothing_and_never_gives_it_up(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    for what in spoilt(place):
        with suppress(Unreachable):
            seen = platform.launch(place.request("one"), place.now())
            assert seen.state in LIVE - {SessionState.UNCLEAR}, what
    assert platform.find(["one"], place.now()) == {"one": running}


def test_what_only_asks_or_cleans_up_fails_in_the_ports_own_words(place: "Place") -> None:
    platform = place.adapter()
    platform.launch(place.request("one"), place.now())
    running = place.until("one", SessionState.RUNNING)
    for what in spoilt(place):
        for ask in (_swept, _orphans, _books, _log):
            with suppress(Unreachable):
                assert list(ask(platform, place.now())) == [], what
    assert platform.find(["one"], place.now()) == {"one": running}


def test_what_is_wrong_with_one_session_leaves_the_others_be(place: "Place") -> None:
    """Where the fault is not the whole place's."""
    platform = place.adapter()
    for key in ("one", "two"):
        platform.launch(place.request(key), place.now())
    two = place.until("two", SessionState.RUNNING)
    place.until("one", SessionState.RUNNING)
    for what in spoilt(place):
        try:
            seen = platform.find(["one", "two"], place.now())
        except Unreachable:
            continue
        if seen["one"].state is SessionState.UNCLEAR:
            assert seen["two"] == two, what
