"""Long chains of gates: no layer walks along them by calling itself."""

from __future__ import annotations

from dataclasses import replace

from jobs.nouns.window import WEEK
from jobs.spec import Gate
from scheduler.core.snapshot import PoolView, Rate, Snapshot
from scheduler.planner.lp.linear import earliest_starts
from scheduler.planner.model.case import make_case
from scheduler.planner.model.urgency import children_first, urgencies, with_urgency
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH, KAGGLE, SLURM
from tests.lab.planner.small import job


def chain(count: int) -> Snapshot:
    """So many jobs of an hour, each behind half of the one before."""
    names = (KAGGLE.name, SLURM.name)
    jobs = tuple(
        replace(
            job(f"j{number:05}", 1, 1),
            rates={name: Rate(1.0) for name in names},
            setup_seconds=dict.fromkeys(names, 600),
            checkpoint_seconds=dict.fromkeys(names, 0),
            gate=Gate(f"j{number - 1:05}", 0.5) if number else None,
            position=number,
        )
        for number in range(count)
    )
    return Snapshot(EPOCH, jobs, (PoolView(KAGGLE), PoolView(SLURM)), WEEK)


def test_a_chain_of_six_hundred_gates_is_planned() -> None:
    snapshot = with_urgency(chain(600))
    plan = Planner(PlannerOptions(search_steps=0)).plan(snapshot)
    assert plan.warnings == ()
    assert verify(snapshot, plan) == []
    assert len({planned_lane.job for placed in plan.placements for planned_lane in placed.lanes}) > 50


def test_a_chain_of_five_thousand_gates_has_urgencies_and_earliest_starts() -> None:
    """Each waits for half an hour's work and a set-up more than the one before it."""
    snapshot = chain(5_000)
    found = urgencies(snapshot)
    assert len(found) == 5_000
    starts = earliest_starts(make_case(snapshot))
    assert starts[:3] == [EPOCH, EPOCH + 2_400, EPOCH + 4_800]


def test_gates_in_a_circle_end_somewhere() -> None:
    assert children_first(["a", "b"], {"a": ["b"], "b": ["a"]}) == ["b", "a"]
    circle = chain(3)
    first = replace(circle.jobs[0], gate=Gate("j00002", 0.5))
    snapshot = replace(circle, jobs=(first, *circle.jobs[1:]))
    assert set(urgencies(snapshot)) == {"j00000", "j00001", "j00002"}
    case = make_case(snapshot)
    assert earliest_starts(case) == [case.until] * 3
