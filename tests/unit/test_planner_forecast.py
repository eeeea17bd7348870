"""What is expected to come into the queue, learned from when others of its kind came."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, WEEK
from jobs.spec import Needs
from scheduler.core.snapshot import Arrivals, JobView, Rate, Snapshot
from scheduler.planner.model.forecast import expected, rhythm

NOW = 1_767_225_600


def main(name: str = "main") -> JobView:
    return JobView(name, 1.0, 3_600, 1_200, Needs(), {"pool": Rate(1.0)}, {"pool": 60}, {"pool": 0}, running="run-1")


def arrivals(*days_ago: float, said: tuple[int, ...] = ()) -> Arrivals:
    return Arrivals("main", tuple(NOW - round(ago * DAY) for ago in days_ago), main(), said)


def week(*known: Arrivals) -> Snapshot:
    return Snapshot(NOW, (), (), WEEK, arrivals=known)


@pytest.mark.parametrize("instants", [(), (NOW,), (NOW, NOW, NOW + 60)])
def test_who_came_once_has_no_rhythm(instants: tuple[int, ...]) -> None:
    assert rhythm(instants) is None


def test_the_more_often_it_came_alike_the_surer_the_next_is() -> None:
    twice, often = rhythm((0, 7 * DAY)), rhythm((0, 7 * DAY, 14 * DAY, 21 * DAY))
    assert twice is not None
    assert often is not None
    assert (twice[0], often[0]) == (7 * DAY, 7 * DAY)
    assert twice[1] < often[1] < 1.0


def test_uneven_distances_are_less_sure() -> None:
    even, uneven = rhythm((0, 7 * DAY, 14 * DAY, 21 * DAY)), rhythm((0, 4 * DAY, 14 * DAY, 21 * DAY))
    assert even is not None
    assert uneven is not None
    assert uneven[0] == even[0] == 7 * DAY
    assert uneven[1] < even[1]


def test_the_next_is_expected_after_the_mean_distance_with_nothing_done() -> None:
    (found,) = expected(week(arrivals(17, 12, 5)))
    assert found.expected_at == NOW + DAY  # 12 days apart over two distances
    assert (found.kind, found.pool, found.seconds) == ("main", "", 3_600)


def test_those_who_come_together_are_one_arrival() -> None:
    assert rhythm((0, 60, 7 * DAY, 7 * DAY + 60, 14 * DAY, 14 * DAY + 60)) == rhythm((0, 7 * DAY, 14 * DAY))


def test_the_next_generation_comes_after_this_one() -> None:
    overdue = week(arrivals(37, 25, 13))
    assert expected(overdue)
    assert expected(replace(overdue, jobs=(main(),))) == ()


def test_nothing_is_expected_of_a_kind_without_a_rhythm() -> None:
    assert expected(week(arrivals(40, 39, 6, 5))) == ()
    assert expected(week(arrivals(5))) == ()


def test_who_is_late_may_come_at_any_moment_until_it_is_too_late() -> None:
    (found,) = expected(week(arrivals(37, 25, 13)))
    assert found.expected_at < NOW
    assert expected(week(arrivals(43, 31, 19))) == ()


def test_whoever_says_when_it_comes_is_believed() -> None:
    (found,) = expected(week(arrivals(40, 39, 6, 5, said=(NOW + 3 * DAY, NOW + 10 * DAY))))
    assert (found.expected_at, found.sure, found.said) == (NOW + 3 * DAY, 1.0, True)


def test_the_order_of_the_history_does_not_matter() -> None:
    other = Arrivals("other", (NOW - 9 * DAY, NOW - 5 * DAY), main("other"))
    known = arrivals(17, 12, 5)
    assert expected(week(known, other)) == expected(week(other, known))
