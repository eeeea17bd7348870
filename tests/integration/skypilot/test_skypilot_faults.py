"""What goes wrong between us, SkyPilot and its clouds starts nothing twice, and leaves no machine behind."""

import json
import random
import shutil
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from platforms.base import InQueue, SessionState, Unreachable
from scheduler.clock import real_now
from tests.lab.faults import Fault
from tests.lab.patience import until

if TYPE_CHECKING:
    from tests.integration.skypilot.conftest import World

OVER = (SessionState.ENDED, SessionState.ABSENT)
LOST = [Fault.DROP_AFTER_COMMIT, Fault.ERROR_AFTER_COMMIT]
NOT_DONE = [Fault.DROP, Fault.SERVER_ERROR]


@pytest.mark.parametrize("fault", LOST)
def test_a_launch_whose_answer_is_lost_is_found_and_not_repeated(world: "World", fault: Fault) -> None:
    world.server.faults.add("/launch", fault)
    with pytest.raises(Unreachable):
        world.launch("one")
    assert world.launch("one").state in {SessionState.QUEUED, SessionState.RUNNING}
    world.until("one", SessionState.RUNNING)
    assert world.launches() == [world.name("one")]
    assert world.server.started == ["one"]


@pytest.mark.parametrize("fault", NOT_DONE)
def test_a_launch_that_never_arrived_is_given_up_when_none_can_start_any_more(world: "World", fault: Fault) -> None:
    world.server.faults.add("/launch", fault)
    with pytest.raises(Unreachable):
        world.launch("one")
    for later in (0, 1790):
        waits = world.find("one", later)
        assert waits is not None
        assert waits.state is SessionState.QUEUED
        assert waits.waits is not None
    assert world.until("one", *OVER, later=1810).state is SessionState.ABSENT
    assert world.launch("one").state is SessionState.ABSENT
    assert world.launches() == []


def test_what_was_never_sent_may_be_launched_again(world: "World") -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with pytest.raises(Unreachable):
        world.adapter(address=nobody).launch(world.request("one"), int(real_now()))
    world.running("one")
    assert world.launches() == [world.name("one")]


def test_a_launch_that_arrives_after_it_was_given_up_trains_nothing_and_is_taken_down(world: "World") -> None:
    world.server.faults.add("/launch", Fault.DROP)
    with pytest.raises(Unreachable):
        world.adapter(start_minutes="0").launch(world.request("one"), int(real_now()))
    world.until("one", SessionState.ABSENT, later=5)
    world.launch("other")
    task = json.dumps(world.server.tasks[-1]).replace("other", "one").replace("start_by=1", "start_by=0 x=1")
    body = {"task": task, "cluster_name": world.name("one"), "env_vars": {"SKYPILOT_USER_ID": "0badcafe"}}
    world.server.begin("/launch", body).done.wait()
    gave_up = world.server.clusters[world.name("one")].jobs[0]
    until(lambda: gave_up.status == "FAILED", "its end")
    assert b"was given up before it could start" in gave_up.output.read_bytes()
    assert [one.key for one in world.adapter().orphans(["other"], int(real_now()))] == []
    until(lambda: world.name("one") not in world.server.clusters, "its cluster's end")


def test_a_second_job_of_one_key_on_its_cluster_finds_the_claim_and_leaves(world: "World") -> None:
    world.launch("one", lasting=False)
    cluster = until(lambda: world.server.clusters.get(world.name("one")), "its cluster")
    until(lambda: [job.status for job in cluster.jobs] == ["SUCCEEDED"], "its job")
    body = {"task": json.dumps(world.server.tasks[0]), "cluster_name": cluster.name}
    world.server.begin("/launch", body).done.wait()
    until(lambda: [job.status for job in cluster.jobs] == ["SUCCEEDED", "SUCCEEDED"], "both jobs")
    printed = [job.output.read_bytes() for job in cluster.jobs]
    assert printed == [b"hello from one\n", b"uff: one has run here already\n"]


def test_a_set_up_that_failed_is_taken_down_and_what_it_held_is_told(world: "World") -> None:
    world.server.bad_setup.add("one")
    world.launch("one")
    next(one for one in list(world.server.requests.values()) if one.name == "sky.launch").done.wait()
    assert world.name("one") in world.server.clusters  # billed, and with no autodown
    ended = world.until("one", *OVER)
    assert ended.state is SessionState.ENDED
    assert ended.started is not None
    assert world.server.clusters == {}
    assert world.server.started == []


def test_where_no_machine_is_to_be_had_the_session_never_started(world: "World") -> None:
    world.server.no_capacity.add("one")
    world.launch("one")
    absent = world.until("one", *OVER)
    assert absent.state is SessionState.ABSENT
    assert "ResourcesUnavailableError: Failed to acquire resources" in absent.detail


def test_a_machine_that_is_taken_back_ends_its_session_though_the_records_say_it_is_up(world: "World") -> None:
    running = world.running("one")
    world.server.preempt(world.name("one"))
    assert world.server.clusters[world.name("one")].status == "UP"
    ended = world.until("one", *OVER)
    assert ended.state is SessionState.ENDED
    assert ended.started == running.started
    assert not ended.told  # it was gone before anybody noticed
    assert ended.taken, "its end is no failure of its job"
    assert "taken back" in ended.detail
    assert "by SkyPilot's estimate" in ended.detail


