"""What the store answers where its questions end: at the very second, with equals, of what was removed or is empty."""

import dataclasses
from typing import Any

import pytest

from jobs.lane_report import LaneReport
from jobs.payload.bounds import SPAN_MAX
from jobs.payload.store.manifest import Component, Manifest, manifest_key
from jobs.spec import JobSpec
from scheduler.core.job import Cancelled, Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Plan
from scheduler.core.reasons import Cause
from scheduler.core.run import Lane, Outcome, Reserved, Run, accept, end, submit
from scheduler.store import (
    checkpoints,
    codec,
    counts,
    events,
    jobs,
    ledger,
    limits,
    outbox,
    plan_json,
    plans,
    rates,
    runs,
)
from scheduler.store.engine import Database

NOW = 1_795_000_000


def a_spec(name: str) -> JobSpec:
    return JobSpec(name=name, role="manager", command=("train",), target_step=100, steps_per_hour=10.0)


def a_manifest(job: str, step: int, attempt: int = 1, trained: int = 60) -> Manifest:
    parts = (Component("model", "a" * 64, 3),)
    return Manifest(job, step, attempt, "run-1", 0, None, NOW, trained, {}, parts)


def add_run(tx: Any, job: str, attempt: int, reserved: int, pool: str = "kaggle") -> Run:
    lane = Lane(0, job, attempt, (0,), None)
    run = Run(f"uff-{job}-{attempt}", pool, (lane,), reserved, reserved + 60, reserved + 60, Reserved(reserved))
    runs.insert(tx, run, reserved)
    return run


def end_run(tx: Any, run: Run, outcome: Outcome, at: int) -> None:
    """Close the run's one lane and then the run."""
    sent = submit(run.state, run.planned_start)
    running = accept(sent, "r", run.planned_start)
    runs.close_lane(tx, run.key, 0, outcome, None, None, "", at)
    runs.change_state(tx, run.key, run.state, sent, "submit", run.planned_start, restore={run.lanes[0].job: ["k"]})
    runs.change_state(tx, run.key, sent, running, "accept", run.planned_start)
    runs.change_state(tx, run.key, running, end(running, outcome, at, run.planned_start), "end", at)


# Pools


@pytest.mark.parametrize(
    ("before", "until", "by", "found"),
    [
        (NOW + 100, NOW + 99, "daemon", "as before"),
        (NOW + 100, NOW + 100, "daemon", "new"),
        (NOW + 100, NOW + 101, "daemon", "new"),
        (NOW + 100, None, "daemon", "new"),
        (None, NOW + 100, "daemon", "as before"),
        (None, None, "daemon", "as before"),
        (NOW, NOW + 1, "daemon", "new"),  # its time is over
        (NOW + 1, NOW, "daemon", "as before"),
        (NOW + 100, NOW + 1, "ann", "new"),
        (None, NOW + 1, "ann", "new"),
    ],
)
def test_the_daemon_shortens_no_closure_that_is_in_force_and_a_person_may(
    database: Database, before: int | None, until: int | None, by: str, found: str
) -> None:
    with database.write() as tx:
        limits.close_pool(tx, "kaggle", before, "a week off", NOW - 50, "ann")
        limits.close_pool(tx, "kaggle", until, "refused: 429", NOW, by)
        told = len(events.tail(tx, kinds=["pool.closed"]))
        standing = limits.standing(tx)["kaggle"]
    if found == "new":
        assert (standing, told) == (limits.Closure("kaggle", until, "refused: 429", NOW), 2)
    else:
        assert (standing, told) == (limits.Closure("kaggle", before, "a week off", NOW - 50), 1)


@pytest.mark.parametrize("until", [NOW + 200, None])
def test_a_closure_that_goes_on_for_the_same_cause_counts_from_its_beginning(
    database: Database, until: int | None
) -> None:
    with database.write() as tx:
        limits.close_pool(tx, "kaggle", until, "timed out", NOW, cause=Cause.REFUSED)
        limits.close_pool(tx, "kaggle", until, "no route", NOW + 10, cause=Cause.REFUSED)
        closure = limits.Closure("kaggle", until, "no route", NOW, Cause.REFUSED)
        assert limits.standing(tx) == {"kaggle": closure}


# Jobs that were removed


