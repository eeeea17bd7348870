"""A session that burns hours for nothing stops itself, says so, and takes nothing for poison that is not."""

from typing import Any

import pytest

SILENT = "import select\nselect.select([], [], [])\n"
# Trains to a step, then hangs; obeys SIGTERM like any program that knows nothing of it.
HANGS = """
import select
from trainer_kit import Training
training = Training()
import signal
signal.signal(signal.SIGTERM, signal.SIG_DFL)
def write(folder):
    (folder / "state.json").write_text("0")
for step in range(5):
    training.progress(step, loss=1.0)
{save}
select.select([], [], [])
"""
# Says nothing, does what it is told, and saves when it is asked to end.
QUIET = """
import json, os, select, signal
from pathlib import Path
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
select.select([reader], [], [])
folder = Path(os.environ["SCHED_CHECKPOINT_DIR"])
partial = folder / ".partial"
partial.mkdir()
(partial / "meta.json").write_text(json.dumps({"step": 8}))
(partial / "state.json").write_text("8")
partial.rename(folder / "step-00000008")
"""
# Reports a loss for each step; from the third on it is no number. Saves when asked, and now and then.
DIVERGES = """
import json, select
from trainer_kit import Training
training = Training()
def write(folder):
    (folder / "state.json").write_text(json.dumps(step))
for step in range(1, 1000):
    training.progress(step, loss=1.0 if step < 3 else float("nan"))
    if step in (2, {saves_at}) or training.should_stop:
        training.checkpoint(step, write, {{}})
    if training.should_stop or step == {ends_at}:
        break
    select.select([], [], [], 0.02)
"""


def rules(**limits: float | None) -> dict[str, Any]:
    return {
        "first_progress_seconds": None,
        "no_progress_seconds": None,
        "checkpoint_seconds": None,
        "loss_nan": None,
        **limits,
    }


def test_a_command_that_says_nothing_is_stopped_long_before_its_session_ends(session: Any) -> None:
    result = session.run(session.lane(SILENT, stall=rules(first_progress_seconds=0.5)), seconds=40.0)
    assert (result["outcome"], result["error_class"]) == ("failed", "stalled")
    assert "nothing was reported or saved" in result["why"]
    assert result["ended_at"] - result["started_at"] < 30


def test_the_bound_counts_scheduled_time(session: Any) -> None:
    """An hour a second: half an hour is half a second."""
    lane = session.lane(SILENT, stall=rules(first_progress_seconds=1_800))
    result = session.run(lane, seconds=40.0, scale=3_600.0)
    assert (result["outcome"], result["error_class"]) == ("failed", "stalled")
    assert 1_800 <= result["ended_at"] - result["started_at"] < 20 * 3_600


@pytest.mark.parametrize(("save", "kept"), [("", None), ("training.checkpoint(3, write, {})", 3)])
def test_a_command_that_hangs_midway_is_stopped(session: Any, save: str, kept: int | None) -> None:
    """What it had saved stays; that it reported no further step is why it ends."""
    lane = session.lane(HANGS.format(save=save), stall=rules(no_progress_seconds=1.0))
    result = session.run(lane, seconds=40.0)
    assert (result["outcome"], result["error_class"]) == ("failed", "stalled")
    assert "no new step" in result["why"]
    assert "newest is 4" in result["why"]
    assert result["checkpoint_step"] == kept
    assert result["setup_seconds"] is not None


def test_the_same_step_again_and_again_is_no_progress(session: Any) -> None:
    again = HANGS.format(save="").replace(
        "select.select([], [], [])", "while True:\n    training.progress(4)\n    select.select([], [], [], 0.05)"
    )
    result = session.run(session.lane(again, stall=rules(no_progress_seconds=1.0)), seconds=40.0)
    assert (result["outcome"], result["error_class"]) == ("failed", "stalled")


def test_a_command_that_goes_on_is_not_stopped_however_long_it_takes(session: Any) -> None:
    """A step each tenth of a second, a second without one allowed, three seconds of work."""
    script = session.counter.replace("0.002", "0.1")
    lane = session.lane(script, target_step=30, stall=rules(first_progress_seconds=20.0, no_progress_seconds=1.5))
    result = session.run(lane)
    assert (result["outcome"], result["checkpoint_step"]) == ("finished", 30)
    assert 0 <= result["longest_quiet_seconds"] <= 2


def test_a_silent_command_that_saves_when_asked_to_end_has_burnt_nothing(session: Any) -> None:
    result = session.run(session.lane(QUIET, stall=rules(first_progress_seconds=1.5)), seconds=40.0)
    assert (result["outcome"], result["error_class"], result["checkpoint_step"]) == ("yielded", None, 8)
    assert "asked to end, it saved" in result["why"]


