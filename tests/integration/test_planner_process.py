"""The planner in its own process: the same plans, another process when one dies, none at rest, and none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from platforms.local.processes import read_stat
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.outside.child_process import ChildFailed, ChildHost
from scheduler.service.outside.planner_process import PlannerHost
from tests.lab.patience import until
from tests.lab.planner.small import crowded_box


def gone(pid: int) -> bool:
    return read_stat(str(pid)) is None


def pid_of(host: PlannerHost) -> int:
    pid = host.child.pid
    assert pid is not None
    return pid


def acting(body: str, patience_seconds: float = 60.0) -> PlannerHost:
    """A host whose child does ``body`` when it should plan."""
    code = (
        "import os, signal, sys\n"
        "from scheduler.planner.planner import Planner\n"
        f"def plan(self, snapshot, incumbent):\n    {body}\n"
        "Planner.plan = plan\n"
        "from scheduler.service.outside.planner_process import PlannerChild, serve\n"
        "serve(PlannerChild())\n"
    )
    return PlannerHost(PlannerOptions(), (sys.executable, "-c", code), patience_seconds)


def test_plans_are_the_same_as_inside_also_with_a_plan_in_force() -> None:
    inside, host = Planner(), PlannerHost(PlannerOptions())
    first, second = inside.plan(crowded_box()), host.plan(crowded_box(), None)
    assert second == first
    assert host.plan(crowded_box(2.0), second) == inside.plan(crowded_box(2.0), first)
    host.close()


def test_a_planner_that_was_killed_is_replaced_within_the_same_plan() -> None:
    host = PlannerHost(PlannerOptions())
    before = host.plan(crowded_box(), None)
    killed = pid_of(host)
    os.kill(killed, signal.SIGKILL)
    assert host.plan(crowded_box(), None) == before
    assert pid_of(host) != killed
    host.close()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.abort()", "the planner's process was ended by SIGABRT"),
        ("raise ZeroDivisionError('weights')", "ZeroDivisionError: weights"),
        ("signal.pause()", "did not answer in 1 s and was ended"),
    ],
)
def test_one_that_never_plans_is_said_and_the_plain_dispatcher_plans(body: str, why: str) -> None:
    host = acting(body, 1.0 if "pause" in body else 60.0)
    plan = host.plan(crowded_box(), None)
    host.close()
    assert plan.placements, "training goes on"
    assert any(why in warning and "plain dispatcher" in warning for warning in plan.warnings), plan.warnings


def test_without_a_program_to_start_it_says_so_and_plans() -> None:
    plan = PlannerHost(PlannerOptions(), ("/nowhere/python",)).plan(crowded_box(), None)
    assert plan.placements
    assert "did not start" in plan.warnings[0]


def test_it_ends_when_no_plan_was_wanted_for_a_while_and_comes_back() -> None:
    host = PlannerHost(PlannerOptions())
    before = host.plan(crowded_box(), None)
    pid = pid_of(host)
    host.rest_when_idle(100.0, 10.0)
    host.rest_when_idle(109.0, 10.0)
    assert not gone(pid)
    host.plan(crowded_box(), before)
    host.rest_when_idle(111.0, 10.0)
    assert not gone(pid)
    host.rest_when_idle(121.0, 10.0)
    assert gone(pid)
    assert host.plan(crowded_box(), None) == before
    host.close()


def test_it_ends_with_a_daemon_that_was_killed(tmp_path: Path) -> None:
    """And so does the solver that it started."""
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_planner_process import PlannerHost, PlannerOptions, crowded_box\n"
        "host = PlannerHost(PlannerOptions())\n"
        "host.plan(crowded_box(), None)\n"
        "print(host.child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        planner = int(parent.stdout.readline())
        (solver,) = Path(f"/proc/{planner}/task/{planner}/children").read_text().split()
        parent.kill()
    until(lambda: gone(planner) and gone(int(solver)), "the end of planner and solver")


def test_it_loads_nothing_of_a_database(tmp_path: Path) -> None:
    """It starts for each daemon that plans, and takes twice as long with the toolkit that it never uses."""
    code = (
        "import sys\n"
        "from scheduler.service.outside.planner_process import PlannerChild\n"
        "from scheduler.planner.planner import Planner\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'sqlalchemy', 'alembic', 'pydantic'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_child_that_does_not_even_listen_is_given_up() -> None:
    """The question is longer than a pipe holds, so that telling it would take forever as well."""
    host = ChildHost("deaf", (sys.executable, "-c", "import signal; signal.pause()"))
    with pytest.raises(ChildFailed, match="the deaf's process did not answer in 1 s and was ended"):
        host.ask(b"x" * 10_000_000, 1.0)
    assert host.pid is None


def test_what_a_child_prints_is_no_answer() -> None:
    code = (
        "from scheduler.service.outside.child_process import serve\nserve(lambda question: print(question) or question)"
    )
    host = ChildHost("talking", (sys.executable, "-c", code))
    assert [host.ask(word, 60.0) for word in ("one", "two")] == ["one", "two"]
    host.stop()


def test_a_child_at_work_is_ended_from_another_thread() -> None:
    """Within moments: a daemon that is told to stop waits for no plan."""
    code = (
        "import signal\nfrom scheduler.service.outside.child_process import serve\n"
        "serve(lambda question: question and signal.pause())"
    )
    host = ChildHost("busy", (sys.executable, "-c", code))
    host.ask(0, 60.0)
    failures: list[str] = []

    def ask() -> None:
        try:
            host.ask(1, 600.0)
        except ChildFailed as error:
            failures.append(str(error))

    asking = Thread(target=ask)
    asking.start()
    asking.join(0.2)  # until it waits for its answer
    assert asking.is_alive()
    host.kill()
    asking.join(30.0)
    assert failures == ["the busy's process was ended by SIGKILL"]
