"""Every arrow of jobs, runs and versions: the legal ones lead where the diagram says, all others raise."""

from collections.abc import Callable

import pytest

from scheduler.core import job, run
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, IllegalArrow, JobState, Queued
from scheduler.core.reconcile import costs_of_stop, summary
from scheduler.core.run import CONSEQUENCES, Ended, Outcome, Reserved, Run, Running, RunState, Stopping, Submitting
from scheduler.core.version import VERSION_STATES, next_state, split_version

NOW = 1_000

JOB_STATES: dict[str, JobState] = {
    "queued": Queued(since=1, retry_at=2),
    "queued, never failed": Queued(since=1),
    "active": Active("k", since=1),
    "active, hold wished": Active("k", since=1, wish="hold", by="ann"),
    "active, cancel wished": Active("k", since=1, wish="cancel", by="ann"),
    "held": Held("ann", "lunch", since=1),
    "done": Done(at=1),
    "failed": Failed("oom", "out of memory", at=1),
    "cancelled": Cancelled("ann", at=1),
}

JOB_ARROWS: dict[str, Callable[[JobState], JobState]] = {
    "activate": lambda state: job.activate(state, "k2", NOW),
    "requeue": lambda state: job.requeue(state, NOW, retry_at=NOW + 60),
    "finish": lambda state: job.finish(state, NOW),
    "park": lambda state: job.park(state, "rule", "needs a person", NOW),
    "fail": lambda state: job.fail(state, "oom", "out of memory", NOW),
    "hold": lambda state: job.ask_hold(state, "bob", "later", NOW),
    "cancel": lambda state: job.ask_cancel(state, "bob", NOW),
    "release": lambda state: job.release(state, NOW),
    "retry": lambda state: job.retry(state, NOW),
    "restart": lambda state: job.restart(state, NOW),
    "remove": lambda state: job.remove(state, "bob", NOW),
    "add_again": lambda state: job.add_again(state, NOW),
}

# The diagram of scheduler/core/job.py as a table. What is not here must raise.
JOB_LEGAL: dict[tuple[str, str], JobState] = {
    ("activate", "queued"): Active("k2", NOW),
    ("requeue", "active"): Queued(NOW, NOW + 60),
    ("requeue", "active, hold wished"): Held("ann", "", NOW),
    ("requeue", "active, cancel wished"): Cancelled("ann", NOW),
    ("finish", "active"): Done(NOW),
    ("finish", "active, hold wished"): Done(NOW),
    ("finish", "active, cancel wished"): Done(NOW),
    ("finish", "queued"): Done(NOW),
    ("finish", "held"): Done(NOW),
    ("finish", "failed"): Done(NOW),
    ("park", "active"): Held("rule", "needs a person", NOW),
    ("park", "active, hold wished"): Held("rule", "needs a person", NOW),
    ("park", "active, cancel wished"): Cancelled("ann", NOW),
    ("fail", "active"): Failed("oom", "out of memory", NOW),
    ("fail", "active, hold wished"): Failed("oom", "out of memory", NOW),
    ("fail", "active, cancel wished"): Cancelled("ann", NOW),
    ("hold", "queued"): Held("bob", "later", NOW),
    ("hold", "active"): Active("k", 1, "hold", "bob", "later"),
    ("hold", "active, hold wished"): Active("k", 1, "hold", "bob", "later"),
    ("hold", "active, cancel wished"): Active("k", 1, "hold", "bob", "later"),
    ("cancel", "queued"): Cancelled("bob", NOW),
    ("cancel", "active"): Active("k", 1, "cancel", "bob"),
    ("cancel", "active, hold wished"): Active("k", 1, "cancel", "bob"),
    ("cancel", "active, cancel wished"): Active("k", 1, "cancel", "bob"),
    ("cancel", "held"): Cancelled("bob", NOW),
    ("cancel", "failed"): Cancelled("bob", NOW),
    ("release", "active, hold wished"): Active("k", 1),
    ("release", "held"): Queued(NOW),
    ("release", "failed"): Queued(NOW),
    ("release", "cancelled"): Queued(NOW),
    ("release", "active, cancel wished"): Active("k", 1),
    ("retry", "failed"): Queued(NOW),
    ("retry", "queued"): Queued(NOW),
    **{
        ("remove", state): Cancelled("bob", NOW)
        for state in ("queued", "queued, never failed", "held", "done", "failed", "cancelled")
    },
    ("add_again", "cancelled"): Queued(NOW),
    ("activate", "queued, never failed"): Active("k2", NOW),
    ("finish", "queued, never failed"): Done(NOW),
    ("hold", "queued, never failed"): Held("bob", "later", NOW),
    ("cancel", "queued, never failed"): Cancelled("bob", NOW),
}
JOB_LEGAL |= {("restart", name): Queued(NOW) for name, state in JOB_STATES.items() if not isinstance(state, Active)}


