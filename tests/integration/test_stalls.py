"""A job that burns hours for nothing is told of at once, tried once more, and then waits for a person."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs.nouns.window import HOUR
from jobs.spec import JobSpec, Stall
from scheduler.core.job import Active, Failed, Held, Queued
from scheduler.core.reasons import NotReleased
from scheduler.core.run import WRONG_DEVICE
from scheduler.notify.rules import alert_message, alerts_in
from scheduler.service.cycle.cycle import Cycle
from scheduler.service.facts.overheads import Overheads
from scheduler.service.outside.ports import Ports
from scheduler.service.requests import queue
from scheduler.store import conditions, plans, rates, runs
from scheduler.store.engine import Database
from tests.lab.stalling import DESK, NOW, UFM, World


@pytest.fixture
def make_world(make_ports: Callable[..., Ports], database: Database) -> Callable[..., World]:
    return lambda **stall: World(make_ports, database, replace(UFM, stall=Stall(**stall)))


@pytest.mark.parametrize("rule", ["stalled", "no_checkpoint", "diverged"])
def test_the_first_time_is_told_at_once_and_tried_again_the_second_waits_for_a_person(
    make_world: Callable[..., World], journal: Any, rule: str
) -> None:
    world = make_world()
    before = world.now
    first = world.stalls(rule)
    assert isinstance(first, Queued)
    assert first.retry_at is not None
    assert first.retry_at > before + HOUR, "which is when the session ended"
    [event] = world.told("job.stalled")
    assert (event.subject, event.data["rule"], event.data["run"]) == ("ufm", rule, "uff-ufm-0001")
    assert any(line.startswith("warning job.stalled") for line in journal.lines)
    assert "made no progress" in alert_message(alerts_in([event], 0))["text"]
    assert world.launches() == 2
    second = world.stalls(rule)
    assert isinstance(second, Held)
    assert second.by == "the scheduler"
    assert "2 sessions in a row made no progress" in second.why
    assert "no new step in 30 min" in second.why
    assert "stall." in second.why or "setup" in second.why, "it says what to do"
    assert world.launches() == 2, "nothing is launched until a person says so"
    assert isinstance(world.state(), Held)


def test_a_crash_whose_words_change_is_reported_at_the_second_time_and_each_wait_names_its_error(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    world.end(50, outcome="failed", error_class="code", message="Traceback\nKeyError: 'seed 17'")
    assert world.told("job.crashes") == []
    failed = world.end(50, outcome="failed", error_class="code", message="Traceback\nValueError: row of 18")
    assert isinstance(failed, Queued)
    [event] = world.told("job.crashes")
    assert (event.subject, event.data["why"]) == ("ufm", "ValueError: row of 18")
    message = alert_message(alerts_in([event], 0))["text"]
    assert "two sessions in a row failed within a minute of their start" in message
    assert "ValueError: row of 18" in message
    world.end(50, outcome="failed", error_class="code", message="Traceback\nTypeError: row of 19")
    assert len(world.told("job.crashes")) == 2
    assert world.told("job.stalled") == []


def test_another_device_closes_no_pool_that_promises_none(make_world: Callable[..., World], journal: Any) -> None:
    make_world().end(61, outcome="failed", error_class=WRONG_DEVICE, message="no T4")
    assert [line for line in journal.lines if line.startswith("error")] == []


def test_failures_after_more_than_a_minute_are_no_crash_of_the_start(make_world: Callable[..., World]) -> None:
    world = make_world()
    for number in (1, 2, 3):
        world.end(61, outcome="failed", error_class="code", message=f"{'abc'[number - 1]}Error")
    assert world.told("job.crashes") == []


def test_the_reason_to_wait_names_the_error(make_world: Callable[..., World]) -> None:
    world = make_world()
    key = list(world.cloud.sessions)[-1]
    at = world.now + 50
    world.cloud.cut(key, at - 1, "exit code 0")
    document = {"outcome": "failed", "error_class": "code", "message": "Traceback\nKeyError: 'text'", "ended_at": at}
    world.ports.artifacts.put(f"runs/{key}/lane-0/result.json", json.dumps(document).encode())
    world.ports.clock.present = at  # type: ignore[attr-defined]
    world.cycle.run()
    world.ports.clock.present += 1  # type: ignore[attr-defined]
    world.cycle.run()
    with world.database.read() as tx:
        reason = plans.reason(tx, "ufm")
    assert isinstance(reason, NotReleased)
    assert reason.why == "waits after a failure (KeyError: 'text')"


def test_one_rule_after_another_is_no_excuse(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.stalls("no_checkpoint")
    assert isinstance(world.stalls("stalled"), Held)


def test_another_error_between_two_stalls_is_no_excuse(make_world: Callable[..., World]) -> None:
    """A job that fails now this way, now that way, and gets nowhere, burnt hours without end (seed 1000323)."""
    world = make_world()
    world.stalls("no_checkpoint")
    assert isinstance(world.end(60, outcome="failed", error_class="data", message="shard 7 is short"), Queued)
    assert isinstance(world.stalls("no_checkpoint"), Held)


def test_progress_between_two_stalls_forgives_the_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.stalls()
    assert isinstance(world.stalls(step=40), Queued)
    assert isinstance(world.stalls(), Held)


def test_a_person_who_releases_it_gives_it_two_more_sessions(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.stalls()
    world.stalls()
    queue.release(world.database, "ufm", world.now, "ann")
    world.cycle.run()
    assert isinstance(world.stalls(), Queued)
    assert isinstance(world.stalls(), Held)


def test_the_same_error_twice_waits_for_a_person_instead_of_five_sessions(make_world: Callable[..., World]) -> None:
    world = make_world()
    crash: dict[str, Any] = {"outcome": "failed", "error_class": "code", "why": "the command failed with exit status 1"}
    assert isinstance(world.end(60, **crash, message="step 17\nKeyError: 'text' at 0x7f31"), Queued)
    held = world.end(60, **crash, message="step 912\nKeyError: 'text' at 0x7e90")
    assert isinstance(held, Held)
    assert "2 sessions in a row ended in the same error (code)" in held.why
    assert "KeyError: 'text'" in held.why


def test_errors_that_differ_are_tried_until_there_are_too_many(make_world: Callable[..., World]) -> None:
    world = make_world()
    for message in ("KeyError: a", "ValueError: b", "KeyError: c", "IndexError: d"):
        assert isinstance(world.end(60, outcome="failed", error_class="code", message=message), Queued)
    last = world.end(60, outcome="failed", error_class="code", message="TypeError: e")
    assert isinstance(last, Failed)


@pytest.mark.parametrize("allowed", [0, 4])
def test_how_often_the_same_error_may_come_is_the_jobs_to_say(make_world: Callable[..., World], allowed: int) -> None:
    world = make_world(same_error=allowed)
    ends = [world.end(60, outcome="failed", error_class="code", message="KeyError: a") for _ in range(allowed or 5)]
    assert all(isinstance(state, Queued) for state in ends[:-1])
    assert isinstance(ends[-1], Held if allowed else Failed)


@pytest.mark.parametrize("error_class", ["device", "wrong_device", "store", "network"])
def test_what_a_place_does_to_sessions_is_not_held_against_the_job(
    make_world: Callable[..., World], error_class: str
) -> None:
    world = make_world()
    for _ in range(3):
        state = world.end(60, outcome="failed", error_class=error_class, message="no such host")
        assert isinstance(state, Queued)


@pytest.mark.parametrize("between", ["preempted", "yielded"])
def test_a_session_that_shows_nothing_between_two_equal_errors_neither_counts_nor_forgives(
    make_world: Callable[..., World], between: str
) -> None:
    """A session too short for its set-up once broke every row: hours burnt for nothing for ever (seed 1000064)."""
    world = make_world()
    crash: dict[str, Any] = {"outcome": "failed", "error_class": "code", "message": "KeyError: a"}
    world.end(60, **crash)
    assert not isinstance(world.end(60, outcome=between, why="deadline, before training began"), Held)
    assert isinstance(world.end(60, **crash), Held)


def test_progress_between_two_equal_errors_forgives_the_first(make_world: Callable[..., World]) -> None:
    world = make_world()
    crash: dict[str, Any] = {"outcome": "failed", "error_class": "code", "message": "KeyError: a"}
    world.end(60, **crash)
    world.end(60, step=50, outcome="yielded", why="deadline")
    assert isinstance(world.end(60, **crash), Queued)


def _setup(world: World, job: JobSpec) -> int:
    with world.database.read() as tx:
        return Overheads(rates.everything(tx)).of(job, DESK).setup_seconds


@pytest.mark.parametrize(
    "result",
    [
        {"outcome": "yielded", "why": "deadline, before training began"},
        {"outcome": "failed", "error_class": "no_checkpoint"},
        {"outcome": "failed", "error_class": "stalled"},
        {"outcome": "failed", "error_class": "code"},
    ],
)
def test_what_a_job_never_reached_is_no_measurement_for_others(
    make_world: Callable[..., World], result: dict[str, Any]
) -> None:
    """Two thousand seconds without a word once made every other job's set-up two thousand seconds long."""
    world = make_world()
    other = replace(UFM, name="ucm")
    before = _setup(world, other)
    world.end(2_000, **result)
    assert _setup(world, other) == before


