"""The solver in its own process: the same plans, and a valid one with a warning when it aborts, hangs or is missing."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from scheduler.service.outside.solver_process import SolverHost
from tests.lab.patience import PATIENCE_SECONDS
from tests.lab.planner.small import crowded_box


def broken(body: str) -> SolverHost:
    """A host whose child does ``body`` when it should solve."""
    code = (
        "import os, signal, sys\n"
        "from scheduler.planner.lp.solver import Solver\n"
        f"def solve(self, programme):\n    {body}\n"
        "Solver.solve = solve\n"
        "from scheduler.service.outside.solver_process import SolverChild, serve\n"
        "serve(SolverChild())\n"
    )
    return SolverHost((sys.executable, "-c", code), patience_seconds=0.5)


def test_plans_are_the_same_as_with_the_solver_inside() -> None:
    """Also warm, and with two planners that remember different programmes in one child."""
    inside, host = Planner(), SolverHost()
    first, second = Planner(PlannerOptions(solver=host)), Planner(PlannerOptions(solver=host))
    for weight in (1.0, 2.0, 1.5):
        found = first.plan(crowded_box(weight))
        assert (found.digest, found.bound, found.warnings) == (*_digest_and_bound(inside.plan(crowded_box(weight))), ())
        assert second.plan(crowded_box(weight + 5)).warnings == ()


def _digest_and_bound(plan: object) -> tuple[object, object]:
    return plan.digest, plan.bound  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("os.abort()", "was ended by SIGABRT"),
        ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
        ("sys.exit(3)", "ended with status 3"),
        ("signal.pause()", "did not answer in 0.5 s and was ended"),
    ],
)
def test_a_solver_that_dies_or_hangs_costs_the_bound_alone(body: str, why: str) -> None:
    """Every time anew: the next plan starts another child."""
    limit = 0.0 if "pause" in body else 20.0
    planner = Planner(PlannerOptions(solver=broken(body), time_limit_seconds=limit))
    for _ in range(2):
        plan = planner.plan(crowded_box())
        assert plan.bound is None
        assert why in plan.warnings[0]
        assert "without a bound" in plan.warnings[0]
        assert verify(crowded_box(), plan) == []
        assert plan.placements


def test_a_solver_that_died_is_started_again() -> None:
    host = SolverHost()
    planner = Planner(PlannerOptions(solver=host))
    assert planner.plan(crowded_box()).bound is not None
    assert host.child.pid is not None
    os.kill(host.child.pid, signal.SIGKILL)
    assert "was ended by SIGKILL" in planner.plan(crowded_box(2.0)).warnings[0]
    assert planner.plan(crowded_box(2.0)).warnings == ()


def test_a_program_that_does_not_exist_is_a_warning() -> None:
    plan = Planner(PlannerOptions(solver=SolverHost(("/nowhere/python",)))).plan(crowded_box())
    assert "did not start" in plan.warnings[0]
    assert plan.placements


def test_the_child_goes_with_its_host() -> None:
    host = SolverHost()
    Planner(PlannerOptions(solver=host)).plan(crowded_box())
    pid = host.child.pid
    assert pid is not None
    del host
    gc.collect()
    assert not Path(f"/proc/{pid}").exists()


def test_the_child_goes_when_its_parent_is_killed() -> None:
    """It holds the pipe of standard error for as long as it lives; that closes without anybody asking."""
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from test_solver_process import *\n"
        "host = SolverHost()\n"
        "Planner(PlannerOptions(solver=host)).plan(crowded_box())\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True)
    _, err = parent.communicate(timeout=PATIENCE_SECONDS)
    assert err == ""
    assert parent.returncode == -signal.SIGKILL