@pytest.mark.parametrize("state", JOB_STATES)
@pytest.mark.parametrize("arrow", JOB_ARROWS)
def test_every_arrow_of_a_job(arrow: str, state: str) -> None:
    expected = JOB_LEGAL.get((arrow, state))
    if expected is None:
        with pytest.raises(IllegalArrow, match=f"^{arrow} is not possible from") as caught:
            JOB_ARROWS[arrow](JOB_STATES[state])
        assert caught.value.state == JOB_STATES[state]
    else:
        assert JOB_ARROWS[arrow](JOB_STATES[state]) == expected


def test_every_state_of_a_job_is_in_the_table() -> None:
    assert {type(state) for state in JOB_STATES.values()} == set(JobState.__args__)
    assert {type(state) for state in JOB_LEGAL.values()} == set(JobState.__args__)


RUN_STATES: dict[str, RunState] = {
    "reserved": Reserved(at=1),
    "submitting": Submitting(since=1, attempts=1),
    "running": Running("r", started=5),
    "stopping": Stopping("r", started=5, why="outbid", since=7),
    "ended": Ended(Outcome.YIELDED, at=9, started=5),
}

RUN_ARROWS: dict[str, Callable[[RunState], RunState]] = {
    "submit": lambda state: run.submit(state, NOW),
    "accept": lambda state: run.accept(state, "r2", NOW),
    "stop": lambda state: run.stop(state, "hold", NOW),
}

RUN_LEGAL: dict[tuple[str, str], RunState] = {
    ("submit", "reserved"): Submitting(NOW, 1),
    ("submit", "submitting"): Submitting(1, 2),
    ("accept", "submitting"): Running("r2", NOW),
    ("stop", "running"): Stopping("r", 5, "hold", NOW),
}


@pytest.mark.parametrize("state", RUN_STATES)
@pytest.mark.parametrize("arrow", RUN_ARROWS)
def test_every_arrow_of_a_run(arrow: str, state: str) -> None:
    expected = RUN_LEGAL.get((arrow, state))
    if expected is None:
        with pytest.raises(IllegalArrow, match=f"^{arrow} is not possible from"):
            RUN_ARROWS[arrow](RUN_STATES[state])
    else:
        assert RUN_ARROWS[arrow](RUN_STATES[state]) == expected


@pytest.mark.parametrize("state", RUN_STATES)
@pytest.mark.parametrize("outcome", Outcome)
@pytest.mark.parametrize("started", [5, None])
def test_every_end_of_a_run(outcome: Outcome, state: str, started: int | None) -> None:
    """What was metered may end in any way; what was not was refused or cancelled; what is over is over."""
    never_ran = outcome in {Outcome.REJECTED, Outcome.CANCELLED}
    sent = state in {"running", "stopping"}
    if (sent and (started is not None or never_ran)) or (
        state in {"reserved", "submitting"} and never_ran and not started
    ):
        assert run.end(RUN_STATES[state], outcome, NOW, started) == Ended(outcome, NOW, started)
    else:
        with pytest.raises(IllegalArrow, match=r"^end.* is not possible from"):
            run.end(RUN_STATES[state], outcome, NOW, started)


def test_every_outcome_has_its_consequence() -> None:
    assert set(CONSEQUENCES) == set(Outcome)
    assert {outcome for outcome, found in CONSEQUENCES.items() if not found.charged} == {Outcome.REJECTED}
    failures = {outcome for outcome, found in CONSEQUENCES.items() if found.counts_as_failure}
    assert failures == {Outcome.FAILED, Outcome.LOST}
    assert {outcome for outcome, found in CONSEQUENCES.items() if found.job == "retry"} == failures
    assert {outcome for outcome, found in CONSEQUENCES.items() if found.job == "finish"} == {Outcome.FINISHED}


@pytest.mark.parametrize("outcome", Outcome)
def test_the_gravest_lane_stands_for_the_run(outcome: Outcome) -> None:
    """Every outcome has a place in the order of gravity; a run of which nothing is known is lost."""
    assert summary([outcome]) is outcome
    assert summary([Outcome.FINISHED, outcome]) is outcome
    assert summary([outcome, Outcome.LOST]) is Outcome.LOST
    assert summary([]) is Outcome.LOST


