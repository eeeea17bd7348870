"""A lane's times and decisions, each by itself: what it waits for, asks of its command, and when it gives up."""

from __future__ import annotations

import errno
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.payload.lane.ending import DEADLINE, StallWatch, Stop
from jobs.payload.lane.lane import LaneProcess, Wakeup, Worker
from jobs.payload.lane.meter import checkpoint_times

AT, SECONDS = st.integers(0, 10_000), st.integers(1, 1_000)
PREEMPTED, YIELDED = Stop("preempted", "SIGTERM", 100), Stop("yielded", "stop flag", 100)
DIVERGED = Stop("failed", "the loss is no number", 100, "diverged")


class Recorder:
    """A command, a store or a selector: remembers its calls."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.__dict__ |= answers

    def __getattr__(self, name: str) -> Any:
        def call(*words: Any, **_: Any) -> Any:
            self.calls.append((name, *words))
            return self.__dict__.get(f"{name}_answer")

        return call


def made(**values: Any) -> Any:
    """Return a lane in the middle of its session, with some attributes set by hand."""
    lane: Any = object.__new__(LaneProcess)
    launch = SimpleNamespace(
        run="run-1", deadline=10_000, closing_at=9_000, grace_seconds=60, stop_margin_seconds=40, mtbf_seconds=20_000
    )
    meter = SimpleNamespace(
        closing_seconds=20, expected_checkpoint_seconds=30, saving=False, save_failed="", began_at=10, step=5
    )
    lane.__dict__ |= {
        "_launch": launch,
        "_order": SimpleNamespace(lane=0, whole=False, target_step=100, limits=SimpleNamespace(loss_nan=None)),
        "_meter": meter,
        "_clock": SimpleNamespace(now=lambda: 100, wall_seconds_until=lambda at: at - 100, scale=1.0),
        "_transport": Recorder(),
        "_uploads": SimpleNamespace(
            pending=dict, newest=None, restored=None, held_back=lambda: "", next_checkpoint=lambda *_, **__: None
        ),
        "_status": SimpleNamespace(
            phase="training", trouble="", prefix="runs/run-1/lane-0", heartbeat=lambda _meter, _now: {"seq": 1}
        ),
        "_selector": Recorder(select_answer=[]),
        "_wakeup": SimpleNamespace(terminated=False),
        "_worker": Recorder(busy=False),
        "_watch": Recorder(due_at_answer=math.inf, longest_quiet=3.0),
        "_command": Recorder(),
        "_exit_code": None,
        "_killed": False,
        "_store_fails": False,
        "_stop": None,
        "_failure": None,
        "_requested_at": None,
        "_beat_at": math.inf,
        "_publish_at": math.inf,
        "_request_at": math.inf,
        "_kill_at": math.inf,
        "_give_up_at": math.inf,
        "_beat_seconds": 60,
        **values,
    }
    return lane


@given(AT, AT, SECONDS, SECONDS, SECONDS, SECONDS)
def test_a_stop_leaves_the_command_its_part_of_the_grace(
    at: int, deadline: int, grace: int, margin: int, closing: int, earlier: int
) -> None:
    for outcome, error_class in (("preempted", None), ("failed", "diverged"), ("yielded", None)):
        lane = made(_kill_at=earlier, _give_up_at=earlier, _request_at=at)
        lane._launch.deadline, lane._launch.grace_seconds, lane._launch.stop_margin_seconds = deadline, grace, margin
        lane._meter.closing_seconds = closing
        lane._begin_stop(Stop(outcome, "why", at, error_class))  # type: ignore[arg-type] # of literals
        ends = {
            "preempted": (min(earlier, at + 0.7 * grace), min(earlier, at + 0.9 * grace)),
            "failed": (at, earlier),
            "yielded": (min(at + max(grace, closing), deadline - margin / 2), earlier),
        }
        assert (lane._kill_at, lane._give_up_at) == pytest.approx(ends[outcome])
        assert (lane._request_at, lane._requested_at, lane._status.phase) == (math.inf, at, "stopping")
        assert lane._command.calls == [("send_signal", signal.SIGTERM)]


@pytest.mark.parametrize(
    ("first", "second", "exit_code", "counts"),
    [
        (YIELDED, YIELDED._replace(at=200), None, YIELDED),
        (YIELDED, PREEMPTED, None, PREEMPTED),
        (PREEMPTED, PREEMPTED._replace(at=200), None, PREEMPTED),
        (PREEMPTED, YIELDED, None, PREEMPTED),
        (None, YIELDED, 0, None),
        (None, PREEMPTED, 0, PREEMPTED),
    ],
)
def test_only_a_platforms_signal_overrules_an_earlier_stop_or_the_end_of_the_command(
    first: Stop | None, second: Stop, exit_code: int | None, counts: Stop | None
) -> None:
    lane = made(_stop=first, _exit_code=exit_code, _requested_at=50)
    lane._begin_stop(second)
    assert lane._stop is counts
    asked = counts is second and exit_code is None
    assert lane._command.calls == [("send_signal", signal.SIGTERM)] * asked
    assert lane._requested_at == 50, "a checkpoint that was asked for before is measured from then on"


@pytest.mark.parametrize(
    ("busy", "asks"),
    [
        ({}, True),
        ({"_command": None}, False),
        ({"_exit_code": 1}, False),
        ({"_uploads": SimpleNamespace(pending=lambda: {5: Path("5")})}, False),
        ({"saving": True}, False),
    ],
)
@pytest.mark.parametrize(("expected", "again"), [(30, 700), (300, 1_300)])
def test_a_checkpoint_is_asked_for_unless_one_is_on_its_way_and_again_later(
    busy: dict[str, Any], asks: bool, expected: int, again: int
) -> None:
    saving = busy.get("saving", False)
    lane = made(**{name: value for name, value in busy.items() if name != "saving"})
    lane._meter.saving, lane._meter.expected_checkpoint_seconds = saving, expected
    lane._request_checkpoint(100)
    assert lane._request_at == again
    assert (lane._requested_at, lane._status.phase) == ((100, "saving") if asks else (None, "training"))
    if lane._command is not None:
        assert lane._command.calls == [("send_signal", signal.SIGUSR1)] * asks


def test_saves_are_planned_for_the_rest_of_the_session_and_not_after_a_stop() -> None:
    lane = made(_requested_at=50)
    lane._plan_next_request(1_000)
    first, *others = checkpoint_times(8_000, 0.0, 30, 1 / 20_000)
    assert others
    assert (lane._request_at, lane._requested_at) == (1_000 + first, None)
    lane._plan_next_request(8_990)
    assert lane._request_at == math.inf, "the last save is the stop's"
    lane = made(_stop=YIELDED, _requested_at=50)
    lane._plan_next_request(1_000)
    assert (lane._request_at, lane._requested_at) == (math.inf, 50)


@pytest.mark.parametrize(
    ("command", "exit_code", "kills"), [(True, None, True), (True, 0, False), (False, None, False)]
)
def test_a_command_that_outlives_its_grace_is_killed_once(command: bool, exit_code: int | None, kills: bool) -> None:
    lane = made(_kill_at=90, _exit_code=exit_code, **({} if command else {"_command": None}))
    lane._kill()
    assert (lane._killed, lane._kill_at) == (kills, math.inf)
    assert not command or lane._command.calls == [("kill",)] * kills


@pytest.mark.parametrize(
    ("state", "seconds"),
    [
        ({"_beat_at": 160}, 60),
        ({"_request_at": 130}, 30),
        ({"_kill_at": 110}, 10),
        ({"_give_up_at": 105}, 5),
        ({"_publish_at": 120}, 20),
        ({"_publish_at": 120, "_worker": Recorder(busy=True)}, 8_880),
        ({"_publish_at": 120, "_command": None}, 8_880),
        ({}, 8_880),  # the last checkpoint is asked for 20 s before the session closes
        ({"_stop": YIELDED}, math.inf),
        ({"_exit_code": 0}, math.inf),
        ({"_watch": Recorder(due_at_answer=107)}, 7),
        ({"_watch": Recorder(due_at_answer=107), "_stop": YIELDED, "_kill_at": 150}, 50),
        ({"_kill_at": 90}, 0),
    ],
)
def test_a_lane_sleeps_until_the_first_thing_that_is_due(state: dict[str, Any], seconds: float) -> None:
    lane = made(**state)
    lane._wait()
    assert lane._selector.calls == [("select", seconds)]


@pytest.mark.parametrize(
    ("state", "settled"),
    [
        ({}, False),
        ({"_give_up_at": 100}, True),
        ({"_give_up_at": 101}, False),
        ({"_command": None}, False),
        ({"_command": None, "_stop": YIELDED}, True),
        ({"_command": None, "_failure": ValueError()}, True),
        ({"_stop": YIELDED}, False),
        ({"_exit_code": 0}, True),
        ({"_exit_code": 0, "_worker": Recorder(busy=True)}, False),
        ({"_exit_code": 0, "_uploads": SimpleNamespace(pending=lambda: {5: Path("5")})}, False),
    ],
)
def test_a_lane_is_settled_when_nothing_is_left_to_do_or_no_time(state: dict[str, Any], settled: bool) -> None:
    assert made(**state)._is_over(100) is settled


@pytest.mark.parametrize(
    ("state", "looks"),
    [
        ({"_publish_at": 100}, True),
        ({"_publish_at": 101}, False),
        ({"_publish_at": 100, "_worker": Recorder(busy=True)}, False),
        ({"_publish_at": 100, "_command": None}, False),
    ],
)
@pytest.mark.parametrize(
    ("haste", "newest_first"), [({}, False), ({"_stop": YIELDED}, True), ({"_store_fails": True}, True)]
)
def test_checkpoints_go_in_order_unless_time_is_short(
    state: dict[str, Any], looks: bool, haste: dict[str, Any], newest_first: bool
) -> None:
    asked: list[bool] = []
    pending = SimpleNamespace(send=lambda: None)

    def next_checkpoint(_meter: object, _now: float, *, newest_first: bool) -> Any:
        asked.append(newest_first)
        return pending

    lane = made(**state, **haste)
    lane._uploads.next_checkpoint = next_checkpoint
    lane._publish_next(100)
    assert asked == [newest_first] * looks
    assert [call[:2] for call in lane._worker.calls] == [("start", pending.send)] * looks
    assert lane._publish_at == (math.inf if looks else state["_publish_at"])


@pytest.mark.parametrize(("fails", "look_at"), [(False, 100), (True, 150)])
def test_a_heartbeat_looks_for_checkpoints_that_nobody_announced(fails: bool, look_at: float) -> None:
    lane = made(_publish_at=150, _store_fails=fails)
    lane._beat(100)
    assert (lane._beat_at, lane._publish_at, lane._status.longest_quiet) == (160, look_at, 3.0)
    ((verb, key, _),) = lane._transport.calls
    assert (verb, key) == ("put", "runs/run-1/lane-0/heartbeat.json")


@pytest.mark.parametrize(
    ("state", "stop"),
    [
        ({"_clock_now": 8_979}, None),
        ({"_clock_now": 8_980}, Stop("yielded", DEADLINE, 8_980, at_deadline=True)),
        ({"_wakeup": SimpleNamespace(terminated=True)}, Stop("preempted", "SIGTERM", 100)),
        ({"_watch": Recorder(check_answer=DIVERGED, longest_quiet=0.0)}, DIVERGED),
        ({"_watch": Recorder(check_answer=DIVERGED, longest_quiet=0.0), "_stop": YIELDED}, YIELDED),
    ],
)
def test_a_turn_notices_what_ends_the_session(state: dict[str, Any], stop: Stop | None) -> None:
    now = state.get("_clock_now", 100)
    lane = made(**{"_watch": Recorder(check_answer=None, longest_quiet=0.0), **state})
    lane._command.exit_code_answer = None
    lane._run_due(now)
    assert lane._stop == stop


@pytest.mark.parametrize("due", ["_request_at", "_kill_at", "_beat_at"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_turn_does_what_is_due(monkeypatch: pytest.MonkeyPatch, due: str, late: int) -> None:
    lane = made(**{due: 101 - late, "_watch": Recorder(check_answer=None)})
    lane._command.exit_code_answer = None
    done: list[str] = []
    names = {"_request_at": ["_request_checkpoint"], "_kill_at": ["_kill"], "_beat_at": ["_read_stop_flag", "_beat"]}
    for name in ("_request_checkpoint", "_kill", "_read_stop_flag", "_beat"):
        monkeypatch.setattr(LaneProcess, name, lambda _lane, *_, name=name: done.append(name))
    lane._run_due(100)
    assert done == names[due] * late


@pytest.mark.parametrize(
    ("line", "whole", "changes"),
    [
        ({"step": 6}, False, {}),
        ({"step": 6}, True, {"_fed": 0}),
        ({"save_failed": "disk full"}, False, {"_requested_at": None, "_request_at": 160}),
        ({"step": 6, "saved": 6}, False, {"_publish_at": -math.inf}),
        ({"step": 5, "saved": 5}, False, {"_publish_at": -math.inf, "_requested_at": None}),
    ],
)
def test_a_progress_line_is_acted_upon(line: dict[str, Any], whole: bool, changes: dict[str, Any]) -> None:
    lane = made(_requested_at=50, _progress=SimpleNamespace(lines=lambda: [line]), _publish_at=150)
    lane._order.whole = whole
    lane._uploads.newest = SimpleNamespace(step=5)
    fed: list[dict[str, Any]] = []
    lane._meter.lost_since, lane._meter.save_failed = None, "disk full"

    def feed(line: dict[str, Any], _now: float) -> Any:
        fed.append(line)
        return line.get("saved")

    lane._meter.feed = feed
    lane._read_progress()
    assert len(fed) == changes.get("_fed", 1)
    assert {name: vars(lane).get(name, 0) for name in changes} == changes
    if "_requested_at" not in changes:
        assert lane._requested_at == 50
    assert ("disk full" in lane._status.trouble) == ("save_failed" in line)


def test_the_first_line_is_reported_at_once_and_the_first_save_planned() -> None:
    lane = made(_progress=SimpleNamespace(lines=lambda: [{"step": 0}, {"step": 1}]), _requested_at=50)
    lane._meter.began_at = None
    lane._meter.lost_since = None
    lane._meter.feed = lambda _line, now: setattr(lane._meter, "began_at", now)
    lane._read_progress()
    assert (lane._beat_at, lane._requested_at) == (-math.inf, None)
    assert 100 < lane._request_at < 9_000


@pytest.mark.parametrize(
    ("state", "counts"),
    [
        ({"pending": {5: Path("5")}}, True),
        ({"save_failed": "disk full"}, True),
        ({"_killed": True, "saving": True}, True),
        ({"_killed": True}, False),
        ({"saving": True}, False),
        ({}, False),
        ({"pending": {5: Path("5")}, "_store_fails": True}, False),
        ({"pending": {5: Path("5")}, "_stop": None}, False),
        ({"pending": {5: Path("5")}, "_command": None}, False),
    ],
)
def test_a_checkpoint_that_was_late_lengthens_the_next_ones_time(
    monkeypatch: pytest.MonkeyPatch, state: dict[str, Any], counts: bool
) -> None:
    spans: list[float] = []
    pending = state.get("pending", {})
    meter = {name: state[name] for name in ("saving", "save_failed") if name in state}
    lane = made(**{"_stop": YIELDED._replace(at=70), **{name: state[name] for name in state if name[0] == "_"}})
    lane._uploads.pending = lambda: pending
    vars(lane._meter).update(meter, not_stored=spans.append)
    lane._watch = SimpleNamespace(unsaved_for=lambda _: "")
    monkeypatch.setattr("jobs.payload.lane.lane.judge", lambda facts: facts)
    if lane._command is not None:
        lane._command.errors = SimpleNamespace(tail="")
    facts = lane._ending()
    assert spans == [30] * counts
    assert facts.unstored == bool(meter.get("save_failed") or (pending and lane._command))


@pytest.mark.parametrize(
    ("created_at", "restored", "saved"), [(70, False, True), (69, False, False), (70, True, False)]
)
def test_only_what_this_lane_saved_since_the_stop_is_its_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch, created_at: int, restored: bool, saved: bool
) -> None:
    newest = SimpleNamespace(step=7, created_at=created_at)
    lane = made(_stop=YIELDED._replace(at=70), _watch=SimpleNamespace(unsaved_for=lambda _: ""), _command=None)
    lane._uploads.newest, lane._uploads.restored = newest, newest if restored else None
    monkeypatch.setattr("jobs.payload.lane.lane.judge", lambda facts: facts)
    facts = lane._ending()
    assert (facts.saved_since_stop, facts.stored_step) == (saved, 7)


@pytest.mark.parametrize(("error", "kind"), [(OSError("disk"), "store"), (ValueError("bug"), "code")])
@pytest.mark.parametrize("ends_with_the_session", [True, False])
def test_a_runner_that_fails_itself_says_so(
    monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str, ends_with_the_session: bool
) -> None:
    def fail(_: LaneProcess) -> None:
        raise error

    def leave(*words: Any) -> bool:
        left.append(words[3])
        return True

    left: list[Any] = []
    monkeypatch.setattr(LaneProcess, "_prepare_folder", fail)
    monkeypatch.setattr("jobs.payload.lane.lane.waits_until", lambda *_: 700)
    monkeypatch.setattr("jobs.payload.lane.lane.leave_result", leave)
    monkeypatch.setattr("jobs.payload.lane.lane.encode", lambda document: document)
    stop = Stop("yielded", DEADLINE, 90, at_deadline=True) if ends_with_the_session else YIELDED
    lane = made(_stop=stop, _folder=Path(), waits_until=None)
    lane._status.result = lambda _meter, ending, now: {"ending": ending, "now": now}
    assert lane.run()
    (document,) = left
    assert document["ending"].error_class == kind
    assert document["waits_until"] == (None if ends_with_the_session else 700)
    assert lane._command.calls == [("kill",)], "no command outlives its lane"


def test_trouble_is_told_at_once() -> None:
    lane = made()
    lane._report_trouble("the store does not answer")
    assert (lane._status.trouble, lane._beat_at) == ("the store does not answer", -math.inf)


@pytest.fixture
def wakeup() -> Iterator[Wakeup]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)
    before = {number: signal.getsignal(number) for number in numbers}
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    yield Wakeup()
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def test_signals_that_were_blocked_until_then_end_a_session(wakeup: Wakeup) -> None:
    assert not wakeup.terminated
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()
    wakeup.wake()
    wakeup.drain()
    signal.raise_signal(signal.SIGTERM)
    assert wakeup.terminated


@pytest.mark.parametrize(("heartbeat", "scale", "beat"), [(60, 1.0, 60), (60, 2_000.0, 200), (1, 60.0, 6)])
def test_a_fast_clock_does_not_flood_the_store(tmp_path: Path, heartbeat: int, scale: float, beat: float) -> None:
    """At most ten heartbeats in a second of the wall; a gap of two and ten seconds was a suspended machine."""
    clock = SimpleNamespace(scale=scale, now=lambda: 0)
    launch: Any = SimpleNamespace(
        clock=clock, transport=Recorder, lane_dir=lambda _: tmp_path, run="run-1", deadline=1_000,
        stop_margin_seconds=100, heartbeat_seconds=heartbeat,
    )  # fmt: skip
    order: Any = SimpleNamespace(
        checkpoint_seconds=1, closing_seconds=2, devices=(0,), lane=0, limits=SimpleNamespace()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jobs.payload.lane.lane.Wakeup", lambda: SimpleNamespace(wake=None, source=0, drain=None))
        patch.setattr("selectors.DefaultSelector", Recorder)
        lane: Any = LaneProcess(launch, order)
    assert lane._beat_seconds == pytest.approx(beat)
    watch: StallWatch = lane._watch
    assert watch._pause == pytest.approx(2 * beat + 10 * scale)
    assert (lane._killed, lane._store_fails, lane._gpus._lane) == (False, False, 0)
    assert lane._give_up_at == 975, "a quarter of the margin is kept for the result"


@pytest.mark.parametrize(("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EIO, "does not take it")])
def test_a_store_that_fails_is_tried_again_and_named(number: int, words: str) -> None:
    lane = made()
    lane._on_published(SimpleNamespace(step=7), OSError(number, "no"))
    assert words in lane._status.trouble
    assert (lane._publish_at, lane._store_fails) == (160, True)
    with pytest.raises(ZeroDivisionError):
        lane._on_published(SimpleNamespace(step=7), ZeroDivisionError())


def test_the_first_line_is_reported_at_once_after_a_stop_too() -> None:
    lane = made(_stop=YIELDED, _progress=SimpleNamespace(lines=lambda: [{"step": 0}]))
    lane._meter.began_at = lane._meter.lost_since = None
    lane._meter.feed = lambda _line, now: setattr(lane._meter, "began_at", now)
    lane._read_progress()
    assert lane._beat_at == -math.inf


def test_a_worker_is_busy_until_its_result_is_collected() -> None:
    results: list[int] = []
    worker = Worker(lambda: None)
    states = [worker.busy]
    worker.start(lambda: 5, results.append)
    worker._ended.wait(60)
    states.append(worker.busy)
    worker.collect()
    assert (results, [*states, worker.busy]) == ([5], [False, True, False])
