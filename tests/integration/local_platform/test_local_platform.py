"""The local platform with real processes that are killed, overstay, talk too much and have children."""

import errno
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Refused, SessionState
from platforms.local.processes import MARK, start_ticks
from tests.lab.clocks import starting_now
from tests.lab.disk import full, small_disk
from tests.lab.patience import pause

Machine = Any  # see conftest.py


def kill(pid: int) -> None:
    """Kill a process and wait until it is gone."""
    watch = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([watch], [], [], 10)[0]
    os.close(watch)


def test_a_session_outlives_the_process_that_launched_it(machine: Machine) -> None:
    """The launching process is killed; its session is found, readable and stoppable from another process."""
    script = (
        "import json, os, signal, sys; from pathlib import Path; from platforms.base import LaunchRequest;"
        "from platforms.registry import PlatformContext, load; state, bundle, now = sys.argv[1:];"
        "platform = load('local', {}, PlatformContext(Path(state), sys.executable, Path(bundle)));"
        "platform.launch(LaunchRequest('one', 'p', 1, int(now) + 3600, {'lanes': []}, '', {}), int(now));"
        "os.killpg(0, signal.SIGKILL)"
    )
    words = [str(machine.state), str(machine.folder / "bundle"), str(machine.clock.now())]
    launcher = subprocess.run([sys.executable, "-c", script, *words], start_new_session=True, check=False)
    assert launcher.returncode == -signal.SIGKILL
    machine.until_ready()
    assert machine.find().state == SessionState.RUNNING
    machine.adapter().stop("one", machine.clock.now(), force=False)
    assert machine.until_ended().detail == "killed by signal 15"


def test_the_exit_code_of_the_agent_is_told(machine: Machine) -> None:
    machine.launch(exit=7)
    ended = machine.until_ended()
    assert ended.detail == "exit code 7"
    assert machine.output() == b"ready\n"


def test_when_the_agent_is_killed_its_children_die_with_it(machine: Machine) -> None:
    machine.launch(children=["same group", "own session"])
    machine.until_ready()
    machine.until(lambda: machine.output().count(b"child") == 2)
    assert len(machine.processes()) == 5
    kill(machine.claim()["agent"])
    assert machine.until_ended().detail == "killed by signal 9"
    assert machine.processes() == set()


def test_a_child_that_dropped_its_environment_and_its_group_dies_with_the_agent(machine: Machine) -> None:
    machine.launch(bare=True)
    machine.until_ready()
    watch = os.pidfd_open(int(machine.output().split()[1]))
    kill(machine.claim()["agent"])
    machine.until_ended()
    assert select.select([watch], [], [], 10)[0]
    os.close(watch)


def test_a_forced_stop_ends_children_of_children_in_sessions_of_their_own(machine: Machine) -> None:
    machine.launch(deaf=True, children=["same group", "own session"])
    machine.until(lambda: machine.output().count(b"child") == 2)
    machine.adapter().stop("one", machine.clock.now(), force=False)
    assert machine.find().state == SessionState.RUNNING
    machine.adapter().stop("one", machine.clock.now(), force=True)
    machine.until_ended()
    assert machine.processes() == set()


def test_a_session_whose_keeper_is_killed_still_runs_and_can_be_stopped(machine: Machine) -> None:
    machine.launch(children=["own session"])
    machine.until_ready()
    kill(machine.claim()["keeper"])
    running = machine.find()
    assert (running.state, running.detail) == (SessionState.RUNNING, "keeper lost")
    machine.adapter().stop("one", machine.clock.now(), force=True)
    ended = machine.find()
    assert ended.state == SessionState.ENDED
    assert ended.ended is not None
    assert ended.ended <= machine.clock.now()
    assert machine.processes() == set()


def test_a_session_can_be_ended_in_the_instant_it_is_launched(machine: Machine) -> None:
    """Many times, because the agent's process has its group and its mark only after a moment."""
    machine.sessions_max = 20
    for number in range(20):
        machine.launch(f"run-{number}")
        machine.adapter().stop(f"run-{number}", machine.clock.now(), force=True)
    for number in range(20):
        machine.until_ended(f"run-{number}")


