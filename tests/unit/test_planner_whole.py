"""Jobs that are run whole: one step, in one session that holds all of it, or nowhere."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import RollingQuota
from jobs.nouns.window import HOUR
from jobs.spec import Needs
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.reasons import DoesNotFit
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.planner.strategies import snapshots

NOW = 1_795_046_400
SMALL = Pool("small", "fake", "T4", session_cap_seconds=4 * HOUR)
BIG = Pool("big", "fake", "T4", session_cap_seconds=12 * HOUR)


def whole(hours: float, *pools: str, **changes: object) -> JobView:
    """A job that takes so many hours on each of ``pools``, set up in ten minutes."""
    rates = {name: Rate(1 / (hours * HOUR)) for name in pools}
    view = JobView("w", 1.0, 1, 0, Needs(), rates, dict.fromkeys(pools, 600), dict.fromkeys(pools, 60))
    return replace(view, **changes)  # type: ignore[arg-type]


def seen(view: JobView, *pools: PoolView) -> Snapshot:
    return Snapshot(NOW, (view,), pools)


@pytest.mark.parametrize(
    "plan", [dispatch, lambda snapshot: Planner(PlannerOptions(search_steps=3)).plan(snapshot, None)]
)
def test_it_is_placed_only_where_one_session_holds_all_of_it(plan: object) -> None:
    assert callable(plan)
    made = plan(seen(whole(6, "small", "big"), PoolView(SMALL), PoolView(BIG)))
    assert [(found.pool, found.lanes) for found in made.placements] == [("big", (PlannedLane("w", 1, 1),))]
    assert made.placements[0].end - made.placements[0].start >= 6 * HOUR + 600 + 60
    nowhere = plan(seen(whole(14, "small", "big"), PoolView(SMALL), PoolView(BIG)))
    assert nowhere.placements == ()
    reason = nowhere.deferrals[0].reason
    assert isinstance(reason, DoesNotFit)
    assert "one session of 14." in reason.sentence()
    assert "12.0 h (big)" in reason.sentence()


def test_a_quota_that_is_shorter_than_the_work_is_no_place_for_it() -> None:
    tight = replace(BIG, name="tight", quotas=(RollingQuota("hours", 5 * HOUR, 24 * HOUR),))
    made = dispatch(seen(whole(6, "tight", "big"), PoolView(tight), PoolView(replace(BIG, speed=0.5))))
    assert [found.pool for found in made.placements] == ["big"]
    alone = dispatch(seen(whole(6, "tight"), PoolView(tight)))
    assert isinstance(alone.deferrals[0].reason, DoesNotFit)


def test_what_its_live_session_will_bring_is_not_planned_again() -> None:
    live = LiveRun("r", NOW - 3 * HOUR, NOW + 4 * HOUR, NOW + 4 * HOUR, ("w",))
    running = whole(6, "small", "big", running="r")
    assert dispatch(seen(running, PoolView(SMALL), PoolView(BIG, live=(live,)))).placements == ()
    doomed = replace(live, start=NOW - HOUR)  # five hours in all: it will be cut, and begins anew
    assert dispatch(seen(running, PoolView(SMALL), PoolView(BIG, live=(doomed,)))).placements != ()


def test_the_verifier_names_a_session_that_cannot_hold_it_and_a_second_one() -> None:
    def said(*spans: tuple[int, int]) -> list[str]:
        placed = [Placement("big", NOW + start, NOW + end, (PlannedLane("w", 1, 1),)) for start, end in spans]
        return verify(seen(whole(6, "big"), PoolView(BIG)), Plan(NOW, tuple(placed), ()))

    fits = 6 * HOUR + 600 + 2_000
    assert said((0, fits)) == []
    assert any("for 1 step" in line for line in said((0, 6 * HOUR)))
    assert any("2 steps planned, 1 left" in line for line in said((0, fits), (fits, 2 * fits)))


@settings(max_examples=60, deadline=None)
@given(snapshots(), st.data())
def test_every_plan_with_whole_jobs_among_others_can_be_carried_out(snapshot: Snapshot, data: st.DataObject) -> None:
    """Whatever the week, also beside others in one session; once planned, a whole job is planned once."""
    jobs = tuple(
        replace(
            view,
            target_step=1,
            done_step=0,
            reference_rate=0.0,
            rates={
                name: replace(rate, steps_per_second=1 / data.draw(st.floats(600, 100_000)))
                for name, rate in view.rates.items()
            },
        )
        if data.draw(st.booleans())
        else view
        for view in snapshot.jobs
    )
    changed = replace(snapshot, jobs=jobs)
    made = dispatch(changed)
    assert verify(changed, made) == []
