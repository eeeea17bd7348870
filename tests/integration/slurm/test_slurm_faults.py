"""Whatever happens to a cluster: no session runs twice, none is called over that may run, and people are told why."""

import subprocess
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from platforms.base import InQueue, Misconfigured, Refused, SessionState, Unreachable
from platforms.registry import checkup
from scheduler.clock import real_now
from tests.lab.patience import pause, until

World = Any  # see conftest.py
DAY = 86_400


def wrap_sbatch(programs: Path, before: str, after: str) -> None:
    """Have sbatch do something before it submits, and after."""
    wrapper = programs / "sbatch"
    wrapper.write_text(f'#!/bin/bash\n{before}\n/usr/bin/sbatch "$@" >/dev/null\n{after}\n')
    wrapper.chmod(0o755)


def test_a_controller_that_comes_back_with_its_state_has_lost_nothing(world: World) -> None:
    running = world.running("one")
    world.lab.saved()
    world.lab.kill_controller()
    hasty = world.adapter(command_seconds="2")
    calls: tuple[Callable[[], Any], ...] = (
        lambda: hasty.find(["one"], int(real_now())),
        lambda: hasty.stop("one", int(real_now()), force=True),
        lambda: hasty.launch(world.request("two"), int(real_now())),
    )
    for call in calls:
        with pytest.raises(Unreachable):
            call()
    world.lab.start_controller()
    assert world.find("one") == running
    assert world.find("two") is None  # it was not submitted, for the queue could not be looked at before
    assert world.jobs() == [("one", "RUNNING")]


def test_a_controller_that_was_killed_before_it_saved_that_a_job_started_runs_it_no_second_time(world: World) -> None:
    world.running("one")
    world.lab.kill_controller()
    world.lab.start_controller()
    seen = {world.find("one").state for _ in range(5)}
    assert seen <= {SessionState.RUNNING, SessionState.UNCLEAR, SessionState.ENDED}
    adapter = world.adapter()
    adapter.stop("one", int(real_now()), force=True)
    until(lambda: adapter.find(["one"], int(real_now()) + 4_000)["one"].state is SessionState.ENDED, "its end")
    assert world.output("one").count("hello") == 1


def test_a_controller_that_hangs_is_waited_for_no_longer_than_the_limit(world: World) -> None:
    running = world.running("one")
    with world.lab.silence(), pytest.raises(Unreachable):
        world.adapter(command_seconds="1").find(["one"], int(real_now()))
    assert world.find("one") == running


def test_a_job_that_starts_or_ends_during_a_look_keeps_the_seconds_of_slurm(world: World) -> None:
    before = int(real_now()) - 1
    started = world.running("one").started
    (world.folder / "state" / "sessions").rename(world.folder / "lost")  # nobody has seen it run yet
    assert world.adapter().find(["one"], before)["one"].state is SessionState.QUEUED
    assert world.find("one").started == started
    before = int(real_now()) - 1
    world.lab.say("scancel", "--name=one")
    assert world.until("one", SessionState.ENDED).ended > before
    (world.folder / "state" / "sessions").rename(world.folder / "lost once more")
    assert world.adapter().find(["one"], before)["one"].state is SessionState.UNCLEAR


@pytest.fixture(params=[90, -90], ids=["ahead", "behind"])
def off(world: World, request: pytest.FixtureRequest) -> Iterator[int]:
    """The controller's clock is off by so many seconds; of jobs that are over by now it remembers none as waiting."""
    world.lab.kill_controller(forget=True)
    world.lab.start_controller(keep_state=False, off_seconds=request.param)
    yield request.param
    world.lab.clear()
    world.lab.kill_controller(forget=True)
    world.lab.start_controller(keep_state=False)