@pytest.mark.parametrize("go_on", [False, True])
def test_a_job_that_takes_a_removed_ones_name_begins_anew_or_goes_on(database: Database, go_on: bool) -> None:
    """Attempts count on in both cases: no launch key and no manifest is ever made twice."""
    with database.write() as tx:
        for name in ("ufm", "b", "c"):
            jobs.add(tx, a_spec(name), NOW)
        jobs.note_launch(tx, "ufm", "kaggle")
        jobs.note_failures(tx, "ufm", 2)
        checkpoints.record(tx, a_manifest("ufm", 40), NOW)
        jobs.note_progress(tx, "ufm", 40, manifest_key("ufm", 40, 1))
        for name in ("ufm", "b"):
            rates.put(tx, rates.RateRecord(1.0, 0.1, 1, 600, 60, job=name, pool="kaggle", at=NOW))
        jobs.remove(tx, "ufm", NOW + 1, "ann")
        removed = jobs.find(tx, "ufm")
        assert removed is not None
        assert (removed.removed_at, removed.state, removed.position) == (NOW + 1, Cancelled("ann", NOW + 1), 0)
        assert [(one.spec.name, one.position) for one in jobs.everything(tx)] == [("b", 1), ("c", 2)]
        assert counts.jobs_by_state(tx) == {"queued": 2}
        added = jobs.add(tx, dataclasses.replace(a_spec("ufm"), weight=3.0), NOW + 2, "bob", go_on=go_on)
    assert (added.attempts, added.failures, added.position, added.removed_at) == (1, 0, 3, None)
    assert (added.state, added.created_at, added.spec.weight) == (Queued(NOW + 2), NOW + 2, 3.0)
    with database.read() as tx:
        event = events.tail(tx, kinds=["job.added"], subject="ufm")[-1]
        measured = set(rates.everything(tx))
        start = [found.manifest.step for found in checkpoints.newest(tx, "ufm")]
    assert (event.by, event.data["from"]["state"], event.data["to"]["state"]) == ("bob", "cancelled", "queued")
    reached = (added.done_step, added.checkpoint, added.last_pool, added.fenced_attempt)
    if go_on:
        assert reached == (40, manifest_key("ufm", 40, 1), "kaggle", 0)
        assert (measured, start) == ({("ufm", "kaggle"), ("b", "kaggle")}, [40])
    else:
        assert reached == (0, None, None, 1)
        assert (measured, start) == ({("b", "kaggle")}, [])


# Runs


def test_runs_of_one_second_have_one_order_and_ends_count_at_the_very_second(database: Database) -> None:
    with database.write() as tx:
        for name in ("a", "b", "c"):
            jobs.add(tx, a_spec(name), NOW)
            run = add_run(tx, name, 1, NOW)
            if name != "c":
                end_run(tx, run, Outcome.YIELDED, NOW + (10 if name == "a" else 20))
        assert [run.key for run in runs.recent(tx)] == ["uff-c-1", "uff-b-1", "uff-a-1"]
        assert [run.key for run in runs.page(tx, 2, 1)[0]] == ["uff-b-1", "uff-a-1"]
        assert [run.key for run in runs.since(tx, NOW + 9)] == ["uff-a-1", "uff-b-1", "uff-c-1"]
        assert runs.keys_since(tx, NOW + 10) == {"uff-b-1", "uff-c-1"}
        assert runs.ended_before(tx, NOW + 20) == {"uff-a-1"}
        assert runs.ended_before(tx, NOW + 21) == {"uff-a-1", "uff-b-1"}
        assert counts.live_sessions(tx) == 1
        assert runs.attempts(tx, "a") == {1: runs.Attempt("uff-a-1", 0, NOW)}
        assert runs.restore_keys(tx, "uff-a-1", "a") == ["k"]
        assert runs.restore_keys(tx, "uff-a-1", "b") == []
        assert runs.restore_keys(tx, "uff-c-1", "c") is None


def test_last_words_come_of_the_last_three_sessions_that_went_well(database: Database) -> None:
    outcomes = ["finished", "yielded", "failed", "preempted", "yielded", "lost"]
    with database.write() as tx:
        jobs.add(tx, a_spec("a"), NOW)
        for attempt, outcome in enumerate(outcomes, start=1):
            run = add_run(tx, "a", attempt, NOW + attempt)
            runs.note_heartbeat(tx, run.key, 0, {"step": attempt})
            end_run(tx, run, Outcome(outcome), NOW + attempt)
        add_run(tx, "a", 7, NOW + 7)
        runs.note_heartbeat(tx, "uff-a-7", 0, {"step": 7})
        said = runs.reports_of_good_sessions(tx, "a")
        assert said == [LaneReport(f"uff-a-{attempt}", 0, "a", step=attempt) for attempt in (5, 4, 2)]
        assert [lane.attempt for lane in runs.ended_lanes(tx, "a", limit=2)] == [6, 5]
        assert [codec.load(text)["step"] for text in runs.live_heartbeats(tx)] == [7]


# Checkpoints


