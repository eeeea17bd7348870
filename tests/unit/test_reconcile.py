"""Reconcile: silence changes nothing, a run is over only with proof, an intent is void only after its time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jobs.lane_report import LaneReport, read_report
from scheduler.core.reconcile import (
    Accept,
    AskStop,
    CloseLane,
    Facts,
    Finish,
    ForceStop,
    Sighting,
    reconcile,
)
from scheduler.core.run import (
    Ended,
    Lane,
    Outcome,
    Reserved,
    Run,
    Running,
    RunState,
    Stopping,
    Submitting,
)

START, DEADLINE, HELD = 1_000, 5_000, 5_100
VISIBILITY, OVERDUE = 60, 300


def run_in(state: RunState, lanes: int = 1) -> Run:
    planned_lanes = tuple(Lane(index, f"job{index}", 1, (index,), 10) for index in range(lanes))
    return Run("uff-job0-0001", "kaggle", planned_lanes, START, DEADLINE, HELD, state)


def facts(run: Run, sighting: Sighting | None = None, **changes: Any) -> Facts:
    fields: dict[str, Any] = {
        "run": run,
        "sighting": sighting,
        "reachable": True,
        "results": {},
        "wishes": {},
        "visibility_seconds": VISIBILITY,
        "overdue_seconds": OVERDUE,
        "begun": frozenset(range(len(run.lanes))),
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
    results = {
        0: LaneReport("r", 0, "ufm", outcome="finished", checkpoint_step=99),
        1: LaneReport("r", 1, "ucm", outcome="failed", error_class="oom"),
    }
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
        results={1: LaneReport("r", 1, "ucm", outcome="finished", checkpoint_step=7)},
    )
    (step,) = reconcile([fact], 2_000)
    assert isinstance(step, CloseLane)
    assert (step.end.index, step.end.outcome) == (1, Outcome.FINISHED)


@pytest.mark.parametrize("claimed", ["lost", "rejected", "cancelled", "nonsense", None])
def test_a_payload_cannot_claim_an_outcome_that_is_ours_to_say(claimed: str | None) -> None:
    said, _ = read_report({"outcome": claimed}, "r", 0, "ufm", last_word=True)
    fact = facts(run_in(Running("r", START)), Sighting("ended", "r", START, 2_000), results={0: said})
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


@pytest.mark.parametrize("reachable", [False, True])
@pytest.mark.parametrize("state", [Running("r", START), Stopping("r", START, "hold job0 by ann", since=2_000)])
def test_a_session_that_is_not_seen_is_never_ended_by_force(state: Running | Stopping, reachable: bool) -> None:
    steps = reconcile([facts(run_in(state), reachable=reachable)], DEADLINE + OVERDUE + 1)
    assert not any(isinstance(step, ForceStop) for step in steps)


def test_a_session_that_cannot_be_asked_is_ended_where_that_costs_less_and_says_what_is_lost() -> None:
    running = Sighting("running", "r", START, stop_channel="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), running, wishes=HOLD)], START + 500)
    assert isinstance(step, ForceStop)
    assert step.why == (
        "hold job0 by ann; it cannot be asked to save: the 500 s it trained are lost, waiting would cost 3500 s"
    )


def test_a_session_that_cannot_be_asked_and_has_trained_long_is_waited_for() -> None:
    running = Sighting("running", "r", START, stop_channel="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), running, wishes=HOLD)], DEADLINE - 500)
    assert isinstance(step, AskStop)
    assert step.why == (
        "hold job0 by ann; it cannot be asked to save and ends by itself in 500 s, which costs less than 3500 s lost"
    )
    stopping = run_in(Stopping("r", START, step.why, since=DEADLINE - 500))
    assert reconcile([facts(stopping, running, wishes=HOLD)], DEADLINE) == []


def test_a_queued_session_that_cannot_be_asked_has_nothing_to_lose() -> None:
    queued = Sighting("queued", "r", stop_channel="none")
    (step,) = reconcile([facts(run_in(Running("r", START)), queued, wishes=HOLD)], DEADLINE - 1)
    assert isinstance(step, ForceStop)


def test_a_wish_for_one_lane_never_ends_the_other() -> None:
    running = Sighting("running", "r", START, stop_channel="none")
    steps = reconcile([facts(run_in(Running("r", START), lanes=2), running, wishes=HOLD)], START + 1)
    assert [step.lane for step in steps if isinstance(step, AskStop)] == [0]
    assert not any(isinstance(step, ForceStop) for step in steps)


def test_what_we_ended_by_force_is_no_failure_of_the_job() -> None:
    ended = Sighting("ended", "r", START, 3_000, stop_channel="none")
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


LEFT = 2_000  # the last word of a session that a platform shows as over, and nobody tells since when


def charged_until(now: int, *words: int | None, ran_at: int | None = None, **sighting: Any) -> int:
    run = run_in(Running("r", START), lanes=max(1, len(words)))
    results = {
        index: LaneReport(run.key, index, f"job{index}", outcome="yielded", ended_at=word)
        for index, word in enumerate(words)
    }
    seen = Sighting("ended", "r", START, **sighting)
    (step,) = reconcile([facts(run, seen, results=results, ran_at=ran_at)], now)
    assert isinstance(step, Finish)
    return step.ended


def test_a_session_whose_end_nobody_tells_is_charged_until_its_last_word_and_what_the_platform_may_take() -> None:
    overrun = HELD - DEADLINE
    assert charged_until(HELD + 9_999, LEFT) == LEFT + overrun, "however late we look"
    assert charged_until(HELD + 9_999, LEFT, LEFT - 500) == LEFT + overrun, "the last of its lanes counts"
    assert charged_until(LEFT + 10, LEFT) == LEFT + 10, "never after we saw its end"
    assert charged_until(HELD + 9_999, 10**12) == HELD, "words are believed downward only"
    assert charged_until(HELD + 9_999, START - 3_600) == START + overrun, "it ended at once, by a clock that is behind"
    assert charged_until(HELD + 9_999, START - 3_601) == HELD, "and not from long before it began"
    assert charged_until(HELD + 9_999, LEFT, None) == HELD, "a lane without one may have trained on"
    assert charged_until(HELD + 9_999) == HELD


def test_a_session_that_was_seen_to_run_after_its_last_word_is_charged_until_then() -> None:
    assert charged_until(HELD + 9_999, LEFT, ran_at=4_000) == 4_000 - VISIBILITY, "a list may be so old"


def test_what_the_platform_tells_of_an_end_wins_and_what_it_only_bounds_does_not() -> None:
    assert charged_until(HELD + 9_999, LEFT, ended=HELD + 500) == HELD + 500
    assert charged_until(HELD + 9_999, LEFT, ended=HELD + 500, exact=False) == LEFT + HELD - DEADLINE
    assert charged_until(HELD + 9_999, ended=HELD + 500, exact=False) == HELD + 500
    assert charged_until(HELD + 9_999, ended=LEFT - 500, exact=False) == LEFT - 500


def test_silence_of_an_answer_counts_from_when_it_was_asked_for() -> None:
    """A question that was put before a launch, or before a session was due to be over, says nothing of it."""
    patience = VISIBILITY + OVERDUE
    launched = run_in(Submitting(START, 1))
    assert reconcile([facts(launched, asked_at=START + patience)], START + 10 * patience) == []
    assert reconcile([facts(launched, asked_at=START + patience + 1)], START + 10 * patience) != []
    running, over = run_in(Running("r", START)), HELD + patience
    late = over + 9_999
    assert not any(isinstance(step, Finish) for step in reconcile([facts(running, asked_at=over)], late))
    assert any(isinstance(step, Finish) for step in reconcile([facts(running, asked_at=over + 1)], late))


@pytest.mark.parametrize("closed_before", [False, True], ids=["with it", "before it"])
def test_a_session_whose_command_failed_does_not_end_for_exit_code_0(closed_before: bool) -> None:
    """A place calls a session well done whose agent ended well; the lane's end may lie cycles before."""
    why, told = "the command failed with exit status 1", "Traceback (most recent call last):\nKeyError: 'id'"
    run = run_in(Running("r", START))
    results: dict[int, LaneReport] = {}
    if closed_before:
        run = replace(run, lanes=(replace(run.lanes[0], outcome=Outcome.FAILED, error_class="code", message=why),))
    else:
        results = {0: LaneReport("r", 0, "job0", outcome="failed", why=why, error_class="code", message=told)}
        why += f": KeyError: 'id'; {told}"  # what went wrong comes first
    over = facts(run, Sighting("ended", "r", START, 2_000, detail="exit code 0"), results=results)
    (step,) = [one for one in reconcile([over], 2_000) if isinstance(one, Finish)]
    assert step.outcome == Outcome.FAILED
    assert step.why == why