def test_a_session_whose_machine_is_being_made_waits_and_says_at_which_stage(world: "World") -> None:
    world.server.provisioning.clear()
    world.launch("one")
    until(lambda: world.name("one") in world.server.clusters, "its cluster")
    waits = world.find("one")
    assert waits is not None
    assert (waits.state, waits.waits) == (SessionState.QUEUED, InQueue("launch running; its cluster is INIT"))
    world.server.provisioning.set()
    running = world.until("one", SessionState.RUNNING)
    assert running.waits is None
    world.adapter().stop("one", int(real_now()), force=True)
    assert not world.until("one", *OVER).taken, "we took it down"


def test_a_session_that_is_done_is_taken_down_at_once_and_its_log_is_kept(world: "World") -> None:
    world.launch("one", lasting=False)
    ended = world.until("one", *OVER)
    assert ended.told
    assert world.server.clusters == {}
    assert world.output("one") == b"hello from one\n"


def test_what_took_itself_down_has_ended(world: "World") -> None:
    world.launch("one", lasting=False)
    world.adapter(poll_seconds="3600")
    cluster = until(lambda: world.server.clusters.get(world.name("one")), "its cluster")
    until(lambda: cluster.jobs and cluster.jobs[0].status == "SUCCEEDED", "its job")
    world.server.autodown(cluster.name)
    ended = world.until("one", *OVER)
    assert ended.state is SessionState.ENDED
    assert not ended.told


def test_a_launch_that_gets_no_machine_in_time_is_cancelled_and_taken_down(world: "World") -> None:
    world.server.provisioning.clear()
    world.launch("one")
    until(lambda: world.server.clusters, "its machine")
    assert world.until("one", SessionState.QUEUED, later=1790).detail == "launch running"
    assert world.until("one", *OVER, later=1810).state is SessionState.ENDED  # its machine may have been billed
    assert world.server.clusters == {}
    assert world.server.started == []


@pytest.mark.parametrize("force", [False, True])
def test_a_session_that_is_stopped_while_its_machine_is_made_never_starts(world: "World", force: bool) -> None:
    world.server.provisioning.clear()
    world.launch("one")
    until(lambda: world.server.clusters, "its machine")
    world.adapter().stop("one", int(real_now()), force=force)
    world.until("one", *OVER)
    assert world.server.clusters == {}
    assert world.server.started == []


@pytest.mark.parametrize("asks", ["find", "launch"])
def test_a_lost_state_folder_starts_nothing_twice(world: "World", asks: str) -> None:
    world.running("one")
    shutil.rmtree(world.folder / "state")
    if asks == "launch":
        world.launch("one")
    assert world.until("one", SessionState.RUNNING).started is not None
    assert world.launches() == [world.name("one")]


def test_a_server_that_forgot_its_requests_changes_nothing(world: "World") -> None:
    running = world.running("one")
    world.server.forget()
    assert world.find("one") == running
    assert world.launch("one") == running


def test_clusters_of_others_are_left_alone(world: "World") -> None:
    world.running("one")
    world.state = "elsewhere"
    other = world.adapter(owner="00000001")
    assert list(other.orphans((), int(real_now()))) == []
    assert other.find(["one"], int(real_now())) == {}
    other.stop("one", int(real_now()), force=True)
    assert list(world.server.clusters) == [world.name("one")]


def test_what_nobody_knows_any_more_is_found_by_its_name_and_stopped(world: "World") -> None:
    world.running("one")
    shutil.rmtree(world.folder / "state")
    (orphan,) = world.adapter().orphans((), int(real_now()))
    assert (orphan.key, orphan.state) == ("one", SessionState.RUNNING)
    world.adapter().stop(orphan.key, int(real_now()), force=True)
    until(lambda: not world.server.clusters, "its end")


@pytest.mark.parametrize("seed", range(8))
def test_whatever_answers_are_lost_one_key_runs_once_and_no_machine_is_left(world: "World", seed: int) -> None:
    chance = random.Random(seed)
    kinds = [*LOST, *NOT_DONE]
    world.server.faults.draw = lambda call: chance.choice(kinds) if call and chance.random() < 0.25 else None
    keys = ["one", "two"]
    for key in keys:
        for _ in range(5):  # as a daemon does not: it looks before it launches anew
            with suppress(Unreachable):
                world.launch(key)

    def states(later: int = 0) -> set[str]:
        with suppress(Unreachable):
            found = world.adapter().find(keys, int(real_now()) + later)
            return {found[key].state for key in keys if key in found}
        return set()

    until(lambda: world.server.started or states(1810) == {"absent"}, "a start, or the end of all hope")
    until(lambda: not any(one.finished_at is None for one in list(world.server.requests.values())), "quiet")

    def stopped() -> bool:
        for key in keys:
            with suppress(Unreachable):
                world.adapter().stop(key, int(real_now()), force=True)
        return states(1810) <= {"ended", "absent"} and not world.server.clusters and bool(states(1810))

    until(stopped, "the end of all")
    assert len(world.server.started) == len(set(world.server.started))
    assert len(world.launches()) == len(set(world.launches()))