def test_a_forced_stop_is_confirmed_even_when_the_keeper_was_stopped(machine: Machine) -> None:
    machine.launch()
    machine.until_ready()
    os.kill(machine.claim()["keeper"], signal.SIGSTOP)
    machine.adapter().stop("one", machine.clock.now(), force=True)
    assert machine.until_ended().detail == "killed by signal 9"


def test_a_full_disk_neither_ends_a_session_nor_keeps_it_from_being_stopped(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.launch()
    machine.until_ready()
    kill(machine.claim()["keeper"])

    def full(*_: object) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("platforms.local.adapter.publish", full)
        assert machine.find().state == SessionState.RUNNING
        machine.adapter().stop("one", machine.clock.now(), force=True)
        assert machine.find().state == SessionState.ENDED
        patch.setattr(Path, "write_text", full)
        with pytest.raises(Refused, match="No space"):
            machine.launch("two")
    assert machine.adapter().find(["two"], machine.clock.now()) == {}
    assert machine.find().state == SessionState.ENDED


def test_how_a_session_ended_on_a_full_disk_is_told_once_there_is_room(machine: Machine) -> None:
    with small_disk(machine.state, "1m"):
        machine.launch()
        machine.until_ready()
        with full(machine.state):
            kill(machine.claim()["agent"])
            pause(0.5)  # in which its keeper finds no room
            assert machine.find().state == SessionState.RUNNING
            over = machine.clock.now()
        ended = machine.until_ended()
        assert ended.detail == "killed by signal 9"
        assert ended.ended <= over
        assert (machine.state / "one" / "ended.json").exists()


def test_a_session_is_over_only_when_its_last_process_is_gone(machine: Machine) -> None:
    """Keeper and agent are killed; a child in a kernel session of its own still holds the session."""
    machine.launch(children=["own session"])
    machine.until(lambda: b"child" in machine.output())
    claim = machine.claim()
    kill(claim["keeper"])
    kill(claim["agent"])
    assert machine.find().state == SessionState.RUNNING
    for pid in machine.processes():
        kill(pid)
    machine.until(lambda: machine.find().state == SessionState.ENDED)


def test_an_end_nobody_saw_is_bounded_by_the_deadline_and_stays(machine: Machine) -> None:
    machine.launch()
    machine.until_ready()
    claim = machine.claim()
    kill(claim["keeper"])
    kill(claim["agent"])
    seen = machine.adapter().find(["one"], claim["ends_by"] + 5000)["one"]
    assert (seen.state, seen.started, seen.ended) == (SessionState.ENDED, claim["started_at"], claim["ends_by"])
    assert machine.find() == seen


def test_a_reused_pid_is_not_taken_for_the_session(machine: Machine) -> None:
    """The claim names pids that live but started at another time, and a group that is somebody else's."""
    machine.launch()
    machine.until_ready()
    claim = machine.claim()
    kill(claim["keeper"])
    kill(claim["agent"])
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as stranger:
        forged = {**claim, "keeper": stranger.pid, "agent": stranger.pid}
        (machine.state / "one" / "claim.json").write_text(json.dumps(forged))
        machine.adapter().stop("one", machine.clock.now(), force=False)
        machine.adapter().stop("one", machine.clock.now(), force=True)
        assert machine.find().state == SessionState.ENDED
        assert stranger.poll() is None
        stranger.kill()


def test_a_claim_of_another_boot_has_ended_whatever_lives_under_its_pids(machine: Machine) -> None:
    machine.launch()
    machine.until_ready()
    claim = machine.claim()
    stranger = {"agent": os.getpid(), "agent_ticks": start_ticks(os.getpid())}
    (machine.state / "one" / "claim.json").write_text(json.dumps({**claim, **stranger, "boot": "another"}))
    assert machine.find().state == SessionState.ENDED
    kill(claim["agent"])
    (machine.state / "one" / "claim.json").write_text(json.dumps(claim))


def test_a_session_that_works_is_alive_whatever_boot_its_claim_names(machine: Machine) -> None:
    """A container may give each sandbox a boot identity of its own."""
    machine.launch()
    machine.until_ready()
    claim = machine.claim()
    (machine.state / "one" / "claim.json").write_text(json.dumps({**claim, "boot": "another"}))
    assert machine.find().state == SessionState.RUNNING
    (machine.state / "one" / "claim.json").write_text(json.dumps(claim))


def test_the_platform_ends_a_session_at_its_deadline(machine: Machine) -> None:
    """An hour of the clock is two real seconds; the agent ignores every polite word."""
    machine.clock = starting_now(1_000_000, 1800.0)
    machine.launch(deaf=True, seconds=3600, children=["own session"])
    claim = machine.claim()
    ended = machine.until_ended()
    assert ended.detail == "killed at the deadline"
    assert ended.ended == claim["ends_by"]
    assert machine.processes() == set()


def test_the_session_cap_of_the_pool_ends_a_session_before_its_deadline(machine: Machine) -> None:
    machine.clock = starting_now(1_000_000, 1800.0)
    machine.cap_seconds = 3600
    machine.launch(deaf=True, seconds=1_000_000)
    ended = machine.until_ended()
    assert ended.started is not None
    assert ended.ended == ended.started + 3600


def test_output_beyond_the_cap_is_dropped_without_blocking_the_payload(machine: Machine) -> None:
    machine.settings = {"log_bytes": "1000"}
    machine.launch(print_bytes=3_000_000, exit=0)
    assert machine.until_ended().detail == "exit code 0"
    assert machine.output() == b"x" * 1000 + b"\n[output beyond 1000 bytes is dropped]\n"


def test_a_payload_sees_no_secret_of_the_daemon_and_is_nice(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", "hunter2")
    monkeypatch.setenv("MODEL_CACHE", "elsewhere")
    machine.settings = {"pass_environment": "MODEL_CACHE", "nice": "7"}
    machine.launch(tell=["SMTP_PASSWORD", "MODEL_CACHE", MARK], exit=0)
    machine.until_ended()
    told, priority = machine.output().splitlines()[0].rsplit(b" ", 1)
    assert json.loads(told) == {
        "SMTP_PASSWORD": None,
        "MODEL_CACHE": "elsewhere",
        MARK: str(machine.state / "one"),
    }
    assert int(priority) == os.getpriority(os.PRIO_PROCESS, 0) + 7
    assert "hunter2" not in (machine.state / "one" / "launch.json").read_text()


def test_sessions_get_devices_of_their_own(machine: Machine) -> None:
    machine.settings = {"devices": "2,5,7"}
    lanes = [{"index": 0, "devices": [0]}, {"index": 1, "devices": [1]}]
    machine.launch("one", devices=2, lanes=lanes)
    launch = json.loads((machine.state / "one" / "launch.json").read_text())
    assert [lane["devices"] for lane in launch["lanes"]] == [[2], [5]]
    with pytest.raises(Refused, match="1 device free"):
        machine.launch("two", devices=2)
    machine.launch("three", devices=1, lanes=lanes[:1])
    launch = json.loads((machine.state / "three" / "launch.json").read_text())
    assert launch["lanes"][0]["devices"] == [7]
    machine.adapter().stop("three", 0, force=True)
    machine.until_ended("three")
    with pytest.raises(Refused) as refused:
        machine.launch("four", devices=1, lanes=lanes)
    assert refused.value.permanent


@pytest.mark.parametrize("spawned_by", ["child"], indirect=True)
def test_a_late_keeper_finds_the_session_void_and_starts_nothing(machine: Machine) -> None:
    """``true`` stands for a keeper that is never scheduled; then the real one comes, too late."""
    machine.python = "/bin/true"
    with pytest.raises(Refused, match="did not claim"):
        machine.launch()
    assert machine.find().state == SessionState.ABSENT
    folder = machine.state / "one"
    keeper = "import sys; from platforms.local.keeper import main; main()"
    words = [folder, machine.clock.now() + 3600, 0, 0.0, 0.0, 1.0, 1000, 0, sys.executable, folder / "agent.py"]
    late = subprocess.run([sys.executable, "-c", keeper, *map(str, words)], capture_output=True, text=True, check=False)
    assert "claimed or void" in late.stderr
    assert late.stdout == ""
    assert machine.find().state == SessionState.ABSENT
    assert machine.output() == b""


@pytest.mark.parametrize("spawned_by", ["child"], indirect=True)
def test_an_interpreter_that_is_not_there_is_refused_with_proof(machine: Machine) -> None:
    machine.python = "/nowhere/python"
    with pytest.raises(Refused, match="/nowhere/python"):
        machine.launch()
    assert machine.find().state == SessionState.ABSENT
