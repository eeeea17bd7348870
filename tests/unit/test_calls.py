"""Calls: who hangs is not waited for, is asked once, and is heard when the answer comes."""

from __future__ import annotations

import threading

import pytest

from scheduler.service.outside.calls import Calls, fail, tell
from tests.lab.patience import PATIENCE_SECONDS

AT_ONCE = 0.05  # real seconds; only what hangs is waited for so long


def until_done(calls: Calls) -> None:
    """Wait until everything that was begun is over."""
    for call in list(calls._calls.values()):
        assert call.done.wait(PATIENCE_SECONDS)


def test_a_call_that_hangs_keeps_nobody_waiting_and_its_answer_is_used_later() -> None:
    calls, free, asked = Calls(AT_ONCE), threading.Event(), []

    def hang() -> str:
        asked.append("slow")
        assert free.wait(PATIENCE_SECONDS)
        return "at last"

    assert calls.gather("find", {"slow": hang, "quick": lambda: "here"}) == {"quick": "here"}
    assert calls.gather("find", {"slow": hang, "quick": lambda: "again"}) == {"quick": "again"}
    free.set()
    until_done(calls)
    assert calls.gather("find", {"slow": hang, "quick": lambda: "here"}) == {"slow": "at last", "quick": "here"}
    assert asked == ["slow"], "what hangs is not asked a second time"
    assert calls.gather("find", {"slow": lambda: "anew"}) == {"slow": "anew"}


def test_what_hangs_is_waited_for_once_only() -> None:
    calls, free = Calls(AT_ONCE), threading.Event()
    assert calls.gather("find", {"slow": lambda: free.wait(PATIENCE_SECONDS)}) == {}
    calls._patience = 3_600.0  # that this returns at all says that none of it was used up
    assert calls.gather("find", {"slow": lambda: free.wait(PATIENCE_SECONDS), "quick": lambda: 1}) == {"quick": 1}
    free.set()
    until_done(calls)


def test_kinds_of_questions_do_not_answer_each_other() -> None:
    calls, free = Calls(AT_ONCE), threading.Event()
    assert calls.gather("find", {"p": lambda: free.wait(PATIENCE_SECONDS) and "found"}) == {}
    assert calls.gather("quota", {"p": lambda: "hours"}) == {"p": "hours"}
    free.set()
    until_done(calls)
    assert calls.gather("find", {"p": lambda: "new"}) == {"p": "found"}


def test_an_answer_that_nobody_wants_any_more_is_dropped() -> None:
    calls, free = Calls(AT_ONCE), threading.Event()
    assert calls.gather("find", {"p": lambda: free.wait(PATIENCE_SECONDS) and "old"}) == {}
    free.set()
    until_done(calls)
    for _ in range(10):
        assert calls.gather("find", {}) == {}
    assert calls.gather("find", {"p": lambda: "new"}) == {"p": "new"}


def test_what_the_work_raises_is_raised_also_when_it_comes_late() -> None:
    calls, free = Calls(AT_ONCE), threading.Event()

    def fail() -> None:
        raise KeyError("now")

    def fail_later() -> None:
        assert free.wait(PATIENCE_SECONDS)
        raise KeyError("later")

    with pytest.raises(KeyError, match="now"):
        calls.gather("find", {"p": fail})
    assert calls.gather("launch", {"p": fail_later}) == {}
    free.set()
    until_done(calls)
    with pytest.raises(KeyError, match="later"):
        calls.gather("find", {})
    assert calls.gather("launch", {"p": lambda: 1}) == {"p": 1}


def test_a_turn_waits_once_for_all_that_it_asks_and_hears_what_answers_at_once() -> None:
    calls, free = Calls(3_600.0), threading.Event()
    calls.begin()
    calls._turn.left = AT_ONCE  # what is left of the patience
    assert calls.gather("find", {"slow": lambda: free.wait(PATIENCE_SECONDS)}) == {}
    assert calls._turn.left <= 0
    assert calls.gather("reports", {"quick": lambda: 1, "slow": lambda: free.wait(PATIENCE_SECONDS)}) == {"quick": 1}
    free.set()
    until_done(calls)
    calls.begin()
    assert calls._turn.left == 3_600.0


def test_an_answer_that_nobody_waits_for_any_more_is_news_once() -> None:
    late = threading.Event()
    calls, free = Calls(AT_ONCE, late.set), threading.Event()
    assert calls.gather("data", {"quick": lambda: 1}) == {"quick": 1}
    assert calls.gather("data", {"slow": lambda: free.wait(PATIENCE_SECONDS)}) == {}
    assert (late.is_set(), calls.news(["data"]), calls.under_way("data")) == (False, False, {"slow"})
    free.set()
    assert late.wait(PATIENCE_SECONDS)
    assert [calls.news(["quota"]), calls.news(["data"]), calls.news(["data"])] == [False, True, False]
    assert calls.gather("data", {"slow": lambda: False}) == {"slow": True}
    assert calls.under_way("data") == set()


def test_work_tells_how_far_it_is_and_that_it_failed_until_it_succeeds() -> None:
    calls, free = Calls(AT_ONCE), threading.Event()

    def work() -> None:
        tell("half of it")
        assert free.wait(PATIENCE_SECONDS)
        fail("no space")

    assert calls.gather("data", {"ufm": work}) == {}
    assert [(one.kind, one.name, one.progress) for one in calls.slow(0.0)] == [("data", "ufm", "half of it")]
    assert calls.slow(3_600.0) == []
    free.set()
    until_done(calls)
    calls.gather("data", {"ufm": work})
    assert (calls.slow(0.0), calls.failures()) == ([], {("data", "ufm"): "no space"})
    calls.gather("data", {"ufm": lambda: None})
    assert calls.failures() == {}
    tell("nobody hears this")
    fail("nor that")
