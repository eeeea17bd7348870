"""Sessions that wait, begin late, never train or are taken away: no job pays, and no hour is lost or used twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.lane_report import LaneReport
from scheduler.core.reconcile import AskStop, Begin, Facts, Finish, ForceStop, Postpone, Sighting, reconcile
from scheduler.core.run import CONSEQUENCES, Lane, Outcome, Run, Running, RunState, Stopping, Wait

START, DEADLINE, HELD = 1_000, 5_000, 5_100
VISIBILITY, OVERDUE = 60, 300
ENDED = Sighting("ended", "r", START, 3_000)


def run_in(state: RunState) -> Run:
    return Run("uff-job0-0001", "cluster", (Lane(0, "job0", 1, (0,), 10),), START, DEADLINE, HELD, state)


def facts(run: Run, sighting: Sighting, begun: frozenset[int] = frozenset({0})) -> Facts:
    return Facts(run, sighting, True, {}, {}, VISIBILITY, OVERDUE, begun=begun)


@pytest.mark.parametrize(
    ("sighting", "begun", "outcome", "place_failed"),
    [
        (ENDED, True, Outcome.LOST, False),
        (ENDED, False, Outcome.PREEMPTED, True),
        (replace(ENDED, preempted=True), True, Outcome.PREEMPTED, False),
        (replace(ENDED, preempted=True), False, Outcome.PREEMPTED, False),
    ],
)
def test_a_session_that_never_trained_or_was_taken_away_is_no_failure_of_its_job(
    sighting: Sighting, begun: bool, outcome: Outcome, place_failed: bool
) -> None:
    lanes = frozenset({0}) if begun else frozenset[int]()
    (step,) = reconcile([facts(run_in(Running("r", START)), sighting, begun=lanes)], 3_100)
    assert isinstance(step, Finish)
    assert (step.outcome, step.started, step.ended) == (outcome, START, 3_000)
    assert step.lanes[0].place_failed is place_failed
    assert CONSEQUENCES[outcome].counts_as_failure is (outcome is Outcome.LOST)


LENGTH = DEADLINE - START
EXTENDS = Sighting("queued", "r", wait=Wait("pending", None, length_seconds=LENGTH, deadline=DEADLINE))


def test_a_session_that_waits_and_can_be_extended_moves_its_deadline_on_and_is_not_ended_by_it() -> None:
    run = run_in(Running("r", START))
    for now in (START + 1, DEADLINE, DEADLINE + 10 * OVERDUE):
        assert reconcile([facts(run, EXTENDS)], now) == [Postpone(run, LENGTH, now + LENGTH + LENGTH // 4)]
    moved = replace(run, deadline=DEADLINE + 1_000)
    assert EXTENDS.wait is not None
    granted = replace(EXTENDS, wait=replace(EXTENDS.wait, deadline=DEADLINE + 1_000))
    assert reconcile([facts(moved, granted)], START + 1_000) == []


def test_a_deadline_that_the_platform_was_not_told_of_is_told_again_and_held_no_longer() -> None:
    moved = replace(run_in(Running("r", START)), deadline=DEADLINE + 1_000)
    assert reconcile([facts(moved, EXTENDS)], START + 1_000) == [Postpone(moved, LENGTH, DEADLINE + 1_000)]


def test_a_session_that_a_person_stops_while_it_waits_is_stopped_and_not_moved() -> None:
    waiting = replace(facts(run_in(Running("r", START)), EXTENDS), wishes={"job0": ("hold", "anna")})
    (step,) = reconcile([waiting], DEADLINE)
    assert isinstance(step, AskStop)
    started = Sighting("running", "r", START + 500, deadline=DEADLINE + 500)
    (step,) = reconcile([replace(waiting, sighting=started)], START + 600)
    assert isinstance(step, AskStop)
    stopping = replace(waiting, run=run_in(Stopping("r", START, "hold", START + 600)), sighting=started)
    assert reconcile([stopping], START + 700) == [Begin(stopping.run, START + 500, DEADLINE + 500)]


def test_a_session_that_waits_past_a_deadline_that_stands_is_cancelled() -> None:
    run = run_in(Running("r", START))
    waits = Sighting("queued", "r", wait=Wait("pending", None))
    assert reconcile([facts(run, waits)], DEADLINE + OVERDUE) == []
    (step,) = reconcile([facts(run, waits)], DEADLINE + OVERDUE + 1)
    assert step == ForceStop(run, "past its deadline, and still in its platform's queue")


def test_a_waiting_session_that_was_asked_to_leave_is_not_moved_on() -> None:
    run = run_in(Stopping("r", START, "no room", since=2_000))
    assert reconcile([facts(run, EXTENDS)], 2_100) == []
    assert isinstance(reconcile([facts(run, EXTENDS)], 2_001 + 2 * OVERDUE)[0], ForceStop)


def test_a_session_that_began_late_may_run_until_what_it_was_granted() -> None:
    run, late = run_in(Running("r", START)), 50_000
    running = Sighting("running", "r", late, deadline=late + LENGTH)
    assert reconcile([facts(run, running)], late + 10) == [Begin(run, late, late + LENGTH)]
    moved = replace(run, deadline=late + LENGTH, state=Running("r", late))
    assert reconcile([facts(moved, running)], late + LENGTH + OVERDUE) == []
    (step,) = reconcile([facts(moved, running)], late + LENGTH + OVERDUE + 1)
    assert isinstance(step, ForceStop)


def test_a_start_that_is_known_now_is_recorded_and_one_that_is_told_a_little_otherwise_is_not() -> None:
    run = run_in(Running("r", START))
    assert reconcile([facts(run, Sighting("running", "r", START + 60))], 3_000) == []
    assert reconcile([facts(run, Sighting("running", "r", START + 61))], 3_000) == [Begin(run, START + 61, DEADLINE)]
    assert reconcile([facts(run, Sighting("running", "r"))], 3_000) == []


@pytest.mark.parametrize("word", [None, HELD + 50])
def test_a_session_that_was_seen_to_run_after_all_that_was_held_for_it_is_charged_until_then(word: int | None) -> None:
    results = {0: LaneReport("uff-job0-0001", 0, "job0", outcome="yielded", ended_at=word)}
    ended = facts(run_in(Running("r", START)), Sighting("ended", "r"))
    for ran_at, charged in ((HELD + VISIBILITY + 500, HELD + 500), (HELD + VISIBILITY - 1, HELD)):
        (step,) = reconcile([replace(ended, results=results, ran_at=ran_at)], HELD + 9_999)
        assert isinstance(step, Finish)
        assert step.ended == charged
