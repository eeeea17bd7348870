"""The tail of a log: whole lines, nothing twice, nothing missed, nothing that steers a screen."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.payload.redact import MARK, Redactor
from platforms.base import Unreachable
from scheduler.core.run import Ended, Lane, Outcome, Run, Running
from scheduler.store import runs
from scheduler.verbs import log_tail
from scheduler.verbs.log_tail import LogTails, printable
from tests.lab.patience import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY = "uff-ufm-0001"


class Printing:
    """A platform whose one session has printed ``data``."""

    def __init__(self) -> None:
        self.data = b""
        self.asked = 0
        self.fails = False
        self.may_answer = Event()
        self.may_answer.set()

    def logs(self, key: str, offset: int, limit: int) -> Iterator[bytes]:
        """Yield what was printed."""
        self.asked += 1
        assert self.may_answer.wait(PATIENCE_SECONDS)
        if self.fails:
            raise Unreachable("desk", "logs", "no route to host")
        assert key == KEY
        yield self.data[offset : offset + limit]


class World:
    """The tails of a source with one run, on a stopwatch of the test's own."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.platform = Printing()
        self.time = 0.0
        self.ended = False
        patch.setattr(log_tail, "stopwatch", lambda: self.time)
        patch.setattr(runs, "get", lambda tx, key: self._run(key))
        app = SimpleNamespace(redact=Redactor(["hunter2-secret"]), platforms={"desk": self.platform})
        source: Any = SimpleNamespace(app=app, pools={"desk": None}, read=self._read)
        self.tails = LogTails(source)

    @contextmanager
    def _read(self) -> Iterator[None]:
        yield None

    def _run(self, key: str) -> Run:
        lane = Lane(0, "ufm", 1, (0,), None)
        state = Ended(Outcome.YIELDED, 9, 1) if self.ended else Running("remote", 1)
        return Run(key, "desk", (lane,), 1, 99, 99, cast("Any", state))

    def read(self, after: int = 0, patience_seconds: float = 30.0) -> Any:
        """Read the tail ten seconds later."""
        self.time += 10
        return self.tails.read(KEY, after, patience_seconds)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_reader_gets_every_line_once(world: World) -> None:
    world.platform.data = b"one\ntw"
    first = world.read()
    assert (first.text, first.next, first.ended) == ("one\n", 4, False)
    world.platform.data = b"one\ntwo\nthree"
    second = world.read(first.next)
    assert second.text == "two\n"
    world.ended = True
    last = world.read(second.next)
    assert (last.text, last.ended) == ("three", True)


def test_a_log_that_has_ended_is_not_asked_for_again(world: World) -> None:
    world.platform.data, world.ended = b"done\n", True
    world.read()
    asked = world.platform.asked
    assert world.read().text == "done\n"
    assert world.platform.asked == asked


def test_many_readers_ask_the_platform_once(world: World) -> None:
    world.platform.data = b"one\n"
    world.read()
    for _ in range(5):
        assert world.tails.read(KEY).text == "one\n"
    assert world.platform.asked == 1


def test_of_a_long_log_the_end_is_kept_and_begins_with_a_whole_line(world: World) -> None:
    line = b"x" * 99 + b"\n"
    world.platform.data = line * 30_000
    found = world.read()
    assert found.cut
    assert found.next == 3_000_000
    assert 200_000 < len(found.text) <= 256 << 10
    assert set(found.text.splitlines()) == {"x" * 99}
    world.platform.data += b"new\n"
    assert world.read(found.next).text == "new\n"


def test_letters_of_several_bytes_are_never_torn(world: World) -> None:
    snowman = "\N{SNOWMAN}".encode()
    world.platform.data = b"a\n" + snowman[:2]
    first = world.read()
    world.platform.data = b"a\n" + snowman + b"\n"
    assert first.text + world.read(first.next).text == "a\n\N{SNOWMAN}\n"


def test_a_platform_that_does_not_answer_is_told_and_what_was_read_stays(world: World) -> None:
    world.platform.data = b"one\n"
    world.read()
    world.platform.fails = True
    found = world.read()
    assert "no route to host" in found.why
    assert found.text == "one\n"
    world.platform.fails = False
    assert world.read().why == ""


def test_a_platform_that_takes_its_time_does_not_keep_the_page(world: World) -> None:
    world.platform.data = b"one\n"
    world.platform.may_answer.clear()
    first = world.read(patience_seconds=0.0)
    assert (first.text, first.why, first.ended) == ("", "the platform has not answered yet", False)
    world.platform.may_answer.set()
    assert world.read().text == "one\n"
    assert world.platform.asked <= 2


def test_secrets_of_the_settings_do_not_show(world: World) -> None:
    world.platform.data = b"token=hunter2-secret\n"
    assert world.read().text == "token=[secret]\n"


@given(
    before=st.text("ab \n", max_size=30),
    after=st.text("ab \n", max_size=30),
    window=st.integers(20, 80),
    data=st.data(),
)
@settings(deadline=None)
def test_no_offset_and_no_window_tears_a_secret(before: str, after: str, window: int, data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_tail, "_KEPT_BYTES", window)
        world = World(patch)
        world.platform.data = f"{before}token=hunter2-secret;{after}".encode()
        world.ended = data.draw(st.booleans())
        for _ in range(3):
            text = world.read(data.draw(st.integers(0, 90))).text.replace(MARK, "")
            for size in range(5, len("hunter2-secret")):
                assert "hunter2-secret"[-size:] not in text
                assert "hunter2-secret"[:size] not in text


def test_a_reader_who_asks_from_within_a_line_gets_the_whole_line(world: World) -> None:
    world.platform.data = b"first line\nsecond line\nthird"
    found = world.read(15)
    assert (found.text, found.offset, found.next) == ("second line\n", 11, 23)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        ("10 %\r20 %\r100 %\ndone", "100 %\ndone"),
        ("windows\r\nline\r\n", "windows\nline\n"),
        ("bell\x07 null\x00 back\x08", "bell null back"),
        ("admin\u202egnp.exe", "admingnp.exe"),
        ("<script>alert(1)</script>", "<script>alert(1)</script>"),
        ("\x1b]52;c;unfinished\nnext", "\nnext"),
    ],
)
def test_nothing_steers_the_screen(printed: str, shown: str) -> None:
    assert printable(printed) == shown