def test_a_controller_whose_clock_is_off_changes_nobodys_hours(world: World, off: int) -> None:
    before = real_now()
    ran = world.running("ran")
    assert before - 2 <= ran.started <= real_now()
    world.launch("waits", adapter=world.adapter(gres="gpu:h100", exclude="n1"), devices=4)
    world.until("waits", SessionState.RUNNING)
    late = world.adapter(gres="gpu:h100", exclude="n1")
    world.launch("late", adapter=late, devices=4)
    assert world.until("late", SessionState.QUEUED, later=60).detail.startswith("pending: ")
    # What this side remembered is gone: all that is known now is by Slurm's clock.
    (world.folder / "state" / "sessions").rename(world.folder / "lost")
    found = world.find("ran", later=60)
    assert (found.state, found.remote_id) == (SessionState.RUNNING, ran.remote_id)
    assert abs(found.started - ran.started) <= 2
    assert world.find("late", later=20).state is SessionState.QUEUED
    asked = real_now()
    world.lab.say("scancel", "--name=ran")
    ended = world.until("ran", SessionState.ENDED)
    assert (ended.told, ended.started) == (True, found.started)
    assert asked - 2 <= ended.ended <= real_now()
    told = world.lab.say("squeue", "-h", "-t", "all", "-j", ran.remote_id, "-o", "%S %e").split()
    first, last = (datetime.fromisoformat(each).timestamp() for each in told)
    assert (first - ended.started, last - ended.ended) == (pytest.approx(off, abs=2), pytest.approx(off, abs=2))
    checked = checkup("slurm", {"slurm_conf": str(world.lab.conf)}, {}, real_now(), probe=False)["clock"]()
    assert checked.grade == "warning"
    assert "corrected" in checked.found


def test_a_controller_without_its_state_leaves_what_ran_unknown_and_what_waited_is_given_up(world: World) -> None:
    ran = world.running("ran")
    world.launch("waited", adapter=world.adapter(gres="gpu:h100", exclude="n1"), devices=4)
    world.until("waited", SessionState.RUNNING)
    world.launch("waits", adapter=world.adapter(gres="gpu:h100", exclude="n1"), devices=4)
    assert world.until("waits", SessionState.QUEUED, later=60).detail.startswith("pending: ")
    world.lab.kill_controller(forget=True)
    world.lab.start_controller(keep_state=False)
    until(lambda: world.find("ran", later=60).state is SessionState.UNCLEAR, "its being unknown")
    # Its order is young: a look right away gives Slurm the time to show it.
    assert world.find("waits").state is SessionState.QUEUED
    given_up = world.find("waits", later=60)
    assert given_up.state is SessionState.ABSENT
    assert "claim is taken" in given_up.detail
    assert world.launch("waits").state is SessionState.ABSENT
    assert "does not know" in world.find("ran", later=3_000).detail
    over = world.find("ran", later=DAY)
    assert (over.state, over.told, over.started) == (SessionState.ENDED, False, ran.started)
    assert world.jobs() == []


def test_a_lost_answer_of_sbatch_is_found_again_by_its_key(world: World, programs: Path) -> None:
    wrap_sbatch(programs, "", "kill -9 $$")
    with pytest.raises(Unreachable):
        world.launch("one")
    seen = world.until("one", SessionState.RUNNING)
    again = world.launch("one")
    assert (again.state, again.remote_id) == (SessionState.RUNNING, seen.remote_id)
    assert world.jobs() == [("one", "RUNNING")]


def test_a_job_that_was_never_submitted_is_proved_so_and_one_that_comes_late_leaves(
    world: World, programs: Path
) -> None:
    wrap_sbatch(programs, "kill -9 $$", "")
    with pytest.raises(Unreachable):
        world.launch("one")
    assert world.find("one").state is SessionState.QUEUED
    assert world.find("one", later=60).state is SessionState.ABSENT
    folder = world.folder / "state" / "cluster" / "one"
    # The connection came back, and brought what had been sent into it.
    late = ["/usr/bin/sbatch", "--job-name=one", f"--chdir={folder}", f"--output={folder}/output.log", "job.sh"]
    subprocess.run(late, cwd=folder, env=world.lab.environment(), check=True, capture_output=True)
    until(lambda: world.jobs() == [("one", "COMPLETED")], "its end")
    assert world.output("one") == ""
    assert world.find("one", later=60).state is SessionState.ABSENT


