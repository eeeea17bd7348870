"""Whatever goes wrong has a result, and leaves nothing running."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock

# Holds the write end of a FIFO as long as it lives, and starts a child that does too; neither obeys SIGTERM.
STUBBORN = """
import os, select, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = os.open(os.environ["ALIVE"], os.O_WRONLY)
os.set_inheritable(held, True)
child = "import signal, select; signal.signal(signal.SIGTERM, signal.SIG_IGN); select.select([], [], [])"
subprocess.Popen([sys.executable, "-c", child], close_fds=False)
open(os.environ["SCHED_PROGRESS"], "w").write('{"step": 1}\\n')
select.select([], [], [])
"""


def test_a_crashing_lane_does_not_take_the_other_along(session: Any) -> None:
    crash = "import sys\nsys.stderr.write('KeyError: weights\\n')\nsys.exit(3)\n"
    session.run(session.lane(crash, 0), session.lane(session.counter, 1, target_step=20))
    failed, finished = session.result(0), session.result(1)
    assert (failed["outcome"], failed["error_class"]) == ("failed", "code")
    assert "KeyError: weights" in failed["message"]
    assert finished["outcome"] == "finished"
    assert session.manifests("job1")


def test_a_command_that_ignores_sigterm_is_killed_with_its_children(
    session: Any, alive: tuple[Path, Callable[[], None]]
) -> None:
    path, wait_for_all_gone = alive
    result = session.run(session.lane(STUBBORN, environment={"ALIVE": str(path)}), seconds=3.0, grace_seconds=0.5)
    wait_for_all_gone()
    assert (result["outcome"], result["error_class"]) == ("failed", "killed")
    assert "grace" in result["why"]


# Begins to save when it is asked to, and never ends.
SLOW_SAVER = """
import select
from trainer_kit import Training
training = Training()
training.progress(1)
while not training.should_stop:
    select.select([], [], [], 0.002)
training.begin_saving(1)
select.select([], [], [], 60)
"""


def test_a_last_save_that_takes_too_long_says_how_long_it_was_given(session: Any) -> None:
    """The next session is then planned to end its work earlier."""
    session.write(session.lane(SLOW_SAVER), grace_seconds=0.4)
    session.start()
    session.until_training()
    flag = session.store / "runs/run-0001/stop"
    flag.parent.mkdir(parents=True, exist_ok=True)
    flag.write_text('{"reason": "enough", "lane": 0}')
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["error_class"]) == ("failed", "killed")
    assert 0.4 <= result["checkpoint_seconds"] < 30


def test_a_killed_agent_takes_its_command_along(session: Any, alive: tuple[Path, Callable[[], None]]) -> None:
    path, wait_for_all_gone = alive
    session.write(session.lane(STUBBORN, environment={"ALIVE": str(path)}), seconds=600)
    session.start()
    session.until_training()
    assert session.process
    session.process.kill()
    session.process.wait()
    wait_for_all_gone()


def test_a_killed_supervisor_takes_its_lanes_along(session: Any, alive: tuple[Path, Callable[[], None]]) -> None:
    path, wait_for_all_gone = alive
    environment = {"ALIVE": str(path)}
    session.write(*(session.lane(STUBBORN, index, environment=environment) for index in (0, 1)), seconds=600)
    session.start()
    session.until_training()
    assert session.process
    session.process.kill()
    session.process.wait()
    wait_for_all_gone()


def test_a_killed_lane_gets_a_result_and_the_other_goes_on(
    session: Any, alive: tuple[Path, Callable[[], None]]
) -> None:
    """The command kills the agent of its own lane; the supervisor reports in its place."""
    path, wait_for_all_gone = alive
    killer = STUBBORN.replace("select.select([], [], [])\n", "os.kill(os.getppid(), signal.SIGKILL)\n")
    killer += "select.select([], [], [])\n"
    session.run(
        session.lane(killer, 0, environment={"ALIVE": str(path)}), session.lane(session.counter, 1, target_step=20)
    )
    wait_for_all_gone()
    lost = session.result(0)
    assert (lost["outcome"], lost["error_class"], lost["job"]) == ("failed", "killed", "job0")
    assert session.result(1)["outcome"] == "finished"


def test_missing_data_is_a_data_failure(session: Any) -> None:
    result = session.run(session.lane(session.counter, data="corpus/none"))
    assert (result["outcome"], result["error_class"]) == ("failed", "data")
    assert "corpus/none" in result["message"]


@pytest.mark.parametrize(
    ("script", "error_class"),
    [
        ("import sys; sys.exit(65)", "data"),
        ("raise MemoryError", "oom"),
        ("import errno; raise OSError(errno.ENOSPC, 'No space left on device')", "store"),
        ("raise OSError(\"We couldn't connect to 'https://huggingface.co' to load the files\")", "network"),
        ("raise SystemExit('finetune: this device cannot be used: a P100')", "device"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("import torch_that_is_not_there", "code"),
        ("", "code"),
    ],
)
def test_a_failing_command_is_classed(session: Any, script: str, error_class: str) -> None:
    result = session.run(session.lane(script))
    assert (result["outcome"], result["error_class"]) == ("failed", error_class)


def test_a_stop_that_comes_after_the_commands_own_end_does_not_excuse_it(session: Any) -> None:
    """It crashed, and its last checkpoint waits for the store: a flag or a deadline that finds it so asked nobody."""
    saves = session.counter.replace("while step <", "training.checkpoint(step, write, {})\nwhile step <")
    session.write(session.lane(saves.replace("    step += 1", "    sys.exit(3)")))
    closed = session.store / "jobs"
    closed.write_text("a file where a folder is wanted")
    session.start()
    session.until("the store does not take it")
    session.until_beats(1)  # the crash is known
    (session.store / "runs/run-0001/stop").write_text('{"reason": "hold by ann", "lane": null}')
    session.until_beats(2)  # the flag was seen
    closed.unlink()
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["error_class"], result["checkpoint_step"]) == ("failed", "code", 0)
    assert "exit status 3" in result["why"]


def test_a_program_that_does_not_exist_is_a_clear_failure(session: Any) -> None:
    result = session.run(session.lane("", command=["/no/such/program"]))
    assert (result["outcome"], result["error_class"]) == ("failed", "code")
    assert "/no/such/program" in result["message"]


@pytest.mark.parametrize(("found", "outcome"), [("Tesla T4\nTesla T4", "finished"), ("Tesla P100-PCIE-16GB", "failed")])
def test_the_devices_must_be_the_expected_ones(session: Any, tmp_path: Path, found: str, outcome: str) -> None:
    tool = tmp_path / "bin/nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\nprintf '{found}\\n'\n")
    tool.chmod(0o755)
    session.write(session.lane(session.counter, target_step=5), expected_devices={"count": 2, "name": "NvidiaTeslaT4"})
    session.start(PATH=f"{tool.parent}:{os.environ['PATH']}")
    assert session.end() == 0
    result = session.result()
    assert result["outcome"] == outcome
    if outcome == "failed":
        assert result["error_class"] == "wrong_device"
        assert "P100" in result["message"]
    else:
        assert result["devices"] == ["Tesla T4", "Tesla T4"]


def test_a_lane_that_hangs_is_ended_at_the_deadline(session: Any, alive: tuple[Path, Callable[[], None]]) -> None:
    """The command stops the agent of its own lane; the supervisor ends both and reports in its place."""
    path, wait_for_all_gone = alive
    stopper = STUBBORN.replace("select.select([], [], [])\n", "os.kill(os.getppid(), signal.SIGSTOP)\n")
    stopper += "select.select([], [], [])\n"
    lane = session.lane(stopper, 0, environment={"ALIVE": str(path)})
    result = session.run(lane, session.lane(session.counter, 1, target_step=20), seconds=2.0)
    wait_for_all_gone()
    assert (result["outcome"], result["error_class"]) == ("failed", "killed")
    assert session.result(1)["outcome"] == "finished"


# Obeys, and needs a second and a half to save.
LATE_SAVER = """
import select
from trainer_kit import Training
training = Training()
def write(folder):
    select.select([], [], [], 1.5)
    (folder / "state.json").write_text("7")