@pytest.mark.parametrize(
    ("name", "attempt", "key"),
    [
        ("uff-main", 1, "uff-uff-main-0001"),
        ("ufm", 12345, "uff-ufm-12345"),
    ],
)
def test_a_launch_key_names_job_and_attempt(name: str, attempt: int, key: str) -> None:
    assert run.launch_key("uff", name, attempt) == key


@pytest.mark.parametrize("name", ["x" * 40, "a.b_c", "Ünï", "..", "a" * 33 + "." * 7])
def test_a_launch_key_is_a_name_that_every_platform_takes(name: str) -> None:
    key = run.launch_key("uff-scheduler"[:12], name, 7)
    assert len(key) <= 50
    assert all(c.isascii() and (c.isdigit() or c.islower() or c == "-") for c in key)
    assert key[0].isalpha()
    assert not key.endswith("-")
    assert key.endswith("-0007")


@pytest.mark.parametrize(
    ("one", "other"),
    [("a.b", "a-b"), ("a_b", "a-b"), ("x" * 39 + "1", "x" * 39 + "2"), ("a", "a-0001"), ("a.", "a")],
)
def test_different_jobs_have_different_launch_keys(one: str, other: str) -> None:
    """A key belongs to one launch for ever, so no two jobs may share it, however alike their names."""
    keys = {run.launch_key("uff-schedule", name, attempt) for name in (one, other) for attempt in (1, 2, 12345)}
    assert len(keys) == 6


def test_a_launch_key_is_cut_at_fifty_characters_and_not_before() -> None:
    """What is cut gets a digest, so that names that begin alike do not share a key; what fits stays as it is."""
    assert run.launch_key("uff", "a" * 41, 1) == f"uff-{'a' * 41}-0001"
    cut = run.launch_key("uff", "a" * 42, 1)
    assert len(cut) == 50
    assert cut.startswith(f"uff-{'a' * 32}-")
    assert cut.endswith("-0001")
    assert len(cut.removesuffix("-0001").rpartition("-")[2]) == 8
    # Hyphens at the place of the cut and at either end of a name go; other letters stay.
    assert "--" not in run.launch_key("uff", "b" * 31 + "-" + "c" * 20, 1)
    assert run.launch_key("uff", "-Xx-", 1).startswith("uff-xx-")


def test_a_run_without_any_lane_outcome_counts_as_lost() -> None:
    assert summary([]) is Outcome.LOST


VERSION_LEGAL = {
    ("evaluate", "candidate"): "evaluating",
    ("evaluate", "rejected"): "evaluating",
    ("evaluate", "inconclusive"): "evaluating",
    ("fail", "evaluating"): "candidate",
    ("accept", "evaluating"): "accepted",
    ("reject", "evaluating"): "rejected",
    ("leave_open", "evaluating"): "inconclusive",
    ("overrule_accept", "candidate"): "accepted",
    ("overrule_accept", "rejected"): "accepted",
    ("overrule_accept", "inconclusive"): "accepted",
    ("overrule_reject", "candidate"): "rejected",
    ("overrule_reject", "accepted"): "rejected",
    ("overrule_reject", "inconclusive"): "rejected",
    ("overrule_reject", "retired"): "rejected",
    ("replace", "accepted"): "retired",
    ("recall", "retired"): "accepted",
    ("return", "accepted"): "rejected",
}


@pytest.mark.parametrize("arrow", sorted({arrow for arrow, _ in VERSION_LEGAL}))
def test_every_arrow_of_a_version(arrow: str) -> None:
    for state in VERSION_STATES:
        expected = VERSION_LEGAL.get((arrow, state))
        if expected is None:
            with pytest.raises(IllegalArrow, match=f"^{arrow} is not possible of a version that is {state}$"):
                next_state(state, arrow)
        else:
            assert next_state(state, arrow) == expected


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("ufm@3", ("ufm", 3)),
        ("a@b@10", ("a@b", 10)),
        ("ufm@999999999", ("ufm", 999_999_999)),
        *((name, None) for name in ("ufm@1000000000", "ufm@0", "ufm@", "@3", "ufm", "ufm@-1", "ufm@٣")),
    ],
)
def test_the_name_of_a_version_is_a_model_and_a_number_from_one(name: str, found: tuple[str, int] | None) -> None:
    assert split_version(name) == found


def test_a_stop_costs_what_was_trained_and_never_less_than_nothing() -> None:
    one = Run("k", "desk", (), 0, 100, 120, Running("r", 0))
    asked = [(None, 40), (33, 40), (47, 40), (47, 101)]
    assert [costs_of_stop(one, began, now) for began, now in asked] == [(0, 60), (7, 60), (0, 60), (54, 0)]
