"""The planner in its own process: the same plans, another process when one dies, none at rest, and none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.crashes.processes import until
from benchmarks.planner.small import crowded_box
from platforms.local.processes import read_stat
from scheduler.planner import Options, Planner
from scheduler.service.planner_process import PlannerHost


def gone(pid: int) -> bool:
    return read_stat(str(pid)) is None


def pid_of(host: PlannerHost) -> int:
    child = host._child
    assert child is not None
    return child.pid


def acting(body: str, patience_seconds: float = 60.0) -> PlannerHost:
    """A host whose child does ``body`` when it should plan."""
    code = (
        "import os, sys, time\n"
        "from scheduler.planner import Planner\n"
        f"def plan(self, snapshot, incumbent):\n    {body}\n"
        "Planner.plan = plan\n"
        "from scheduler.service.planner_process import serve\n"
        "serve(sys.stdin.buffer, sys.stdout.buffer)\n"
    )
    return PlannerHost(Options(), (sys.executable, "-c", code), patience_seconds)


def test_plans_are_the_same_as_inside_also_with_a_plan_in_force() -> None:
    inside, host = Planner(), PlannerHost(Options())
    first, second = inside.plan(crowded_box()), host.plan(crowded_box(), None)
    assert second == first
    assert host.plan(crowded_box(2.0), second) == inside.plan(crowded_box(2.0), first)
    host.rest()


def test_a_planner_that_was_killed_is_replaced_within_the_same_plan() -> None:
    host = PlannerHost(Options())
    before = host.plan(crowded_box(), None)
    killed = pid_of(host)
    os.kill(killed, signal.SIGKILL)
    assert host.plan(crowded_box(), None) == before
    assert pid_of(host) != killed
    host.rest()


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.abort()", "the planner's process ended"),
        ("raise ZeroDivisionError('weights')", "ZeroDivisionError: weights"),
        ("time.sleep(600)", "gave no plan in 1 s"),
    ],
)
def test_one_that_never_plans_is_said_and_the_plain_dispatcher_plans(body: str, why: str) -> None:
    host = acting(body, 1.0 if "sleep" in body else 60.0)
    plan = host.plan(crowded_box(), None)
    host.rest()
    assert plan.placements, "training goes on"
    assert any(why in warning and "plain dispatcher" in warning for warning in plan.warnings), plan.warnings


def test_without_a_program_to_start_it_says_so_and_plans() -> None:
    plan = PlannerHost(Options(), ("/nowhere/python",)).plan(crowded_box(), None)
    assert plan.placements
    assert "did not start" in plan.warnings[0]


def test_it_ends_when_no_plan_was_wanted_for_a_while_and_comes_back() -> None:
    host = PlannerHost(Options())
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
    host.rest()


def test_it_ends_with_a_daemon_that_was_killed(tmp_path: Path) -> None:
    """And so does the solver that it started."""
    code = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from test_planner_process import PlannerHost, Options, crowded_box\n"
        "host = PlannerHost(Options())\n"
        "host.plan(crowded_box(), None)\n"
        "print(host._child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        planner = int(parent.stdout.readline())
        (solver,) = Path(f"/proc/{planner}/task/{planner}/children").read_text().split()
        parent.kill()
    until(lambda: gone(planner) and gone(int(solver)), "the end of planner and solver")
