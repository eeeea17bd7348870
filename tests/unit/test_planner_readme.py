"""The example of scheduler/planner/README.md, made by the planner that it describes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, Calendar
from jobs.spec import Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.case import make_case
from scheduler.planner.planner import plan_week
from scheduler.planner.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

WEEK = CalendarQuota("week", 30 * HOUR, Calendar("week", weekday=5))
KAGGLE = Pool("kaggle", "kaggle", "t4", quotas=(WEEK,), session_cap_seconds=12 * HOUR)
LOCAL = Pool("local", "local", "rtx", session_cap_seconds=12 * HOUR)


def job(name: str, priority: float, steps: int, kaggle: float, local: float) -> JobView:
    rates = {"kaggle": Rate(kaggle), "local": Rate(local)}
    return JobView(name, priority, steps, 0, Needs(), rates, dict.fromkeys(rates, 600), dict.fromkeys(rates, 60))


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    jobs = job("ufm", 2.0, 1_500_000, 4.0, 3.0), job("uff", 1.0, 300_000, 3.0, 0.5)
    return Snapshot(int(datetime(2026, 11, 28, tzinfo=UTC).timestamp()), jobs, (PoolView(KAGGLE), PoolView(LOCAL)))


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    page = (repository / "scheduler/planner/README.md").read_text(encoding="utf-8")
    return re.sub(r"\s+", " ", page[page.index("## An example") :])


def test_the_example_has_the_jobs_and_densities_of_the_page(snapshot: Snapshot, text: str) -> None:
    case = make_case(snapshot)
    steps = {view.name: view.remaining_steps for view in snapshot.jobs}
    hours = {
        (group.pool.name, made.view.name): offer.density(steps[made.view.name]) * HOUR
        for group in case.classes
        for made in case.jobs
        if (offer := group.offers[made.index]) is not None
    }
    on_kaggle = f"{hours['kaggle', 'ufm']:.2f} for `ufm` and {hours['kaggle', 'uff']:.2f} for `uff`"
    assert on_kaggle in text
    assert f"pool {hours['local', 'ufm']:.2f} and {hours['local', 'uff']:.2f}." in text
    for view in snapshot.jobs:
        rates = " | ".join(f"{view.rates[pool].steps_per_second:g} steps/s" for pool in ("kaggle", "local"))
        assert f"| `{view.name}` | {view.weight:g} | {view.target_step:,} | {rates} |" in text


def test_the_example_has_the_plans_of_the_page(snapshot: Snapshot, text: str) -> None:
    plan = plan_week(snapshot)
    assert plan.bound is not None
    assert f"The plan is worth {dispatch(snapshot).value:.1f}." in text
    assert f"Its bound is {plan.bound:.1f}." in text
    assert f"is worth {plan.value:.1f}, which is {plan.value / plan.bound:.1%}".replace("%", " %") in text
    ends = {
        name: max(placed.end for placed in plan.placements if placed.lanes[0].job == name) for name in ("ufm", "uff")
    }
    assert f"until {datetime.fromtimestamp(ends['uff'], UTC):%A %H:%M}" in text
    assert f"ends on {datetime.fromtimestamp(ends['ufm'], UTC):%A %H:%M}" in text
    shortest = min(placed.end - placed.start for placed in plan.placements if placed.lanes[0].job == "ufm")
    assert f"the {shortest // 60} minutes" in text
    assert verify(snapshot, plan) == []
