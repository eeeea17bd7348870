"""No pool stands still that somebody could use: neither in a new plan nor in one that is carried on."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.nouns.window import HOUR
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from scheduler.service.cycle.cycle import next_change
from tests.lab.night import share
from tests.lab.planner.idle import idle
from tests.lab.planner.strategies import snapshots

QUICK = PlannerOptions(search_steps=0)


def told(plan: Plan) -> None:
    """No reason says that hours which cost nothing are worth more to others."""
    for deferral in plan.deferrals:
        assert getattr(deferral.reason, "price", None) != 0.0


@given(snapshots())
@settings(max_examples=share(60))
def test_no_plan_leaves_a_pool_idle_that_a_waiting_job_could_use(snapshot: Snapshot) -> None:
    for plan in (dispatch(snapshot), Planner(QUICK).plan(snapshot)):
        assert idle(snapshot, plan) == []
        told(plan)


@st.composite
def later(draw: st.DrawFn) -> tuple[Snapshot, Snapshot]:
    """A snapshot and the same some hours later: sessions ended early, jobs are done, wait, or are slower."""
    snapshot = draw(snapshots())
    now = snapshot.now + draw(st.integers(60, 8 * HOUR))
    jobs = tuple(_moved_on(draw, job, now) for job in snapshot.jobs)
    pools = tuple(
        replace(view, live=(), charges=tuple(c for c in view.charges if not c.held)) for view in snapshot.pools
    )
    return snapshot, replace(snapshot, now=now, jobs=tuple(job for job in jobs if job.remaining_steps > 0), pools=pools)


def _moved_on(draw: st.DrawFn, job: JobView, now: int) -> JobView:
    done = draw(st.sampled_from((0.0, 0.0, 0.3, 1.0)))
    factor = draw(st.sampled_from((0.5, 1.0, 1.0, 3.0)))
    return replace(
        job,
        running=None,
        done_step=min(job.target_step, job.done_step + int(done * job.remaining_steps)),
        retry_at=draw(st.sampled_from((None, None, now + 18 * 60, now + 38 * 60))),
        rates={
            name: replace(rate, steps_per_second=rate.steps_per_second * factor) for name, rate in job.rates.items()
        },
    )


@given(later())
@settings(max_examples=share(100))
def test_a_plan_that_is_carried_on_leaves_no_pool_idle_either(found: tuple[Snapshot, Snapshot]) -> None:
    """What ended early, failed or turned out slower makes room, and the plan in force must not keep it empty."""
    before, after = found
    plan = Planner(QUICK).plan(after, Planner(QUICK).plan(before))
    assert verify(after, plan) == []
    assert plan.warnings == ()
    assert idle(after, plan) == []
    told(plan)


@given(later(), st.floats(0.0, 1.0))
@settings(max_examples=share(60), deadline=None)
def test_between_two_instants_at_which_plans_are_made_no_pool_stands_still(
    pair: tuple[Snapshot, Snapshot], part: float
) -> None:
    """A plan that is carried on may leave a pool to what comes later; who could use it by then is planned again."""
    before, now = pair
    plan = Planner(QUICK).plan(now, Planner(QUICK).plan(before, None))
    assume(not plan.due_now)
    change = next_change(now)
    instants = [*(placed.start for placed in plan.placements), *([change] if change is not None else [])]
    end = min([*instants, now.now + 6 * HOUR])
    assume(end - now.now > 1)
    moment = replace(now, now=now.now + 1 + int(part * (end - now.now - 2)))
    assert idle(moment, plan) == []
