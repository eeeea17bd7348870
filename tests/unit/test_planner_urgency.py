"""Urgency: an hour counts for what it brings nearer to its end, and sessions are held long enough to end there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, WEEK, Calendar
from jobs.spec import Gate, Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.urgency import urgencies, with_urgency
from scheduler.planner.verify import verify

NOW = 1_763_769_600  # Saturday 22 November 2025, 00:00 UTC
KAGGLE = Pool("kaggle", "kaggle", "T4", (CalendarQuota("week", 30 * HOUR, Calendar("week", "UTC", 5)),))


def job(name: str, hours: float, weight: float = 1.0, done: float = 0.0) -> JobView:
    return JobView(
        name=name,
        weight=weight,
        target_step=round(hours * HOUR),
        done_step=round(done * HOUR),
        needs=Needs(),
        rates={"kaggle": Rate(1.0)},
        setup_seconds={"kaggle": 720},
        checkpoint_seconds={"kaggle": 60},
        reference_rate=1.0,
    )


def week(*jobs: JobView) -> Snapshot:
    placed = tuple(replace(view, position=number) for number, view in enumerate(jobs))
    return Snapshot(NOW, placed, (PoolView(KAGGLE),), WEEK)


def test_a_remainder_of_seconds_goes_before_new_work() -> None:
    """A session that is mostly set-up is worth its hours when it finishes a model."""
    snapshot = with_urgency(week(job("new", 40, weight=8), job("nearly", 12, weight=2, done=11.99)))
    first = dispatch(snapshot).placements[0]
    assert [planned_lane.job for planned_lane in first.lanes] == ["nearly"]


def test_urgency_is_the_weight_per_hour_left() -> None:
    """Half the hours left make an hour worth twice as much."""
    found = urgencies(week(job("long", 20), job("short", 10)))
    assert found["short"] == pytest.approx(2 * found["long"])


def test_all_work_left_is_worth_what_weights_alone_make_it() -> None:
    """Urgency moves worth between jobs; it makes none."""
    snapshot = with_urgency(week(job("a", 20, 3), job("b", 10), job("c", 1, 5)))
    plain = sum(view.weight * view.remaining_steps for view in snapshot.jobs)
    assert sum(view.importance * view.remaining_steps for view in snapshot.jobs) == pytest.approx(plain)


def test_a_parent_counts_for_what_waits_behind_its_gate() -> None:
    """A long job that lets many short ones start is as urgent as the way to the gate and they together."""
    children = [replace(job(f"child-{n}", 2, 4), gate=Gate("parent", 0.1)) for n in range(4)]
    alone = urgencies(week(job("parent", 100, 1), job("other", 100, 1)))
    gated = urgencies(week(job("parent", 100, 1), job("other", 100, 1), *children))
    assert alone["parent"] == pytest.approx(alone["other"])
    # 16 of weight in 10 hours to the gate and 8 behind it, against 1 in 100 hours.
    assert gated["parent"] / gated["other"] == pytest.approx((16 / 18) / (1 / 100))


def test_a_gate_that_is_passed_adds_nothing() -> None:
    """Once the children may start, the parent counts for itself."""
    child = replace(job("child", 2, 40), gate=Gate("parent", 0.1))
    found = urgencies(week(job("parent", 100, done=10), job("other", 90), child))
    assert found["parent"] == pytest.approx(found["other"])


def test_gates_in_a_circle_have_an_urgency() -> None:
    """A mistake in the gates must not stop the planner."""
    one, two = replace(job("one", 2), gate=Gate("two", 0.5)), replace(job("two", 2), gate=Gate("one", 0.5))
    assert all(found > 0 for found in urgencies(week(one, two)).values())


def test_order_of_the_input_does_not_matter() -> None:
    """The same jobs in another order are as urgent."""
    children = [replace(job(f"child-{n}", 2 + n, 4), gate=Gate("parent", 0.1 * (n + 1))) for n in range(3)]
    snapshot = week(job("parent", 100), *children)
    assert urgencies(snapshot) == urgencies(replace(snapshot, jobs=snapshot.jobs[::-1]))


def test_a_session_that_starts_now_is_held_for_a_slow_job_too() -> None:
    """An uncertain speed makes the session longer, by no more than nine in ten sessions need."""
    uncertain = replace(job("a", 5), rates={"kaggle": Rate(1.0, sigma=0.2)}, setup_sigma={"kaggle": 0.3})
    (sure,) = dispatch(week(job("a", 5))).placements
    (held,) = dispatch(week(uncertain)).placements
    assert held.end - sure.end == round(1.3 * (0.2 * 5 * HOUR + 0.3 * 720) + 60)
    assert verify(week(uncertain), dispatch(week(uncertain))) == []


def test_later_sessions_and_full_ones_are_not_held_longer() -> None:
    """Only what starts now is reserved; what fills its session is cut by the cap as before."""
    uncertain = replace(job("a", 40), rates={"kaggle": Rate(1.0, sigma=0.2)})
    assert [p.end - p.start for p in dispatch(week(uncertain)).placements] == [
        p.end - p.start for p in dispatch(week(job("a", 40))).placements
    ]