def test_of_two_jobs_of_one_key_one_runs(world: World) -> None:
    world.running("one")
    folder = world.folder / "state" / "cluster" / "one"
    second = ["/usr/bin/sbatch", "--job-name=one", f"--chdir={folder}", f"--output={folder}/output.log"]
    second += ["--open-mode=append", "job.sh"]
    subprocess.run(second, cwd=folder, env=world.lab.environment(), check=True, capture_output=True)
    until(lambda: world.jobs() == [("one", "COMPLETED"), ("one", "RUNNING")], "the second one's end")
    assert world.output("one").count("hello") == 1
    assert world.find("one").state is SessionState.RUNNING


def test_scancel_by_hand_ends_what_ran_and_proves_that_what_waited_never_did(world: World) -> None:
    ran = world.running("ran")
    world.launch("waits-long", adapter=world.adapter(partition="gpu"), seconds=2 * DAY)
    until(lambda: "lower session_cap" in world.find("waits-long").detail, "the reason")
    world.lab.say("scancel", "--name=ran")
    world.lab.say("scancel", "--name=waits-long")
    ended = world.until("ran", SessionState.ENDED)
    assert ended.detail == "CANCELLED: cancelled, by scancel or an administrator"
    assert ended.started == ran.started
    assert "saved" in world.output("ran")
    assert "before it could start" in world.until("waits-long", SessionState.ABSENT).detail


def test_a_drained_node_lets_sessions_end_and_says_why_others_wait(world: World) -> None:
    world.running("one")
    world.admin("update", "NodeName=n1,n2", "State=DRAIN", "Reason=maintenance")
    try:
        world.launch("two")
        until(lambda: "down, drained or reserved" in world.find("two").detail, "the reason")
        assert world.find("one").state is SessionState.RUNNING
    finally:
        world.admin("update", "NodeName=n1,n2", "State=RESUME")
    world.until("two", SessionState.RUNNING)


def test_a_job_that_waits_tells_why_and_when_slurm_expects_to_start_it(world: World) -> None:
    for key in ("one", "two"):
        world.launch(key, adapter=world.adapter(gres="gpu:h100"), devices=4, seconds=7_200)
        world.until(key, SessionState.RUNNING)
    world.launch("waits", adapter=world.adapter(gres="gpu:h100"), devices=4)

    def told() -> InQueue | None:
        waits = world.find("waits").waits
        return waits if waits is not None and waits.starts_at and "None" not in waits.why else None

    waits = until(told, "a reason and an estimate")
    assert waits.why == "pending: Resources (it is next, and waits for free nodes)"
    # When the first of the others reaches its time limit.
    assert waits.starts_at is not None
    assert real_now() + 6_000 < waits.starts_at < real_now() + 7_600


def test_a_node_that_fails_ends_its_session(world: World) -> None:
    world.running("one")
    node = world.lab.say("squeue", "-h", "-o", "%N").strip()
    world.admin("update", f"NodeName={node}", "State=DOWN", "Reason=smoke")
    try:
        assert world.until("one", SessionState.ENDED).detail.startswith("NODE_FAIL")
    finally:
        world.admin("update", f"NodeName={node}", "State=RESUME")
        until(lambda: "idle" in world.lab.say("sinfo", "-h", "-n", node, "-o", "%t"), "the node")


def test_a_node_whose_daemon_is_killed_runs_its_session_on_and_takes_it_back(world: World) -> None:
    ran = world.running("one")
    node = world.lab.say("squeue", "-h", "-o", "%N").strip()
    world.lab.kill_node(node)
    try:
        assert world.find("one") == ran
        # What cannot reach its node now reaches it when the daemon is back, or is asked for again.
        world.adapter().stop("one", int(real_now()), force=False)
        assert world.find("one").state is SessionState.RUNNING
    finally:
        world.lab.start_node(node)

    def ended() -> bool:
        world.adapter().stop("one", int(real_now()), force=False)
        return world.find("one").state is SessionState.ENDED

    until(ended, "its end", every=1)
    assert world.output("one").count("hello") == 1
    assert world.output("one").endswith("saved\n")
    until(lambda: "idle" in world.lab.say("sinfo", "-h", "-n", node, "-o", "%t"), "the node")


