"""What cannot be launched keeps nobody else from running; instants at which plans are made are found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from jobs.spec import Needs
from scheduler.core.ledger import Charge
from scheduler.core.plan import Plan
from scheduler.core.reasons import CannotLaunch, Precondition
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.service.cycle.cycle import next_change
from scheduler.service.faults.places import Obstacle, Postponements
from tests.lab.night import share
from tests.lab.planner.strategies import EPOCHS

QUICK = PlannerOptions(search_steps=0)


def job(name: str, weight: float, hours: float) -> JobView:
    rate = Rate(1.0)
    pools = ("one", "two")
    return JobView(
        name,
        weight,
        target_step=int(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates=dict.fromkeys(pools, rate),
        setup_seconds=dict.fromkeys(pools, 60),
        checkpoint_seconds=dict.fromkeys(pools, 30),
    )


@pytest.mark.parametrize("precondition", Precondition)
@given(
    weight=st.sampled_from((0.1, 1.0, 1000.0)),
    hours=st.floats(1.0, 40.0),
    others=st.lists(st.floats(1.0, 12.0), min_size=1, max_size=4),
    pools=st.integers(1, 2),
)
@settings(max_examples=share(15), deadline=None)
def test_a_job_that_can_never_be_launched_keeps_nobody_from_running(
    precondition: Precondition, weight: float, hours: float, others: list[float], pools: int
) -> None:
    written: list[Any] = []
    ports: Any = SimpleNamespace(write=lambda: _Transaction(written))
    postponements, planner, now = Postponements(ports), Planner(QUICK), EPOCHS[0]
    left = [job(f"job-{number}", 1.0, length) for number, length in enumerate(others)]
    views = tuple(PoolView(Pool(name, "fake", "gpu")) for name in ("one", "two")[:pools])
    plan: Plan | None = None
    for _ in range(200):
        if not left:
            break
        snapshot = Snapshot(now, (job("never", weight, hours), *left), views, 2 * DAY, {})
        plan = planner.plan(postponements.applied(snapshot), plan)
        due = [placement for placement in plan.placements if placement.start <= now]
        obstacles = [
            Obstacle("never", placed.pool, precondition)
            for placed in due
            if any(lane.job == "never" for lane in placed.lanes)
        ]
        begun = [placed for placed in due if all(lane.job != "never" for lane in placed.lanes)]
        accepted = [lane.job for placed in begun for lane in placed.lanes]
        again = postponements.record(obstacles, accepted, now)
        done = set(accepted)
        left = [view for view in left if view.name not in done]  # each is through with its first session
        ends = [placed.end for placed in begun]
        now = max(ends) if ends else now + 1 if again else postponements.next_end(now) or now + HOUR
    assert not left, f"{[view.name for view in left]} did not run within {(now - EPOCHS[0]) / HOUR:.0f} h"
    assert now - EPOCHS[0] < 200 * HOUR


class _Transaction:
    """A transaction that only remembers what was written."""

    def __init__(self, written: list[Any]) -> None:
        self._written = written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def execute(self, *words: Any) -> Any:
        self._written.append(words)
        return SimpleNamespace(rowcount=1, lastrowid=1, inserted_primary_key=(1,), scalar_one=lambda: 1)


def test_a_pause_grows_and_ends_with_a_launch() -> None:
    written: list[Any] = []
    postponements = Postponements(SimpleNamespace(write=lambda: _Transaction(written)))  # type: ignore[arg-type] # enough
    now, lengths = EPOCHS[0], []
    views = (PoolView(Pool("one", "fake", "gpu")),)
    for times in range(1, 12):
        again = postponements.record([Obstacle("never", "one", Precondition.INPUTS)], [], now)
        assert again == (times > 1)
        assert bool(written) == (times > 1), "a person is told the second time"
        until = postponements.next_end(now)
        assert until is not None
        lengths.append(until - now)
        (view,) = postponements.applied(Snapshot(now, (job("never", 1.0, 1.0),), views, DAY, {})).jobs
        if times == 1:
            assert (view.retry_at, view.blocked) == (until, None)
        else:
            assert view.blocked == CannotLaunch(Precondition.INPUTS, "one", until)
        now = until
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[1], lengths[-1]) == (60, 300, 6 * HOUR)
    postponements.record([], ["never"], now)
    assert postponements.next_end(now) is None


def test_a_job_is_left_out_of_the_pool_alone_where_it_cannot_be_launched() -> None:
    postponements = Postponements(SimpleNamespace(write=lambda: _Transaction([])))  # type: ignore[arg-type] # enough
    for _ in range(2):
        postponements.record([Obstacle("ufm", "one", Precondition.PACKAGES)], [], EPOCHS[0])
    views = tuple(PoolView(Pool(name, "fake", "gpu")) for name in ("one", "two"))
    snapshot = Snapshot(EPOCHS[0], (job("ufm", 1.0, 1.0),), views, DAY, {})
    plan = Planner(QUICK).plan(postponements.applied(snapshot), None)
    assert [placed.pool for placed in plan.placements] == ["two"]
    postponements.end_early(EPOCHS[0])
    assert postponements.applied(snapshot) == snapshot, "what it waited for came"


def test_every_instant_is_found() -> None:
    now = EPOCHS[4]
    waiting = replace(job("ufm", 1.0, 1.0), retry_at=now + 5_000)
    empty = Snapshot(now, (waiting,), (PoolView(Pool("one", "fake", "gpu")),), 8 * DAY, {})
    assert next_change(empty) == now + 5_000
    assert next_change(replace(empty, jobs=(replace(waiting, not_before=now + 70, retry_at=None),))) == now + 70
    assert next_change(replace(empty, jobs=(replace(waiting, retry_at=now - 5),))) is None
    assert next_change(replace(empty, jobs=(replace(waiting, running="key"),))) is None

    def with_pool(view: PoolView) -> int | None:
        return next_change(replace(empty, jobs=(replace(waiting, retry_at=None),), pools=(view,)))

    assert with_pool(PoolView(Pool("one", "fake", "gpu"), closed_until=now + 90)) == now + 90
    daily = CalendarQuota("day", HOUR, Calendar("day"))
    assert with_pool(PoolView(Pool("one", "fake", "gpu", (daily,)))) == now - now % DAY + DAY
    rolling = RollingQuota("24 h", HOUR)
    used = (Charge(now - 2 * HOUR, now - HOUR),)
    assert with_pool(PoolView(Pool("one", "fake", "gpu", (rolling,)), used)) == now + 22 * HOUR