ENDED = Sighting("ended", "r", START, 3_000)


@pytest.mark.parametrize(
    ("state", "sighting", "now"),
    [
        (Submitting(START, 1), None, HELD + 9_999),
        (Submitting(START, 1), ENDED, 4_000),
        (Running("r", START), ENDED, 4_000),
        (Running("r", START), None, HELD + VISIBILITY + OVERDUE + 1),
        (Running("r", START), Sighting("running", "r", START), 2_000),
    ],
    ids=["unseen", "over before it was seen", "over", "gone", "one lane left"],
)
def test_nothing_is_settled_before_the_store_has_told_all_that_is_in_it(
    state: RunState, sighting: Sighting | None, now: int
) -> None:
    said = {1: LaneReport("r", 1, "job1", outcome="finished", checkpoint_step=7)}
    whole = facts(run_in(state, lanes=2), sighting, results=said)
    assert any(isinstance(step, Finish | CloseLane) for step in reconcile([whole], now))
    assert not any(isinstance(step, Finish | CloseLane) for step in reconcile([replace(whole, complete=False)], now))


def test_an_intent_that_no_list_names_but_that_has_written_to_the_store_runs() -> None:
    fact = facts(run_in(Submitting(START, 1)), heard=True)
    assert reconcile([fact], START + VISIBILITY + OVERDUE + 1) == [Accept(fact.run, fact.run.key, START)]