training.progress(7)
while not training.should_stop:
    select.select([], [], [], 0.002)
training.checkpoint(7, write, {})
"""


def test_the_grace_of_the_orders_is_given_to_a_save(session: Any) -> None:
    """Checkpoints are thought to take a tenth of a second: it is the grace that lets this one end."""
    session.write(session.lane(LATE_SAVER), grace_seconds=20)
    session.start()
    session.until_training()
    (session.store / "runs/run-0001/stop").write_text('{"reason": "enough", "lane": null}')
    assert session.end() == 0
    result = session.result()
    assert (result["outcome"], result["checkpoint_step"]) == ("yielded", 7), result


@pytest.mark.parametrize("how", ["flag", "sigterm"])
def test_the_grace_of_the_orders_ends(session: Any, alive: tuple[Path, Callable[[], None]], how: str) -> None:
    """A command that does not obey is killed after it: at once it would lose a save, and later its own result."""
    path, wait_for_all_gone = alive
    session.write(session.lane(STUBBORN, environment={"ALIVE": str(path)}), seconds=600, grace_seconds=3)
    session.start()
    session.until_training()
    asked = Clock().now()
    if how == "flag":
        (session.store / "runs/run-0001/stop").write_text('{"reason": "enough", "lane": null}')
    else:
        session.process.send_signal(signal.SIGTERM)
    wait_for_all_gone()
    least = 3.0 if how == "flag" else 0.7 * 3.0
    assert least <= Clock().now() - asked < 25
    assert session.end() == 0
    assert session.result()["outcome"] == ("failed" if how == "flag" else "preempted")


# Its first save, or all of them, has a name that no store takes; it goes on for as long as it may.
BADLY_NAMED = """
import select
from trainer_kit import Training
training, step, bad = Training(), 0, {bad}
while not training.should_stop and step < training.target_step:
    step += 1
    training.progress(step)
    select.select([], [], [], 0.005)
    if step % 20 == 0:
        name = "no name" if bad else "weights"
        bad -= bad > 0
        training.checkpoint(step, lambda folder: (folder / name).write_text(str(step)), {{}})
"""


def test_a_second_checkpoint_that_no_store_takes_ends_the_session(session: Any) -> None:
    result = session.run(session.lane(BADLY_NAMED.format(bad=10**6), target_step=10**6), seconds=60)
    assert (result["outcome"], result["error_class"]) == ("failed", "code")
    assert "no name cannot be a component" in result["why"]
    assert not session.manifests("job0")


def test_one_bad_checkpoint_that_a_good_one_follows_costs_itself_alone(session: Any) -> None:
    result = session.run(session.lane(BADLY_NAMED.format(bad=1), target_step=80), seconds=60)
    assert result["outcome"] == "finished"
    assert len(session.manifests("job0")) >= 1
