"""Reconcile: silence changes nothing, a run is over only with proof, an intent is void only after its time."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.reconcile import (
    Accept,
    AskStop,
    CloseLane,
    Facts,
    Finish,
    ForceStop,
    Sighting,
    reconcile,
    summary,
)
from scheduler.core.run import Ended, Lane, Outcome, Reserved, Run, Running, RunState, Stopping, Submitting

START, DEADLINE, HELD = 1_000, 5_000, 5_100
VISIBILITY, OVERDUE = 60, 300


def run_in(state: RunState, lanes: int = 1) -> Run:
    seats = tuple(Lane(index, f"job{index}", 1, (index,), 10) for index in range(lanes))
    return Run("uff-job0-0001", "kaggle", seats, START, DEADLINE, HELD, state)


def facts(run: Run, sighting: Sighting | None = None, **changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "run": run,
        "sighting": sighting,
        "reachable": True,
        "results": {},
        "wishes": {},
        "visibility_seconds": VISIBILITY,
        "overdue_seconds": OVERDUE,
        **changes,
    }
    return Facts(**fields)


def test_an_unreachable_platform_changes_nothing_however_late_it_is() -> None:
    for state in (Submitting(START, 1), Running("r", START)):
        fact = facts(run_in(state), reachable=False)
        steps = reconcile([fact], HELD + 10 * OVERDUE)
        assert not any(isinstance(step, Finish) for step in steps)


def test_a_reserved_run_found_at_the_start_of_a_cycle_was_never_sent_and_is_released() -> None:
    (step,) = reconcile([facts(run_in(Reserved(START)))], START + 1)
    assert isinstance(step, Finish)
    assert (step.outcome, step.started) == (Outcome.REJECTED, None)


def test_an_unseen_intent_waits_for_the_visibility_delay_and_a_margin_before_it_is_void() -> None:
    fact = facts(run_in(Submitting(START, 1)))
    patience = VISIBILITY + OVERDUE
    assert reconcile([fact], START + patience) == []
    (step,) = reconcile([fact], START + patience + 1)
    assert isinstance(step, Finish)
    assert step.started is None


def test_an_intent_found_by_its_key_is_adopted() -> None:
    fact = facts(run_in(Submitting(START, 1)), Sighting("running", "remote-7", started=START + 20))
    assert reconcile([fact], START + 30) == [Accept(fact.run, "remote-7", START + 20)]


def test_proof_of_absence_ends_an_intent_without_a_charge() -> None:
    (step,) = reconcile([facts(run_in(Submitting(START, 1)), Sighting("absent", ""))], START + 1)
    assert isinstance(step, Finish)
    assert (step.outcome, step.started) == (Outcome.REJECTED, None)


def test_a_session_that_was_queued_and_is_proven_absent_is_not_charged() -> None:
    (step,) = reconcile([facts(run_in(Running("r", START)), Sighting("absent", "r"))], 2_000)
    assert isinstance(step, Finish)
    assert (step.outcome, step.started) == (Outcome.REJECTED, None)


def test_a_session_that_ended_without_a_result_is_lost_and_charged_as_the_platform_says() -> None:
    fact = facts(run_in(Running("r", START)), Sighting("ended", "r", START + 5, 3_000))
    (step,) = reconcile([fact], 4_000)
    assert isinstance(step, Finish)
    assert (step.outcome, step.started, step.ended) == (Outcome.LOST, START + 5, 3_000)


def test_an_end_the_platform_does_not_date_is_charged_until_it_was_seen_but_not_past_the_hold() -> None:
    sighting = Sighting("ended", "r", START)
    (early,) = reconcile([facts(run_in(Running("r", START)), sighting)], 4_000)
    (late,) = reconcile([facts(run_in(Running("r", START)), sighting)], 90_000)
    assert isinstance(early, Finish)
    assert isinstance(late, Finish)
    assert (early.ended, late.ended) == (4_000, HELD)


def test_each_lane_keeps_its_own_outcome_and_the_gravest_stands_for_the_run() -> None:
    results = {0: {"outcome": "finished", "checkpoint_step": 99}, 1: {"outcome": "failed", "error_class": "oom"}}
    fact = facts(run_in(Running("r", START), lanes=2), Sighting("ended", "r", START, 3_000), results=results)
    (step,) = reconcile([fact], 4_000)
    assert isinstance(step, Finish)
    assert [(lane.outcome, lane.step, lane.error_class) for lane in step.lanes] == [
        (Outcome.FINISHED, 99, None),
        (Outcome.FAILED, None, "oom"),
    ]
    assert step.outcome is Outcome.FAILED


def test_a_lane_with_a_last_word_is_closed_while_its_run_goes_on() -> None:
    fact = facts(
        run_in(Running("r", START), lanes=2),
        Sighting("running", "r", START),
        results={1: {"outcome": "finished", "checkpoint_step": 7}},
    )
    (step,) = reconcile([fact], 2_000)
    assert isinstance(step, CloseLane)
    assert (step.end.index, step.end.outcome) == (1, Outcome.FINISHED)


@pytest.mark.parametrize("claimed", ["lost", "rejected", "cancelled", "nonsense", None])
def test_a_payload_cannot_claim_an_outcome_that_is_ours_to_say(claimed: str | None) -> None:
    fact = facts(run_in(Running("r", START)), Sighting("ended", "r", START, 2_000), results={0: {"outcome": claimed}})
    (step,) = reconcile([fact], 3_000)
    assert isinstance(step, Finish)
    assert step.outcome is Outcome.FAILED


def test_a_session_past_its_deadline_is_ended_from_outside() -> None:
    fact = facts(run_in(Running("r", START)), Sighting("running", "r", START))
    assert reconcile([fact], DEADLINE + OVERDUE) == []
    (step,) = reconcile([fact], DEADLINE + OVERDUE + 1)
    assert isinstance(step, ForceStop)


def test_a_session_that_ignores_a_stop_is_ended_from_outside() -> None:
    state = Stopping("r", START, "hold job0 by ann", since=2_000)
    fact = facts(run_in(state), Sighting("running", "r", START))
    assert reconcile([fact], 2_000 + 2 * OVERDUE) == []
    (step,) = reconcile([fact], 2_001 + 2 * OVERDUE)
    assert isinstance(step, ForceStop)


HOLD = {"job0": ("hold", "ann")}


def test_an_unseen_session_is_not_ended_by_force_before_its_deadline() -> None:
    fact = facts(run_in(Stopping("r", START, "hold job0 by ann", since=2_000)))
    assert reconcile([fact], DEADLINE) == []
    (step,) = reconcile([fact], DEADLINE + OVERDUE + 1)
    assert isinstance(step, ForceStop)


def test_a_session_that_cannot_be_asked_is_ended_where_that_costs_less_and_says_what_is_lost() -> None:
    running = Sighting("running", "r", START, heeds="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), running, wishes=HOLD)], START + 500)
    assert isinstance(step, ForceStop)
    assert step.why == (
        "hold job0 by ann; it cannot be asked to save: the 500 s it trained are lost, waiting would cost 3500 s"
    )


def test_a_session_that_cannot_be_asked_and_has_trained_long_is_waited_for() -> None:
    running = Sighting("running", "r", START, heeds="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), running, wishes=HOLD)], DEADLINE - 500)
    assert isinstance(step, AskStop)
    assert step.why == (
        "hold job0 by ann; it cannot be asked to save and ends by itself in 500 s, which costs less than 3500 s lost"
    )
    stopping = run_in(Stopping("r", START, step.why, since=DEADLINE - 500))
    assert reconcile([facts(stopping, running, wishes=HOLD)], DEADLINE) == []


def test_a_queued_session_that_cannot_be_asked_has_nothing_to_lose() -> None:
    queued = Sighting("queued", "r", heeds="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), queued, wishes=HOLD)], DEADLINE - 1)
    assert isinstance(step, ForceStop)


def test_a_wish_for_one_lane_never_ends_the_other() -> None:
    running = Sighting("running", "r", START, heeds="none")
    steps = reconcile([facts(run_in(Running("r", START), lanes=2), running, wishes=HOLD)], START + 1)
    assert [step.lane for step in steps if isinstance(step, AskStop)] == [0]
    assert not any(isinstance(step, ForceStop) for step in steps)


def test_what_we_ended_by_force_is_no_failure_of_the_job() -> None:
    ended = Sighting("ended", "r", START, 3_000, heeds="none")
    stopping = run_in(Stopping("r", START, "hold job0 by ann", since=2_900))
    (step,) = reconcile([facts(stopping, ended)], 3_100)
    assert isinstance(step, Finish)
    assert step.outcome is Outcome.CANCELLED
    assert "is lost: hold job0 by ann" in step.lanes[0].message


def test_a_wish_stops_one_lane_and_wishes_for_all_lanes_stop_the_run() -> None:
    run = run_in(Running("r", START), lanes=2)
    running = Sighting("running", "r", START)
    one = reconcile([facts(run, running, wishes={"job1": ("hold", "ann")})], 2_000)
    both = reconcile([facts(run, running, wishes={"job0": ("hold", "ann"), "job1": ("cancel", "bob")})], 2_000)
    assert [step.lane for step in one if isinstance(step, AskStop)] == [1]
    assert [step.lane for step in both if isinstance(step, AskStop)] == [None]


def test_a_running_session_that_vanished_is_given_up_only_after_its_hold_and_the_delays() -> None:
    fact = facts(run_in(Running("r", START)))
    limit = HELD + VISIBILITY + OVERDUE
    assert not any(isinstance(step, Finish) for step in reconcile([fact], limit))
    (step,) = reconcile([fact], limit + 1)
    assert isinstance(step, Finish)
    assert (step.outcome, step.ended) == (Outcome.LOST, HELD)


def test_an_ended_run_needs_nothing() -> None:
    ended = Ended(Outcome.YIELDED, 2_000, START)
    assert reconcile([facts(run_in(ended), Sighting("ended", "r"))], 3_000) == []


def test_a_run_without_any_lane_outcome_counts_as_lost() -> None:
    assert summary([]) is Outcome.LOST