@pytest.mark.parametrize(
    ("result", "learns"),
    [
        ({"outcome": "yielded", "why": "deadline, before training began"}, True),
        ({"outcome": "failed", "error_class": "no_checkpoint"}, True),
        ({"outcome": "preempted"}, True),
        ({"outcome": "failed", "error_class": "stalled"}, False),
        ({"outcome": "failed", "error_class": "code"}, False),
        ({"outcome": "yielded", "checkpoint_step": 40, "restored_step": None}, False),
    ],
)
def test_a_job_believes_of_itself_that_it_may_need_longer_only_when_it_was_cut_off(
    make_world: Callable[..., World], result: dict[str, Any], learns: bool
) -> None:
    """A set-up that a deadline cut off took so long at least; a command that was stopped, or saved, shows none."""
    world = make_world()
    before = _setup(world, UFM)
    world.end(2_000, **result)
    assert (_setup(world, UFM) > before) is learns


def test_a_job_that_has_trained_here_learns_no_set_up_from_a_session_that_left_nothing(
    make_world: Callable[..., World],
) -> None:
    world = make_world()
    well: dict[str, Any] = {"setup_seconds": 300, "steps_per_second": 0.03, "checkpoint_seconds": 20.0}
    world.end(HOUR, step=40, outcome="yielded", checkpoint_step=40, **well)
    before = _setup(world, UFM)
    left_nothing: dict[str, Any] = {"checkpoint_step": 40, "restored_step": 40}
    world.end(3_000, outcome="failed", error_class="no_checkpoint", command_at=world.now, **left_nothing)
    assert _setup(world, UFM) == before
    world.end(3_000, outcome="yielded", why="deadline, before training began", **left_nothing)
    assert _setup(world, UFM) > before, "it was cut off while the checkpoint was brought"