def test_a_silent_command_that_ends_in_time_with_its_result_is_finished(session: Any) -> None:
    quick = QUIET.replace("select.select([reader], [], [])\n", "")
    limits = rules(first_progress_seconds=20.0, no_progress_seconds=0.1, checkpoint_seconds=0.0, loss_nan=1)
    result = session.run(session.lane(quick, target_step=8, stall=limits))
    assert (result["outcome"], result["error_class"], result["checkpoint_step"]) == ("finished", None, 8)


def test_a_silent_command_that_has_saved_is_left_alone(session: Any) -> None:
    """What it saves is all that is known of it: it may take its time until the session ends."""
    early = QUIET.replace("select.select([reader], [], [])\n", "") + "select.select([reader], [], [])\n"
    lane = session.lane(early, stall=rules(first_progress_seconds=1.0, no_progress_seconds=0.5, checkpoint_seconds=1))
    result = session.run(lane, seconds=5.0, grace_seconds=2)
    assert (result["outcome"], result["why"][:8], result["checkpoint_step"]) == ("yielded", "deadline", 8)


@pytest.mark.parametrize("script", [SILENT, HANGS.format(save="")], ids=["silent", "reports"])
def test_a_session_that_had_time_for_a_checkpoint_and_made_none_has_failed(session: Any, script: str) -> None:
    lane = session.lane(script, stall=rules(checkpoint_seconds=1.0))
    result = session.run(lane, seconds=4.0, grace_seconds=0.5)
    assert (result["outcome"], result["error_class"]) == ("failed", "no_checkpoint")
    assert "nothing was saved in" in result["why"]


def test_a_session_too_short_for_a_checkpoint_has_not_failed(session: Any) -> None:
    lane = session.lane(SILENT, stall=rules(checkpoint_seconds=30.0))
    result = session.run(lane, seconds=3.0, grace_seconds=0.5)
    assert (result["outcome"], result["why"]) == ("yielded", "deadline, before training began")


def test_a_stop_that_a_person_wants_is_no_proof_against_the_command(session: Any) -> None:
    session.write(session.lane(SILENT, stall=rules(checkpoint_seconds=0.1)), grace_seconds=0.5)
    session.start()
    heartbeat = session.store / "runs/run-0001/lane-0/heartbeat.json"
    while not heartbeat.exists() or session.heartbeat()["seq"] < 5:
        assert session.process.poll() is None
    (session.store / "runs/run-0001/stop").write_text('{"reason": "hold by ann", "lane": null}')
    assert session.end() == 0
    assert session.result()["outcome"] == "yielded"


@pytest.mark.parametrize("saves_at", [0, 4], ids=["between", "while it is no number"])
def test_a_loss_that_is_no_number_ends_the_session_and_is_never_stored(session: Any, saves_at: int) -> None:
    lane = session.lane(DIVERGES.format(saves_at=saves_at, ends_at=0), stall=rules(loss_nan=3))
    result = session.run(lane, seconds=40.0)
    assert (result["outcome"], result["error_class"]) == ("failed", "diverged")
    assert "not a finite number since step 3" in result["why"]
    assert [session.manifest(key)["step"] for key in session.manifests()] == [2]


def test_what_was_saved_with_a_loss_that_is_no_number_is_not_the_result(session: Any) -> None:
    """The command ends by itself before three reports say so."""
    lane = session.lane(DIVERGES.format(saves_at=4, ends_at=4), target_step=4, stall=rules(loss_nan=3))
    result = session.run(lane)
    assert (result["outcome"], result["error_class"], result["checkpoint_step"]) == ("failed", "diverged", 2)


def test_one_loss_that_is_no_number_is_forgiven(session: Any) -> None:
    """As a mean before the first step, or a batch that mixed precision passes over."""
    script = session.counter.replace("training.progress(step)\nwhile", "training.progress(0, loss=float('nan'))\nwhile")
    result = session.run(session.lane(script, target_step=20, stall=rules(loss_nan=1_000)))
    assert (result["outcome"], result["checkpoint_step"]) == ("finished", 20)


def test_without_rules_a_launch_of_an_older_daemon_runs_as_ever(session: Any) -> None:
    script = DIVERGES.format(saves_at=0, ends_at=6).replace("step in (2, 0)", "step == 6")
    result = session.run(session.lane(script, target_step=6))
    assert (result["outcome"], result["checkpoint_step"]) == ("finished", 6)
