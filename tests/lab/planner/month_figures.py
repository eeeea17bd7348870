"""Figures of the month: the planner against simple orders and an oracle, as it is and with 2.5 times the work."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from scheduler.core.plan import Plan
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.dispatch.orders import in_order
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN
from scheduler.planner.planner import Planner, PlannerOptions
from tests.lab.planner.figures import Figures, say, shared_out
from tests.lab.planner.month import Decide, Month, Simulation

ORACLE = "oracle"
RULES = ("planner", "density", "smith", "fifo", ORACLE)
BUSY = 2.5  # times the work


def month(seeds: Sequence[int], workers: int = 1) -> Figures:
    """Months in a closed loop; flow is a ratio to each order's, all else the planner's mean or worst."""
    tasks = [(seed, name, work) for work in (BUSY, 1.0) for name in RULES for seed in seeds]
    found = dict(zip(tasks, shared_out(_month, tasks, workers), strict=True))

    def flow(name: str, work: float) -> float:
        return mean(found[seed, name, work].flow for seed in seeds)

    ours = [found[seed, "planner", 1.0] for seed in seeds]
    ratios = {f"month_flow_over_{name}": flow("planner", 1.0) / flow(name, 1.0) for name in RULES[1:]}
    ratios |= {f"busy_flow_over_{name}": flow("planner", BUSY) / flow(name, BUSY) for name in RULES[1:]}
    return ratios | {
        "month_done_share": min(one.done / one.jobs for one in ours),
        "month_on_time_share": min(one.on_time / one.due for one in ours),
        "month_idle_share": mean(one.idle for one in ours),
        "month_short_worst_hours": max(one.short_worst for one in ours),
        "month_short_beside_gap_hours": max(one.short_beside_gap for one in ours),
        "month_lanes_per_charged_hour": mean(one.lanes for one in ours),
        "month_churn": mean(one.churn for one in ours),
        "month_broken": float(sum(len(one.broken) for one in found.values())),
    }


def _month(task: tuple[int, str, float]) -> Month:
    """Simulate one month under the named rule, and print what it came to."""
    seed, name, work = task
    found = Simulation(seed, _rule(name), work, clear=name == ORACLE).run()
    say(
        f"  seed {seed}, {work:g} x the work, {name}: weighted flow {found.flow:.1f} h, "
        f"{found.done} of {found.jobs} done, {found.on_time} of {found.due} on time, "
        f"one-hour jobs {found.short:.1f} h (worst {found.short_worst:.1f}), idle {found.idle:.2%}, "
        f"lanes {found.lanes:.2f}, churn {found.churn:.3f}, {len(found.broken)} broken rules"
    )
    return found


def _rule(name: str) -> Decide:
    """Return the planner with quick plans, or a simple order; the oracle goes by weighted SRTF."""
    if name == "planner":
        return Planner(PlannerOptions(search_steps=0)).plan
    policy = PLAIN if name == "density" else in_order("smith" if name == ORACLE else name)

    def decide(snapshot: Snapshot, incumbent: Plan | None) -> Plan:
        del incumbent
        return dispatch(snapshot, policy, make_case(snapshot, firm_deadlines=False))

    return decide
