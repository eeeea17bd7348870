"""Jobs that share hours: whatever else is queued, who is behind its part has the next session that it could have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, WEEK, Calendar
from jobs.spec import Needs
from scheduler.core.ledger import Charge
from scheduler.core.snapshot import HourShare, JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.model.case import make_case
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import share as part_of_night
from tests.lab.planner.strategies import sharing

if TYPE_CHECKING:
    from scheduler.core.plan import Plan

QUICK = PlannerOptions(search_steps=3)
AS_THE_DAEMON = PlannerOptions(search_steps=0)
MONDAY = 1_790_553_600


def taken_out_of_turn(snapshot: Snapshot, plan: Plan) -> list[str]:
    """Sessions of one of the group while another, further behind, waited and could have had just this session."""
    case = make_case(snapshot)
    pools = {capacity.pool.name: number for number, capacity in enumerate(case.capacities)}
    members = {job.view.name: job for job in case.jobs if job.view.share is not None}
    had = {name: job.view.share.seconds for name, job in members.items() if job.view.share is not None}
    left = {name: job.view.remaining_steps - job.expected_steps for name, job in members.items()}
    busy = {name: snapshot.now if job.free_at is None else job.free_at for name, job in members.items()}
    found = []
    placements = sorted(plan.placements, key=lambda one: one.start)
    for number, placed in enumerate(placements):
        mine = [lane for lane in placed.lanes if lane.job in members]
        for lane in mine if len(mine) == 1 else ():
            offers = case.classes[case.class_of[pools[placed.pool]]].offers
            for name, job in members.items():
                offer, share, own = offers[job.index], job.view.share, members[lane.job].view.share
                if offer is None or share is None or own is None or name == lane.job:
                    continue
                waits = (
                    job.startable
                    and job.gate_parent is None
                    and job.free_at is not None
                    and max(busy[name], job.release) <= placed.start
                    and left[name] > 0
                    and job.view.needs.devices_min <= lane.devices
                    # Who sits in another session of this very instant may have come first.
                    and not any(
                        other.start == placed.start and any(one.job == name for one in other.lanes)
                        for other in placements[:number] + placements[number + 1 :]
                    )
                )
                fits = offer.shortest(left[name]) <= placed.end - placed.start
                if waits and fits and had[name] / share.part < had[lane.job] / own.part:
                    found.append(f"{lane.job} at {placed.start} on {placed.pool}, before {name}")
        for lane in mine:
            had[lane.job] += lane.devices * (placed.end - placed.start)
            left[lane.job] -= lane.steps
            busy[lane.job] = placed.end
    return found


@settings(max_examples=part_of_night(100), deadline=None)
@given(sharing())
def test_whatever_is_queued_a_share_leaves_the_plan_legal(snapshot: Snapshot) -> None:
    for plan in (dispatch(snapshot), Planner(QUICK).plan(snapshot)):
        assert verify(snapshot, plan) == []
        assert not plan.warnings


@st.composite
def crowded(draw: st.DrawFn) -> Snapshot:
    """Jobs that share hours, of any worth, size and speed, beside others, and too few hours for all."""
    pools = [
        Pool(
            name,
            "fake",
            "gpu",
            (CalendarQuota("w", draw(st.integers(10, 60)) * HOUR, Calendar("week", "UTC", 0)),),
            devices_per_session=draw(st.sampled_from((1, 1, 2))),
            session_cap_seconds=draw(st.sampled_from((4, 9))) * HOUR,
            sessions_max=draw(st.sampled_from((1, 1, 2))),
        )
        for name in ("k", "l", "m")[: draw(st.integers(1, 3))]
    ]
    parts = draw(st.sampled_from(((0.7, 0.3), (0.5, 0.5), (0.9, 0.1), (0.5, 0.3, 0.2))))
    jobs = []
    for number in range(len(parts) + draw(st.integers(0, 3))):
        share = HourShare("job-0", parts[number], draw(st.integers(0, 20)) * HOUR) if number < len(parts) else None
        one = job(f"job-{number}", draw(st.sampled_from((0.5, 1.0, 4.0))), draw(st.integers(1, 80)), share=share)
        names = [pool.name for pool in pools]
        rates = {name: Rate(draw(st.sampled_from((0.5, 1.0, 2.0)))) for name in names}
        jobs.append(
            replace(
                one, rates=rates, setup_seconds=dict.fromkeys(names, 600), checkpoint_seconds=dict.fromkeys(names, 60)
            )
        )
    return Snapshot(MONDAY, tuple(jobs), tuple(PoolView(pool) for pool in pools), WEEK)


@settings(max_examples=part_of_night(150), deadline=None)
@given(crowded())
def test_nobody_goes_before_who_is_further_behind(snapshot: Snapshot) -> None:
    for plan in (dispatch(snapshot), Planner(QUICK).plan(snapshot)):
        assert verify(snapshot, plan) == []
        assert not plan.warnings
        assert taken_out_of_turn(snapshot, plan) == []


def job(name: str, weight: float, hours: int, done: int = 0, share: HourShare | None = None) -> JobView:
    return JobView(name, weight, hours * HOUR, done, Needs(), {"k": Rate(1.0)}, {"k": 600}, {"k": 60}, share=share)


@settings(max_examples=part_of_night(15), deadline=None)
@given(
    part=st.sampled_from((0.1, 0.3, 0.5)),
    weights=st.tuples(st.sampled_from((0.5, 1.0, 6.0)), st.sampled_from((0.5, 1.0, 6.0))),
    others=st.integers(0, 2),
    cuts=st.lists(st.integers(1, 4), min_size=12, max_size=30),
)
def test_week_after_week_the_hours_stay_within_one_session_of_the_share(
    part: float, weights: tuple[float, float], others: int, cuts: list[int]
) -> None:
    """A daemon that plans anew after each session, which is cut off after some hours, keeps the share of what was."""
    quotas = (CalendarQuota("w", 40 * HOUR, Calendar("week", "UTC", 0)),)
    pool = Pool("k", "fake", "gpu", quotas, session_cap_seconds=4 * HOUR)
    had, done = {"sft": 0, "dpo": 0}, {"sft": 0, "dpo": 0}
    now, plan, charges = MONDAY, None, list[Charge]()
    for cut in cuts:
        shares = {"sft": HourShare("sft", 1 - part, had["sft"]), "dpo": HourShare("sft", part, had["dpo"])}
        two = [job(name, weight, 400, done[name], shares[name]) for name, weight in zip(had, weights, strict=True)]
        more = [job(f"other-{number}", 1.0, 20) for number in range(others)]
        snapshot = Snapshot(now, (*two, *more), (PoolView(pool, tuple(charges)),), WEEK)
        plan = Planner(QUICK).plan(snapshot, plan)
        first = next((one for one in plan.placements if one.lanes[0].job in had), None)
        if first is None:
            now += WEEK  # others have all of the week
            continue
        end = min(first.end, first.start + cut * HOUR)
        name = first.lanes[0].job
        had[name] += end - first.start
        done[name] += max(0, end - first.start - 900)
        charges.append(Charge(first.start, end))
        now = end
        off = abs(had["dpo"] - part * sum(had.values()))
        assert off <= 4 * HOUR, (had, part)