def test_a_job_that_an_administrator_requeues_is_over_and_never_runs_again(world: World) -> None:
    ran = world.running("one")
    world.admin("update", f"JobId={ran.remote_id}", "Requeue=1")
    world.admin("requeue", ran.remote_id)
    ended = world.until("one", SessionState.ENDED)
    assert ended.started == ran.started
    # Called off while it waits; or it began once more before anybody looked, found its claim taken and left.
    over = ([("one", "CANCELLED")], [("one", "COMPLETED")])
    until(lambda: world.jobs() in over, "the end of the requeued job", 100)
    assert world.output("one").count("hello") == 1


def test_asked_to_leave_it_saves_and_its_gpus_are_those_that_it_was_given(world: World) -> None:
    far = world.adapter(gres="gpu:h100")
    world.launch("first", adapter=far, devices=2, lanes=[{"devices": [0, 1]}])
    world.until("first", SessionState.RUNNING)
    world.launch("second", adapter=world.adapter(gres="gpu:h100"), devices=2, lanes=[{"devices": [1]}])
    job = world.until("second", SessionState.RUNNING).remote_id
    until(lambda: "hello" in world.output("second"), "its hello")
    given = world.output("second").split()
    devices = [int(each) for each in given[1].split(",")]
    assert len(devices) == 2
    assert given[2] == f"[[{devices[1]}]]"
    world.adapter().stop("second", int(real_now()), force=False)
    ended = world.until("second", SessionState.ENDED)
    assert ended.detail == "COMPLETED"
    assert world.output("second").endswith("saved\n")
    booked = world.lab.say("squeue", "-h", "-t", "all", "-j", job, "-o", "%S %e")
    assert len(booked.split()) == 2


def test_what_sbatch_refuses_is_told_and_nothing_is_left_of_it(world: World) -> None:
    with pytest.raises(Misconfigured, match="partition"):
        world.launch("one", adapter=world.adapter(partition="nowhere"))
    with pytest.raises(Misconfigured, match="configuration is not available"):
        world.launch("one", adapter=world.adapter(gres="gpu:h100"), devices=9)
    assert world.find("one") is None
    assert world.launch("one").state is SessionState.QUEUED


def test_no_more_jobs_wait_than_pending_max(world: World) -> None:
    world.admin("update", "PartitionName=gpu", "State=DOWN")
    try:
        world.launch("one", adapter=world.adapter(pending_max="1"))
        with pytest.raises(Refused, match="pending_max"):
            world.launch("two", adapter=world.adapter(pending_max="1"))
    finally:
        world.admin("update", "PartitionName=gpu", "State=UP")


def test_a_pool_without_its_state_folder_finds_its_jobs_again(world: World) -> None:
    running = world.running("one")
    (world.folder / "state" / "sessions").rename(world.folder / "lost")
    found = world.find("one")
    assert found == running
    assert world.launch("one") == running
    pause()
    assert world.jobs() == [("one", "RUNNING")]


@pytest.mark.nightly
def test_a_time_limit_that_an_administrator_cuts_short_saves_and_ends(world: World) -> None:
    ran = world.running("one")
    world.admin("update", f"JobId={ran.remote_id}", "TimeLimit=1")
    ended = world.until("one", SessionState.ENDED)
    assert ended.detail.split(" ")[0].rstrip(":") in {"TIMEOUT", "COMPLETED"}
    assert "saved" in world.output("one")
    assert 0 < ended.ended - ended.started < 240


@pytest.mark.nightly
def test_what_sbatch_accepted_and_a_killed_controller_forgot_is_found_missing(world: World) -> None:
    world.sessions_max = 100
    adapter = world.adapter(pending_max="100")
    keys = [f"run-{number}" for number in range(40)]
    for key in keys:
        adapter.launch(world.request(key), int(real_now()))
    world.lab.kill_controller()
    world.lab.start_controller()
    found = {key: world.adapter().find([key], int(real_now()) + 60)[key] for key in keys}
    known = {name for name, _ in world.jobs()}
    absent = {key for key in keys if found[key].state is SessionState.ABSENT}
    # On a quick machine some had begun: their programs do not need the controller.
    begun = {key for key in keys if "it may run until its deadline" in found[key].detail}
    assert absent
    assert absent | begun == set(keys) - known
