"""The same through a real slurmrestd: what it cannot do is made up for, and what breaks on the way ends nothing.

The tests of faults and of conformance run over it as well, at night.
"""

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from platforms.base import Misconfigured, SessionState, Unreachable
from platforms.registry import checkup
from scheduler.clock import real_now
from tests.lab.patience import until
from tests.lab.slurm import slurm_lab
from tests.lab.slurm_rest import RestLab, lossy_way

World = Any  # see conftest.py
HELPED = """
import signal, subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "import signal; print('helper', flush=True); signal.pause()"])
def leave(*_):
    print("helper lives" if helper.poll() is None else "helper died", flush=True)
    helper.kill()
    print("saved", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("hello", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[RestLab]:
    """A cluster with a slurmrestd."""
    with slurm_lab(RestLab) as made:
        assert isinstance(made, RestLab)
        yield made


@pytest.fixture
def world(world: World, lab: RestLab) -> World:
    """An empty pool that asks it at its socket."""
    world.options = lab.options()
    return world


def test_a_session_runs_is_never_requeued_and_leaves_when_its_script_is_asked(world: World, lab: RestLab) -> None:
    world.options = lab.options(http=True)
    (world.folder / "bundle" / "payload" / "agent.py").write_text(HELPED)
    ran = world.running("one", adapter=world.adapter(gres="gpu:h100", exclude="n1", memory="2G"), devices=2)
    until(lambda: "helper" in world.output("one"), "its helper")
    until(lambda: "Requeue=0" in world.admin("show", "job", ran.remote_id), "that it is not to be requeued")
    told = lab.say("squeue", "-h", "-o", "%N|%b|%m|%x|%u").strip()
    assert told == "n2|gres:gpu:h100:2|2G|n1|root"
    world.adapter().stop("one", int(real_now()), force=False)
    assert world.until("one", SessionState.ENDED).detail == "COMPLETED"
    # A signal through the API would have reached all processes, and a training loses the helpers that it saves with.
    assert world.output("one").endswith("helper lives\nsaved\n")
    assert lab.books()["one"] == (ran.started, world.find("one").ended)


def test_a_job_of_somebody_else_with_our_comment_is_not_ours(world: World, lab: RestLab) -> None:
    world.running("one")
    comment = lab.say("squeue", "-h", "-o", "%k").strip().replace('"one"', '"two"')
    lab.say(
        "sbatch", "--uid=nobody", "--chdir=/", f"--comment={comment}", "--output=/dev/null", "--hold", "--wrap=true"
    )
    until(lambda: "nobody" in lab.say("squeue", "-h", "-o", "%u"), "their job")
    assert world.find("two") is None
    assert list(world.adapter().orphans(["one"], int(real_now()))) == []


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_lost_submission_is_found_again_or_proved_never_to_have_been(world: World, lab: RestLab, lost: str) -> None:
    with lossy_way(lab.root / "lossy", lab.socket) as way:
        world.options["slurmrestd"] = f"unix:{lab.root / 'lossy'}"
        way.loses = lost
        with pytest.raises(Unreachable):
            world.launch("one")
        way.loses = ""
        if lost == "request":
            assert world.find("one").state is SessionState.QUEUED
            assert world.find("one", later=60).state is SessionState.ABSENT
            assert world.jobs() == []
        else:
            seen = world.until("one", SessionState.RUNNING)
            assert world.launch("one").remote_id == seen.remote_id
            assert world.jobs() == [("one", "RUNNING")]


def test_without_slurmrestd_nothing_ends_and_nothing_is_submitted(world: World, lab: RestLab) -> None:
    running = world.running("one")
    lab.kill_rest()
    calls: tuple[Callable[[], Any], ...] = (
        lambda: world.find("one"),
        lambda: world.launch("two"),
        lambda: world.adapter().stop("one", int(real_now()), force=True),
    )
    for call in calls:
        with pytest.raises(Unreachable, match="cannot be reached"):
            call()
    lab.start_rest()
    assert world.find("one") == running
    assert world.find("two") is None
    assert world.jobs() == [("one", "RUNNING")]


def test_a_token_that_is_spent_somebody_elses_or_none_is_told_and_never_shown(
    world: World, lab: RestLab, tmp_path: Path
) -> None:
    def token(**claims: Any) -> str:
        middle = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"head.{middle}.signature"

    world.options["token_file"] = str(tmp_path / "token")
    with pytest.raises(Misconfigured, match="No such file"):
        world.find("one")
    given = {
        "holds no token": " ",
        "the token is over": token(sun="root", exp=1),
        "folder is root's, and slurmrestd runs jobs as nobody": lab.token("nobody"),
    }
    for why, text in given.items():
        (tmp_path / "token").write_text(text)
        with pytest.raises(Misconfigured, match=why) as error:
            world.launch("one")
        assert not text.strip() or text not in repr(error.value)
    # Slurm says of a token that it does not believe no more than of a controller that is away.
    forged = token(sun="root", exp=1 << 40)
    (tmp_path / "token").write_text(forged)
    with pytest.raises(Unreachable) as unknown:
        world.launch("one")
    assert forged not in repr(unknown.value)
    assert world.jobs() == []


def test_what_slurm_refuses_is_told_and_nothing_is_left_of_it(world: World) -> None:
    with pytest.raises(Misconfigured, match="partition"):
        world.launch("one", adapter=world.adapter(partition="nowhere"))
    with pytest.raises(Misconfigured, match="configuration is not available"):
        world.launch("one", adapter=world.adapter(gres="gpu:h100"), devices=9)
    assert world.find("one") is None


def test_doctor_looks_at_slurmrestd_and_submits_nothing(world: World, lab: RestLab, tmp_path: Path) -> None:
    def grades(**options: str) -> dict[str, str]:
        checks = checkup("slurm", {**lab.options(), **options}, {}, real_now(), probe=False)
        return {name: check().grade for name, check in checks.items()}

    lab.make_token(90_000)
    fine = {"slurmrestd": "ok", "nodes": "ok", "clock": "ok", "account": "ok", "folder": "ok"}
    assert grades(folder=str(tmp_path)) | {"folder": "ok"} == fine  # whose file system is this machine's own
    assert grades(partition="nowhere")["nodes"] == "bad"
    lab.make_token(600)
    assert grades()["slurmrestd"] == "warning"
    world.admin("update", "NodeName=n1,n2", "State=DRAIN", "Reason=maintenance")
    try:
        assert grades()["nodes"] == "warning"
    finally:
        world.admin("update", "NodeName=n1,n2", "State=RESUME")
    assert world.jobs() == []
    lab.kill_rest()
    with pytest.raises(Unreachable):
        grades()
    lab.start_rest()
