"""Logs as Kaggle sends them, and what of them a user sees."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from platforms.kaggle.session.observer import SessionLog, entries_from, entries_of

BEGINS = '##uff-scheduler## {"begins": "uff-ufm-0001", "container": "kaggle_x-webtier-355193088"}\n'
ENDS = '##uff-scheduler## {"ends": "uff-ufm-0001", "code": 0}\n'


def entry(data: str, time: float = 1.0, stream: str = "stdout") -> dict[str, object]:
    return {"stream_name": stream, "time": time, "data": data}


def read(log: SessionLog, *entries: object) -> bytes:
    return b"".join(log.feed(entries)) + b"".join(log.last_lines())


def test_only_the_payloads_own_lines_are_shown() -> None:
    log = SessionLog()
    shown = read(
        log,
        entry(BEGINS),
        entry("step 1\nstep"),
        entry(" 2\n", 5.5),
        entry("half a line"),
        entry(ENDS, 9.5, "stderr"),
        entry("[NbConvertApp] Converting\n", 11.0, "stderr"),
    )
    assert shown == b"step 1\nstep 2\n"
    assert (log.session_id, log.ended_after) == (355_193_088, 9.5)


def test_the_last_words_of_a_session_that_was_cut_off_are_shown() -> None:
    log = SessionLog()
    assert read(log, entry(BEGINS), entry("step 1\nhalf a li")) == b"step 1\nhalf a li"
    assert log.ended_after is None


def test_what_kept_the_bootstrap_from_starting_is_shown() -> None:
    trouble = '##uff-scheduler## {"trouble": "FileNotFoundError: no input"}\n'
    assert read(SessionLog(), entry(trouble)) == b"bootstrap: FileNotFoundError: no input\n"


@pytest.mark.parametrize("container", ["", "no digits", "7x", None, 5])
def test_a_session_without_a_number_has_no_id(container: object) -> None:
    log = SessionLog()
    read(log, entry(f"##uff-scheduler## {json.dumps({'begins': 'k', 'container': container})}\n"))
    assert log.session_id in {None, 5}


@pytest.mark.parametrize("text", ["", "{", "5", "null", '{"a": 1}', "[" * 100_000])
def test_a_log_that_is_no_list_is_empty(text: str) -> None:
    assert entries_of(text) == []


@given(st.lists(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5)))
def test_odd_entries_are_passed_over(entries: list[object]) -> None:
    assert read(SessionLog(), *entries) == b""


@pytest.mark.parametrize(("cut", "left"), [(1, 3), (2, 3), (3, 2), (20, 2), (80, 1), (160, 0)])
def test_of_a_log_that_was_cut_the_whole_entries_are_read(cut: int, left: int) -> None:
    """Kaggle begins a line with each; what is missing of the last one takes no other with it."""
    text = "[" + "\n,".join(json.dumps(entry(f"line {number}\n")) for number in range(3)) + "\n]"
    assert entries_of(text[:-cut]) == [entry(f"line {number}\n") for number in range(left)]


@given(st.lists(st.text(alphabet="abc \n", max_size=12), max_size=8), st.data())
def test_a_stream_gives_the_same_however_it_is_cut(texts: list[str], data: st.DataObject) -> None:
    """Events may be torn anywhere, also inside a character."""
    events = "".join(f"data: {json.dumps(entry(text + 'ü'), ensure_ascii=False)}\n\n" for text in texts)
    raw = f"{events}data: END_OF_LOG\n\nrubbish".encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    stream = [("text/event-stream", piece) for piece in pieces]
    log = SessionLog()
    shown = b"".join(piece for entries in entries_from(stream) for piece in log.feed(entries)) + b"".join(
        log.last_lines()
    )
    assert shown.decode() == "".join(f"{text}ü" for text in texts)


def test_a_finished_log_comes_as_a_list() -> None:
    raw = json.dumps([entry("one\n"), entry("two\n")]).encode()
    stream = [("application/json", raw[:9]), ("application/json", raw[9:])]
    log = SessionLog()
    assert [b"".join(log.feed(entries)) for entries in entries_from(stream)] == [b"one\ntwo\n"]
