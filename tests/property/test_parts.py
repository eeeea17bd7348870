"""Very many jobs are planned in parts: whatever pools, families and live runs there are, they are one legal plan."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.planner import planner as layers
from scheduler.planner.lp import scale
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.strategies import sharing, snapshots

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler.core.snapshot import JobView, Snapshot

QUICK = PlannerOptions(search_steps=0)


def twice(snapshot: Snapshot) -> Snapshot:
    """Give each pool a twin on which nothing has run yet, so that there are two groups."""

    def with_twins(by_pool: Mapping[str, object]) -> dict[str, object]:
        return {name: value for pool, value in by_pool.items() for name in (pool, f"{pool}-twin")}

    def seen(job: JobView) -> JobView:
        names = ("rates", "setup_seconds", "checkpoint_seconds", "setup_sigma", "checkpoint_sigma")
        both = {name: with_twins(getattr(job, name)) for name in names}
        return replace(
            job,
            allowed_pools=tuple(with_twins(dict.fromkeys(job.allowed_pools))),
            **both,  # type: ignore[arg-type]  # by name
        )

    twins = [
        replace(view, pool=replace(view.pool, name=f"{view.pool.name}-twin"), live=(), charges=())
        for view in snapshot.pools
    ]
    return replace(snapshot, jobs=tuple(map(seen, snapshot.jobs)), pools=(*snapshot.pools, *twins))


@given(snapshot=st.one_of(snapshots(), snapshots(counted=True), sharing()).map(twice))
@settings(max_examples=share(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_parts_are_one_legal_plan_in_any_order_of_input(
    snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layers, "WHOLE_JOBS_MAX", 0)
    monkeypatch.setattr(scale, "POOLS_PER_GROUP", 1)
    plan = Planner(QUICK).plan(snapshot)
    if not snapshot.jobs:
        return
    assert plan.made_by == "parts", plan.warnings
    assert verify(snapshot, plan) == []
    assert plan.bound is None or plan.value <= plan.bound * (1 + 1e-6)
    started = {lane.job for placement in plan.due_now for lane in placement.lanes}
    waiting = {deferral.job for deferral in plan.deferrals}
    open_jobs = {job.name for job in snapshot.jobs if job.running is None and job.remaining_steps > 0}
    assert open_jobs <= started | waiting
    turned = replace(snapshot, jobs=snapshot.jobs[::-1], pools=snapshot.pools[::-1])
    assert Planner(QUICK).plan(turned).digest == plan.digest