def _orders(world: World) -> dict[str, Any]:
    """What the newest session was told of its patience."""
    session = world.cloud.sessions[list(world.cloud.sessions)[-1]]
    return dict(session.request.launch["lanes"][0]["stall"])


def test_bounds_grow_from_what_is_known(make_world: Callable[..., World]) -> None:
    world = make_world()
    first = _orders(world)
    assert first["first_progress_seconds"] == 2 * HOUR, "it may be a command that works without a word"
    assert first["no_progress_seconds"] == 1_800
    assert first["loss_nan"] == 3
    assert 840 < first["checkpoint_seconds"] < 1_800
    well: dict[str, Any] = {
        "setup_seconds": 300,
        "steps_per_second": 0.03,
        "checkpoint_seconds": 20.0,
        "longest_quiet_seconds": 1_000,
    }
    world.end(HOUR, step=40, outcome="yielded", checkpoint_step=40, **well)
    second = _orders(world)
    assert 900 <= second["first_progress_seconds"] < 2_400, "it reports: four set-ups"
    assert second["no_progress_seconds"] == 4_000
    with world.database.read() as tx:
        assert runs.reports_of_good_sessions(tx, "ufm")[0].longest_quiet_seconds == 1_000


def test_sessions_that_were_cut_off_make_no_bound_longer_than_a_session(make_world: Callable[..., World]) -> None:
    """A silent job's sessions each seemed too short to tell, and no two of them were ever one too many."""
    world = make_world()
    for _ in range(3):
        world.end(DESK.session_cap_seconds, outcome="yielded", why="deadline, before training began")
    assert _orders(world)["checkpoint_seconds"] < 0.8 * DESK.session_cap_seconds


