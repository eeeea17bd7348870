"""The shipped payload as a training job: it reads and writes by signed addresses, and its bill is what is charged."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import jobs
from platforms.base import SessionState
from tests.lab.patience import until
from tests.lab.training import TRAINING

if TYPE_CHECKING:
    from platforms.base import LaunchRequest

World = Any  # see conftest.py

STUBBORN = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("here", flush=True)
while True:
    signal.pause()
"""
CHARLM = ["{python}", "{payload}/trainers/charlm.py", "--width", "24", "--batch", "16", "--report-every", "100"]


def test_a_job_trains_and_leaves_checkpoint_result_and_log(world: World) -> None:
    world.adapter().launch(world.request("uff-lm-1", ["{python}", "-c", TRAINING, "finish"]), world.clock.now())
    ended = world.until("uff-lm-1", SessionState.ENDED)
    assert ended.detail == "Completed", world.output("uff-lm-1")
    assert ended.ended - ended.started == world.place.billed_seconds()
    assert (world.result("uff-lm-1")["outcome"], world.result("uff-lm-1")["checkpoint_step"]) == ("finished", 100)
    assert "training" in world.output("uff-lm-1")


def test_a_stopped_job_saves_before_it_leaves_and_is_no_success(world: World) -> None:
    world.adapter().launch(world.request("uff-lm-1", ["{python}", "-c", TRAINING, "wait"]), world.clock.now())
    until(lambda: "training" in world.output("uff-lm-1"), "training to be printed")
    world.adapter().stop("uff-lm-1", world.clock.now(), force=False)
    ended = world.until("uff-lm-1", SessionState.ENDED)
    assert ended.detail == "Stopped"
    assert (world.result("uff-lm-1")["outcome"], world.result("uff-lm-1")["checkpoint_step"]) == ("preempted", 50)
    assert ended.ended - ended.started == world.place.billed_seconds()


def test_the_platform_ends_what_nobody_else_ends_and_the_hold_covers_it(world: World) -> None:
    """The trainer ignores every word, and the daemon says none. What is held is the deadline and the pool's overrun."""
    request = world.request("uff-lm-1", ["{python}", "-c", STUBBORN], seconds=1_200)
    request.launch["deadline"] += 100_000  # the agent was told wrong
    launched_at = world.clock.now()
    world.adapter().launch(request, launched_at)
    ended = world.until("uff-lm-1", SessionState.ENDED)
    assert ended.detail == "Stopped, MaxRuntimeExceeded"
    overrun = world.place.rules.grace_seconds + world.place.rules.upload_seconds + 600  # a second of a slow machine
    assert ended.ended - ended.started <= request.deadline - launched_at + overrun


@pytest.mark.usefixtures("corpus")
def test_a_checkpoint_of_another_platform_is_resumed_bit_for_bit(world: World) -> None:
    """Begun on this machine, stopped, ended on SageMaker: the same weights as all of it in one go."""
    options: dict[str, Any] = {"data": "corpus/v1/mixtures/lm", "target_step": 4_000}
    local = world.local()
    local.launch(world.request("uff-lm-1", CHARLM, seconds=100_000, **options), world.clock.now())
    until(lambda: b"step 500 " in b"".join(local.logs("uff-lm-1", 0, 1 << 20)), "step 500 to be printed")
    local.stop("uff-lm-1", world.clock.now(), force=False)
    world.until("uff-lm-1", SessionState.ENDED, platform=local)
    stopped = world.result("uff-lm-1")
    assert stopped["outcome"] == "preempted", stopped
    assert 500 <= stopped["checkpoint_step"] < 4_000

    world.adapter().launch(world.request("uff-lm-2", CHARLM, attempt=2, seconds=100_000, **options), world.clock.now())
    world.until("uff-lm-2", SessionState.ENDED)
    assert world.result("uff-lm-2")["outcome"] == "finished", world.output("uff-lm-2")
    assert world.result("uff-lm-2")["restored_step"] == stopped["checkpoint_step"]
    resumed = world.newest()

    for key in list(world.store.keys("jobs/")):
        world.store.delete(key)
    world.adapter().launch(world.request("uff-lm-3", CHARLM, attempt=3, seconds=100_000, **options), world.clock.now())
    world.until("uff-lm-3", SessionState.ENDED)
    assert world.result("uff-lm-3")["restored_step"] is None
    assert world.newest() == resumed


@pytest.mark.services
@pytest.mark.skipif(os.geteuid() != 0, reason="a process namespace needs root")
def test_as_process_1_of_its_container_the_agent_hears_sigterm(world: World, tmp_path: Path) -> None:
    """A process 1 without a handler would ignore it, and AWS's own entry points do not pass it on."""
    request = world.request("uff-lm-1", ["{python}", "-c", TRAINING, "wait"])
    (tmp_path / "launch.json").write_text(json.dumps({**request.launch, "work_dir": "work"}))
    agent = Path(jobs.__file__).parent / "payload" / "agent.py"
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, str(agent), str(tmp_path / "launch.json")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        seen = []
        for line in process.stdout:
            seen.append(line)
            if "training" in line:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(children[0]), signal.SIGTERM)
        assert process.wait() == 0, seen
    assert (world.result("uff-lm-1")["outcome"], world.result("uff-lm-1")["checkpoint_step"]) == ("preempted", 50)


def test_a_spot_job_that_lost_its_instance_is_stopped_and_not_run_again(
    world: World, waiting: "Callable[[str], LaunchRequest]"
) -> None:
    world.place.rules.spot_seconds = 600
    platform = world.adapter(spot="yes")
    platform.launch(waiting("uff-lm-1"), world.clock.now())
    ended = world.until("uff-lm-1", SessionState.ENDED, platform=platform)
    assert ended.detail == "Stopped"
    assert ended.ended - ended.started == world.place.billed_seconds() < 600
