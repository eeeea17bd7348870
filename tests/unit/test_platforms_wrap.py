"""Wrappers: what each adds to the port, and what it must never do."""

import threading
from collections.abc import Callable, Iterator

import pytest

from platforms.base import LaunchRequest, Misconfigured, PlatformError, Refused, Unreachable
from platforms.fake import FakeCloud, FakePlatform
from platforms.wrap import Deadline, Noted, RateLimit, Retry, wrap

NOW = 1_000_000


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


class Pauses(list[float]):
    """Notes how long it was asked to pause, and does not."""

    def __call__(self, seconds: float) -> None:
        """Note one pause."""
        self.append(seconds)


def retry(inner: FakePlatform, pauses: Pauses, tries: int = 3) -> Retry:
    return Retry(inner, "fake", tries=tries, pause_seconds=0.5, pause=pauses)


def test_a_read_without_answer_is_repeated_after_growing_pauses() -> None:
    flaky, pauses = Flaky(lost(), lost()), Pauses()
    assert retry(flaky, pauses).find([], NOW) == {}
    assert flaky.calls == ["find"] * 3
    assert pauses == [0.5, 1.0]


def test_the_last_failure_of_a_read_is_passed_on() -> None:
    flaky, pauses = Flaky(lost(), lost(), lost(), lost()), Pauses()
    with pytest.raises(Unreachable):
        list(retry(flaky, pauses).logs("one", 0, 10))
    assert flaky.calls == ["logs"] * 3


@pytest.mark.parametrize(
    "act",
    [
        lambda platform: platform.launch(request(), NOW),
        lambda platform: platform.stop("one", NOW, force=True),
        lambda platform: platform.sweep(["one"], NOW),
    ],
    ids=["launch", "stop", "sweep"],
)
def test_what_changes_something_is_never_repeated(act: Callable[[Retry], object]) -> None:
    flaky, pauses = Flaky(lost()), Pauses()
    with pytest.raises(Unreachable):
        act(retry(flaky, pauses))
    assert len(flaky.calls) == 1
    assert pauses == []


@pytest.mark.parametrize("error", [Refused("fake", "find", "no"), Misconfigured("fake", "find", "no")])
def test_a_clear_answer_is_never_asked_for_again(error: PlatformError) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)):
        retry(flaky, Pauses()).find([], NOW)
    assert flaky.calls == ["find"]


class Stuck(FakePlatform):
    """Hangs in every call until it is let go."""

    def __init__(self) -> None:
        super().__init__(FakeCloud())
        self.let_go = threading.Event()

    def _answer(self, action: str) -> None:
        assert self.let_go.wait(10)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    """A platform that hangs; its threads are let go and awaited in the end."""
    platform = Stuck()
    yield platform
    platform.let_go.set()
    for thread in threading.enumerate():
        if thread.name.startswith("stuck "):
            thread.join(10)


def test_a_hung_call_is_left_behind_as_unreachable_later_where_data_move(stuck: Stuck) -> None:
    with pytest.raises(Unreachable, match=r"within 0\.1 s"):
        Deadline(stuck, "stuck", seconds=0.01).launch(request(), NOW)


def test_hung_calls_do_not_pile_up(stuck: Stuck) -> None:
    bounded = Deadline(stuck, "stuck", seconds=0.01, hung_max=2)
    for says in ("within", "within", "too many"):
        with pytest.raises(Unreachable, match=says):
            bounded.read_quota(NOW)
    assert sum(thread.name.startswith("stuck ") for thread in threading.enumerate()) == 2


def test_within_its_deadline_a_call_gives_its_answer_or_its_own_error() -> None:
    bounded = Deadline(FakePlatform(FakeCloud()), "fake", seconds=10)
    assert bounded.launch(request(), NOW).key == "one"
    with pytest.raises(Refused):
        bounded.launch(request("two"), NOW)


def test_calls_begin_an_interval_apart() -> None:
    present, pauses = [100.0], Pauses()
    spaced = RateLimit(
        FakePlatform(FakeCloud()), "fake", interval_seconds=2.0, stopwatch=lambda: present[0], pause=pauses
    )
    spaced.find([], NOW)
    spaced.find([], NOW)  # waits its turn
    spaced.find([], NOW)  # and so does the one behind it
    assert pauses == [2.0, 4.0]
    present[0] += 100
    spaced.find([], NOW)
    assert pauses == [2.0, 4.0]


def test_every_call_is_noted_with_what_came_of_it() -> None:
    notes: list[tuple[str, object, object, object]] = []
    ticks = iter(range(100))
    noted = Noted(
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


def test_all_wrappers_together_keep_the_capabilities() -> None:
    inner = FakePlatform(FakeCloud())
    wrapped = wrap(inner, "fake", stopwatch=lambda: 0.0, note=lambda event, fields: None)
    assert wrapped.capabilities == inner.capabilities