def test_only_what_a_platform_tells_is_proof() -> None:
    """What time alone settled may turn out otherwise, so it is watched."""
    late = HELD + VISIBILITY + OVERDUE + 1
    asked = [
        facts(run_in(Submitting(START, 1))),
        facts(run_in(Running("r", START))),
        facts(run_in(Submitting(START, 1)), Sighting("absent", "")),
        facts(run_in(Running("r", START)), Sighting("absent", "r")),
        facts(run_in(Running("r", START)), ENDED),
    ]
    proven = [step.proven for step in reconcile(asked, late) if isinstance(step, Finish)]
    assert proven == [False, False, True, True, True]


def test_a_meter_began_when_the_platform_says_else_when_it_was_accepted_else_as_planned() -> None:
    untold = Sighting("ended", "r", None, 3_000)
    asked = [
        facts(run_in(Running("r", START + 50)), replace(untold, started=START + 70)),
        facts(run_in(Running("r", START + 50)), untold),
        facts(run_in(Stopping("r", START + 60, "", START + 90)), untold),
        facts(run_in(Submitting(START + 9, 1)), untold),
        facts(run_in(Running("r", START + 50)), replace(untold, ended=START)),
    ]
    assert [(step.started, step.ended) for step in reconcile(asked, 4_000) if isinstance(step, Finish)] == [
        (START + 70, 3_000),
        (START + 50, 3_000),
        (START + 60, 3_000),
        (START, 3_000),
        (START + 50, START + 50),  # no session is shorter than nothing
    ]


def test_only_lanes_that_still_train_are_asked_and_no_run_twice() -> None:
    running, wishes = Sighting("running", "r", START), {"job0": ("hold", "ann"), "job1": ("hold", "ann")}
    run = run_in(Running("r", START), lanes=2)
    closed = replace(run, lanes=(replace(run.lanes[0], outcome=Outcome.FINISHED), run.lanes[1]))
    said = {0: LaneReport("r", 0, "job0", outcome="finished", checkpoint_step=7)}

    def asked(fact: Facts) -> list[int | None]:
        return [step.lane for step in reconcile([fact], 2_000) if isinstance(step, AskStop)]

    assert asked(facts(closed, running, wishes=HOLD)) == []
    assert asked(facts(closed, running, wishes=wishes)) == [None]
    assert asked(facts(run, running, results=said, wishes=HOLD)) == []
    assert asked(facts(replace(run, state=Stopping("r", START, "", 1_900)), running, wishes=wishes)) == []


def test_where_force_costs_as_much_as_waiting_it_is_waited_for() -> None:
    middle = (START + DEADLINE) // 2
    running = Sighting("running", "r", START, stop_channel="none")
    stopping = facts(run_in(Stopping("r", START, "hold job0 by ann", since=middle)), running)
    waiting = facts(run_in(Running("r", START)), running, wishes=HOLD)
    assert [type(step) for step in reconcile([stopping, waiting], middle - 1)] == [ForceStop, ForceStop]
    assert [type(step) for step in reconcile([stopping, waiting], middle)] == [AskStop]


def test_a_session_that_could_have_saved_and_left_nothing_is_lost_though_a_stop_was_asked_for() -> None:
    fact = facts(run_in(Stopping("r", START, "hold job0 by ann", since=2_900)), ENDED)
    (step,) = reconcile([fact], 3_100)
    assert isinstance(step, Finish)
    assert (step.outcome, step.lanes[0].error_class) == (Outcome.LOST, "killed")


def test_what_a_session_left_and_nobody_waits_for_is_told_before_its_own_words() -> None:
    fact = facts(run_in(Running("r", START)), ENDED, lost="step 172")
    words = [LaneReport("r", 0, "job0", outcome="failed", message=said) for said in ("deadline", "x" * 5_000)]
    steps = reconcile([replace(fact, results={0: word}) for word in words], 4_000)
    messages = [step.lanes[0].message for step in steps if isinstance(step, Finish)]
    assert messages == ["lost: step 172; deadline", f"lost: step 172; {'x' * 1_984}"]
