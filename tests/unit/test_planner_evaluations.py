"""Evaluations are planned in hours that training leaves, while they have time."""

from dataclasses import replace

from jobs.nouns.window import HOUR
from scheduler.core.snapshot import JobView, Rate
from scheduler.planner.model.urgency import with_urgency
from scheduler.planner.planner import Planner
from tests.lab.planner.cases import seed_case


def trained(weight: float, count: int, hours: int) -> float:
    """Plan the users' week with evaluations of so many hours each; return hours of training."""
    snapshot = seed_case(1, gated=False, lanes=2)
    model = snapshot.jobs[1]

    def evaluation(number: int) -> JobView:
        speeds = {pool: Rate(1 / (hours * HOUR)) for pool in model.rates}
        own = replace(model, name=f"eval-{number}", weight=weight, target_step=1, position=100 + number)
        return replace(own, rates=speeds, reference_rate=1 / (hours * HOUR))

    whole = with_urgency(replace(snapshot, jobs=(*snapshot.jobs, *map(evaluation, range(count)))))
    lanes = [lane for placement in Planner().plan(whole).placements for lane in placement.lanes]
    return sum(lane.steps for lane in lanes if not lane.job.startswith("eval")) / HOUR


def test_evaluations_of_little_weight_cost_training_next_to_nothing() -> None:
    """With their model's weight each goes first: short as it is, its hours are worth most."""
    alone = trained(4.0, 0, 1)
    for hours in (1, 3):
        patient, hasty = trained(0.04 * 4.0, 6, hours), trained(4.0, 6, hours)
        assert patient >= 0.97 * alone
        assert patient - hasty >= 6 * hours, "and what they take themselves is the least that they cost"