def test_checkpoints_are_told_by_what_became_of_them_and_forgotten_when_their_files_are_gone(
    database: Database,
) -> None:
    with database.write() as tx:
        for name in ("ufm", "ucm"):
            jobs.add(tx, a_spec(name), NOW)
            for step in (10, 20):
                checkpoints.record(tx, a_manifest(name, step, trained=10**30), NOW + step)
        gone, bad = manifest_key("ufm", 10, 1), manifest_key("ufm", 20, 1)
        checkpoints.expire(tx, gone, "old", NOW)
        checkpoints.quarantine(tx, bad, "torn", NOW)
        checkpoints.expire(tx, manifest_key("ucm", 10, 1), "old", NOW)
        checkpoints.expire(tx, manifest_key("ucm", 20, 1), "old", NOW)
        assert [one.manifest.key for one in checkpoints.unexpired(tx)] == [bad]
        assert [one.manifest.key for one in checkpoints.unexpired(tx, "ufm")] == [bad]
        assert checkpoints.unexpired(tx, "ucm") == []
        assert checkpoints.unexpired_jobs(tx) == {"ufm"}
        assert checkpoints.keys(tx, ["ufm"]) == {gone, bad}
        assert checkpoints.get(tx, gone).manifest.trained_seconds == SPAN_MAX
        assert counts.checkpoints_by_state(tx) == {"expired": 3, "quarantined": 1}
        checkpoints.mark(tx, [checkpoints.Discard(manifest_key("ucm", 10, 1), "ucm", "old", NOW, NOW)])
        assert checkpoints.forget(tx, NOW + 10, 9) == 0
        assert checkpoints.forget(tx, NOW + 21, 1) == 1
        assert checkpoints.forget(tx, NOW + 21, 9) == 1
        assert checkpoints.keys(tx, ["ufm", "ucm"]) == {bad, manifest_key("ucm", 10, 1)}


# Plans and messages


def test_large_plans_are_kept_as_far_as_their_text_may_go_and_two_in_any_case(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(plan_json.dumped(Plan(NOW, (), ())))
    for most, kept in ((3 * size, 3), (size, 2)):
        monkeypatch.setattr(plans, "KEPT_CHARACTERS", most)
        with database.write() as tx:
            for number in range(20):
                plans.save(tx, Plan(NOW + number, (), ()), NOW)
            left = tx.exec_driver_sql("SELECT count(*), max(made_at) FROM plans").one()
        assert tuple(left) == (kept, NOW + 19)


def test_messages_that_fail_again_and_again_are_stuck_and_what_was_sent_is_forgotten_but_not_that_it_was(
    database: Database,
) -> None:
    with database.write() as tx:
        for period in ("1", "2", "3"):
            outbox.add(tx, "weekly", period, "mail", {"text": period}, NOW)
        first, second, third = (message.id for message in outbox.pending(tx, NOW))
        for wait in (60, 0):
            outbox.failed(tx, first, NOW + wait, "no route")
        outbox.failed(tx, second, NOW, "no route")
        assert outbox.stuck(tx, 2) == [outbox.StuckMessage("mail", 1, 2, NOW, "no route")]
        assert counts.messages_waiting(tx) == 3
        for number, message in enumerate((first, second), start=1):
            outbox.sent(tx, message, NOW + number)
        assert [outbox.waits(tx, message) for message in (first, second, third)] == [False, False, True]
        assert counts.messages_waiting(tx) == 1
        assert outbox.sent_by_period(tx, "weekly") == {
            "1": {"mail": NOW + 1},
            "2": {"mail": NOW + 2},
            "3": {"mail": None},
        }
        tried = tx.exec_driver_sql("SELECT attempts, why FROM outbox ORDER BY id").all()
        assert [tuple(row) for row in tried] == [(3, ""), (2, ""), (0, "")]
        assert [outbox.empty(tx, before, 9) for before in (NOW + 1, NOW + 2, NOW + 2)] == [0, 1, 0]
        assert outbox.find(tx, "weekly", "1", "mail") == (NOW + 1, {})
        assert outbox.find(tx, "weekly", "2", "mail") == (NOW + 2, {"text": "2"})
        assert outbox.find(tx, "weekly", "4", "mail") is None


# Totals


def test_totals_count_what_monitoring_shows(database: Database) -> None:
    with database.write() as tx:
        for name in ("b", "a", "c"):
            jobs.add(tx, a_spec(name), NOW)
        jobs.change_state(tx, "c", Queued(NOW), Cancelled("ann", NOW), "cancelled", NOW)
        jobs.note_progress(tx, "a", 30, None)
        end_run(tx, add_run(tx, "a", 1, NOW), Outcome.YIELDED, NOW)
        end_run(tx, add_run(tx, "a", 2, NOW), Outcome.YIELDED, NOW)
        end_run(tx, add_run(tx, "b", 1, NOW, "desk"), Outcome.LOST, NOW)
        add_run(tx, "b", 2, NOW)
        for kind, run, seconds in (
            (EntryKind.HOLD, "uff-a-1", 90),
            (EntryKind.SPEND, "uff-a-1", 50),
            (EntryKind.SPEND, "uff-a-2", 7),
            (EntryKind.ADJUST, "uff-a-1", 1),
        ):
            ledger.append(tx, [LedgerEntry(kind, "kaggle", run, NOW, NOW + seconds, NOW)])
        assert counts.progress(tx) == [("b", 0, 100), ("a", 30, 100)]
        assert counts.lanes_by_outcome(tx) == {("desk", "lost"): 1, ("kaggle", "yielded"): 2}
        assert counts.spent_seconds(tx) == {"kaggle": 57}
        assert counts.jobs_by_state(tx) == {"queued": 2, "cancelled": 1}
