"""In which order sessions that a restored backup does not know are entered into the books."""

from __future__ import annotations

import pytest

from scheduler.core.run import Lane
from scheduler.service.cycle.late_sessions import _next

Session = tuple[str, int]


@pytest.mark.parametrize(
    ("sessions", "busy", "ready"),
    [
        ({("a", 1): ["a1"], ("a", 2): ["a2"], ("b", 4): ["b4"]}, "", [("a", 1), ("b", 4)]),
        ({("a", 1): ["a1", "b2"], ("b", 1): ["b1"]}, "", [("b", 1)]),
        ({("a", 1): ["a1", "c3"], ("b", 1): ["b1", "c3"]}, "", [("a", 1)]),
        ({("a", 1): ["a1", "c3"], ("b", 1): ["b1"]}, "c", [("b", 1)]),
        ({("a", 1): ["a1"]}, "a", []),
        ({("a", 2): ["a2", "b1"], ("b", 2): ["b2", "a1"]}, "", [("a", 2)]),  # notes that contradict each other
        ({("a", 2): ["a2", "b1"], ("b", 2): ["b2", "a1"]}, "c", []),
    ],
)
def test_of_each_job_the_lowest_attempt_comes_first_and_no_job_twice(
    sessions: dict[Session, list[str]], busy: str, ready: list[Session]
) -> None:
    lanes = {
        named: [Lane(index, name[0], int(name[1:]), (index,), None) for index, name in enumerate(planned)]
        for named, planned in sessions.items()
    }
    assert _next(lanes, set(busy)) == ready