def test_a_job_that_saves_without_a_word_is_not_asked_for_one(make_world: Callable[..., World]) -> None:
    world = make_world()
    world.end(HOUR, step=40, outcome="yielded", checkpoint_step=40, restored_step=None)
    assert _orders(world)["first_progress_seconds"] is None
    assert _orders(world)["checkpoint_seconds"] is not None


def test_every_bound_is_the_jobs_to_say(make_world: Callable[..., World]) -> None:
    chosen = {"first_progress_seconds": 300, "no_progress_seconds": 0, "checkpoint_seconds": 7_200, "loss_nan": 0}
    world = make_world(**chosen, idle_seconds=1_200, idle_below=0.1)
    assert _orders(world) == {
        "first_progress_seconds": 300,
        "no_progress_seconds": None,
        "checkpoint_seconds": 7_200,
        "loss_nan": None,
        "idle_seconds": 1_200,
        "idle_below": 0.1,
    }
    assert isinstance(world.state(), Active)


def _beat(world: World, after: int, **said: Any) -> bool:
    """Let the newest session report after a while and the daemon look; return whether it was asked to leave."""
    key = list(world.cloud.sessions)[-1]
    world.ports.clock.present += after  # type: ignore[attr-defined]
    report = {"started_at": NOW, "at": world.now - 5, "phase": "training", "step": 7, "setup_seconds": 300, **said}
    world.ports.artifacts.put(f"runs/{key}/lane-0/heartbeat.json", json.dumps(report).encode())
    world.cycle.run()
    return world.ports.artifacts.size(f"runs/{key}/stop") is not None


def test_a_step_that_stands_still_while_heartbeats_go_on_is_seen_by_the_daemon_too(
    make_world: Callable[..., World],
) -> None:
    """Its payload had half an hour to see it; after twice that it is asked to leave, and that counts as a stall."""
    world = make_world()
    assert [_beat(world, 600) for _ in range(7)] == [False] * 7
    assert _beat(world, 600)
    world.cycle = Cycle(world.ports)  # what was asked is stored, and outlives a daemon
    assert isinstance(world.end(60, outcome="yielded", why="whatever a session says"), Queued)
    [event] = world.told("job.stalled")
    assert event.data["rule"] == "stalled"
    assert isinstance(world.stalls(), Held)
    with world.database.read() as tx:
        assert conditions.standing(tx, conditions.STALLED) == [], "its lane is over"


def test_a_session_that_writes_the_daemons_words_itself_is_not_called_stalled(make_world: Callable[..., World]) -> None:
    world = make_world()
    assert not _beat(world, 600)
    why = "stop flag: the daemon saw no new step for too long: the newest is step 7, for 70 min"
    assert not isinstance(world.end(60, outcome="yielded", why=why), Held)
    assert world.told("job.stalled") == []


@pytest.mark.parametrize(
    "change",
    [
        lambda beat: {"step": beat},
        lambda beat: {"checkpoint_step": beat},
        lambda beat: {"phase": "restoring", "seq": beat},
        lambda beat: {"phase": "starting", "step": None, "seq": beat},
        lambda beat: {"at": NOW, "seq": beat},
    ],
    ids=["steps", "saves", "restores", "prepares", "is silent"],
)
def test_what_moves_prepares_or_says_nothing_new_is_not_stuck(
    make_world: Callable[..., World], change: Callable[[int], dict[str, Any]]
) -> None:
    world = make_world()
    assert not any(_beat(world, 600, **change(beat)) for beat in range(12))


def test_a_command_that_was_started_and_never_reports_is_seen_by_the_daemon(make_world: Callable[..., World]) -> None:
    world = make_world(first_progress_seconds=900)
    silent = {"phase": "starting", "step": None, "setup_seconds": None, "command_at": NOW + 60}
    assert [_beat(world, 600, **silent) for _ in range(4)] == [False] * 4
    assert _beat(world, 600, **silent)


def test_the_daemon_asks_nobody_whose_rule_is_off(make_world: Callable[..., World]) -> None:
    world = make_world(no_progress_seconds=0)
    assert not any(_beat(world, 600) for _ in range(12))


@pytest.mark.parametrize(("age", "asked"), [(300, True), (301, False)])
def test_who_was_not_heard_for_longer_than_may_pass_between_reports_is_not_called_stuck(
    make_world: Callable[..., World], age: int, *, asked: bool
) -> None:
    world = make_world()
    assert any(_beat(world, 600, at=world.now + 600 - age, seq=beat) for beat in range(8)) is asked
