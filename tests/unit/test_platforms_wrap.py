"""Wrappers: what each adds to the port, and what it must never do."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from platforms.base import LaunchRequest, Platform, Refused, Unreachable
from platforms.wrap import Guarded, LatePlatform
from tests.lab.fake import FakeCloud, FakePlatform
from tests.lab.patience import PATIENCE_SECONDS

NOW = 1_000_000
QUIET: dict[str, Any] = {"stopwatch": lambda: 0.0, "note": lambda event, fields: None}


def request(key: str = "one") -> LaunchRequest:
    return LaunchRequest(key, "pool", 1, NOW + 3600, {}, "", {})


class Flaky(FakePlatform):
    """Raises what it is given, one error for each call, then answers; counts the calls of each action."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__(FakeCloud())
        self.errors = list(errors)
        self.calls: list[str] = []

    def _answer(self, action: str) -> None:
        self.calls.append(action)
        if self.errors:
            raise self.errors.pop(0)


def lost() -> Unreachable:
    return Unreachable("fake", "call", "lost")


class Stuck(FakePlatform):
    """Hangs in every call until it is let go."""

    def __init__(self) -> None:
        super().__init__(FakeCloud())
        self.let_go = threading.Event()

    def _answer(self, action: str) -> None:
        assert self.let_go.wait(PATIENCE_SECONDS)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """A platform that hangs; its threads are let go and awaited in the end."""
    platform = Stuck()
    yield platform
    platform.let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("stuck "):
            thread.join(PATIENCE_SECONDS)


def test_a_hung_call_is_left_behind_as_unreachable_later_where_data_move(stuck: Stuck) -> None:
    with pytest.raises(Unreachable, match=r"within 0\.1 s"):
        Guarded(stuck, "stuck", seconds=0.01, **QUIET).launch(request(), NOW)


def test_hung_calls_do_not_pile_up(stuck: Stuck) -> None:
    bounded = Guarded(stuck, "stuck", seconds=0.01, hung_max=2, **QUIET)
    for says in ("within", "within", "too many"):
        with pytest.raises(Unreachable, match=says):
            bounded.read_quota(NOW)
    assert sum(thread.name.startswith("stuck ") for thread in threading.enumerate()) == 2


def test_within_its_deadline_a_call_gives_its_answer_or_its_own_error() -> None:
    bounded = Guarded(FakePlatform(FakeCloud()), "fake", seconds=10, **QUIET)
    assert bounded.launch(request(), NOW).key == "one"
    with pytest.raises(Refused):
        bounded.launch(request("two"), NOW)


def test_every_call_is_noted_with_what_came_of_it() -> None:
    notes: list[tuple[str, object, object, object]] = []
    ticks = iter(range(100))
    noted = Guarded(
        Flaky(lost(), Refused("fake", "launch", "full")),
        "fake",
        note=lambda event, told: notes.append((event, told["action"], told["outcome"], told["seconds"])),
        stopwatch=lambda: float(next(ticks)),
    )
    with pytest.raises(Unreachable):
        noted.find([], NOW)
    with pytest.raises(Refused):
        noted.launch(request(), NOW)
    noted.sweep(["one"], NOW)
    assert notes == [
        ("platform.call", "find", "unreachable", 1.0),
        ("platform.call", "launch", "refused", 1.0),
        ("platform.call", "sweep", "ok", 1.0),
    ]


@pytest.mark.parametrize(
    "act",
    [
        lambda platform: platform.launch(request(), NOW),
        lambda platform: platform.stop("one", NOW, force=True),
        lambda platform: platform.sweep(["one"], NOW),
        lambda platform: platform.find(["one"], NOW),
    ],
    ids=["launch", "stop", "sweep", "find"],
)
def test_no_call_is_repeated(act: Callable[[Platform], object]) -> None:
    flaky = Flaky(lost())
    with pytest.raises(Unreachable):
        act(Guarded(flaky, "fake", **QUIET))
    assert len(flaky.calls) == 1


def test_a_deadline_moves_through_every_wrapper() -> None:
    moved: list[tuple[str, int, int]] = []

    class Extended(FakePlatform):
        """Notes the deadlines that it is told."""

        def extend(self, key: str, deadline: int, now: int) -> None:
            """See Extends.extend."""
            moved.append((key, deadline, now))

    late = LatePlatform("fake", lambda: Extended(FakeCloud()), lambda: "same")
    Guarded(late, "fake", **QUIET).extend("one", NOW + 60, NOW)
    assert moved == [("one", NOW + 60, NOW)]


def test_all_wrappers_together_keep_the_capabilities() -> None:
    inner = FakePlatform(FakeCloud())
    wrapped = Guarded(inner, "fake", **QUIET)
    assert wrapped.capabilities == inner.capabilities
