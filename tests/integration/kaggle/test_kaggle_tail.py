"""Live logs: every line once, whoever reads and however often the stream breaks; nobody waits for a reader."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from platforms.base import SessionState, Unreachable
from tests.lab.faults import Fault
from tests.lab.patience import until, until_state

Account = Any
KEY = "uff-ufm-0001"
COUNTING = """
import sys, time
for number in range(60):
    print("line", number, flush=True)
    time.sleep(0.02)  # the pace of a training: over a second, in which its log is read as it grows
"""
WANTED = [f"line {number}" for number in range(60)]


def counting(account: Account) -> None:
    command = ["{python}", "-c", COUNTING]
    account.adapter().launch(account.request(KEY, "finish", command=command), account.now())


def lines_of(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if line.startswith("line ")]


def streams(account: Account) -> list[str]:
    """Count how often a stream is asked for from now on."""
    asked: list[str] = []
    drawn = account.place.faults.draw

    def draw(call: str) -> Fault | None:
        if call == "LogStream":
            asked.append(call)
        return None if drawn is None else drawn(call)

    account.place.faults.draw = draw
    return asked


def readers() -> int:
    return sum(thread.name.startswith("log ") for thread in threading.enumerate())


@pytest.mark.parametrize("cut_wall_seconds", [120.0, 0.01])
def test_a_session_is_followed_line_by_line_whoever_reads(
    account_at: Callable[..., Account], cut_wall_seconds: float
) -> None:
    """Each look is that of a new process; with the short cut, the balancer ends every stream that pauses."""
    account = account_at(stream_idle_wall_seconds=cut_wall_seconds)
    counting(account)
    seen = bytearray()

    def look() -> bool:
        nonlocal seen
        adapter = account.adapter()
        ended = adapter.find([KEY], account.now())[KEY].state is SessionState.ENDED
        seen += b"".join(adapter.logs(KEY, len(seen), 1 << 20))
        return ended

    until(look, "the end")
    assert lines_of(bytes(seen)) == WANTED
    assert lines_of(b"".join(account.adapter().logs(KEY, 0, 1 << 20))) == WANTED


def test_a_restarted_daemon_goes_on_where_the_file_ends(account: Account) -> None:
    """Even when the old one died in the middle of a line."""
    counting(account)
    account.until(KEY, SessionState.RUNNING)
    live = account.folder / "state" / "launches" / f"{KEY}.live"
    until(lambda: b"line 5\n" in b"".join(account.adapter().logs(KEY, 0, 1 << 20)), "line 5 to be printed")
    account.until(KEY, SessionState.ENDED)
    whole = b"".join(account.adapter().logs(KEY, 0, 1 << 20))
    for cut in (0, 1, len(whole) // 2, len(whole) - 3):
        live.write_bytes(whole[:cut])
        tail: Any = account.adapter()
        record = replace(tail._records.read(KEY), state="pushed")
        tail._tail.catch_up(record)
        assert lines_of(live.read_bytes()) == WANTED


def test_a_stream_that_hangs_keeps_nobody_waiting_and_one_thread_busy(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    account.place.faults.always["LogStream"] = Fault.HANG
    adapter = account.adapter()
    before, asked = readers(), streams(account)
    until_state(lambda: adapter.find([KEY], account.now())[KEY], SessionState.RUNNING)
    for _ in range(50):
        assert adapter.find([KEY], account.now())[KEY].state is SessionState.RUNNING
    assert readers() - before <= 1
    assert len(asked) == 0  # the fault is taken before it is drawn; the one reader hangs in it
    account.server.closing.set()  # lets it go


def test_throttled_readers_rest_and_are_not_hurried(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until(lambda: account.place.sessions()[0].started_at is not None, "a session that runs")
    adapter, asked = account.adapter(), []

    def draw(call: str) -> Fault | None:
        if call != "LogStream":
            return None
        asked.append(call)
        return Fault.THROTTLED

    account.place.faults.draw = draw
    for _ in range(50):
        adapter.find([KEY], account.now())
        list(adapter.logs(KEY, 0, 100)) if asked and not readers() else None
        account.patience.wait(0.005)
    assert len(asked) == 1


def test_the_whole_log_is_fetched_once(account: Account) -> None:
    counting(account)
    account.until(KEY, SessionState.ENDED)
    asked = [call for call, _ in account.server.requests].count("ListKernelSessionOutput")
    assert asked == 1
    for _ in range(3):
        assert lines_of(b"".join(account.adapter().logs(KEY, 0, 1 << 20))) == WANTED
    assert [call for call, _ in account.server.requests].count("ListKernelSessionOutput") == asked


def test_a_log_that_is_published_late_is_fetched_when_it_is_there(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the end it may be empty; until then what was streamed is shown."""
    counting(account)
    until(lambda: lines_of(b"".join(account.adapter().logs(KEY, 0, 1 << 20))), "a line")
    with monkeypatch.context() as patch:
        honest = account.server.table["kernels.KernelsApiService/ListKernelSessionOutput"]
        late = {**account.server.table}
        late["kernels.KernelsApiService/ListKernelSessionOutput"] = lambda body: {**honest(body), "log": ""}
        patch.setattr(account.server, "table", late)
        account.until(KEY, SessionState.ENDED)
        assert lines_of(b"".join(account.adapter().logs(KEY, 0, 1 << 20)))
    assert lines_of(b"".join(account.adapter().logs(KEY, 0, 1 << 20))) == WANTED


def test_without_an_answer_a_log_that_was_never_read_is_not_empty_but_unknown(account: Account) -> None:
    account.adapter().launch(account.request(KEY, "wait"), account.now())
    until(lambda: account.place.sessions()[0].started_at is not None, "a session that runs")
    account.place.faults.always["*"] = Fault.SERVER_ERROR
    with pytest.raises(Unreachable):
        list(account.adapter().logs(KEY, 0, 100))
