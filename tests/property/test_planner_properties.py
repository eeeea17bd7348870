"""Whatever the jobs and pools are: the plan breaks no rule, stalls nowhere and does not depend on their order."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planner.strategies import snapshots
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.snapshot import Snapshot
from scheduler.core.window import DAY
from scheduler.planner import Options, Planner, dispatch, verify
from scheduler.planner.book import Book

if TYPE_CHECKING:
    from scheduler.core.plan import Plan


def plan_quickly(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """All layers, with a few steps of local search only."""
    return Planner(Options(search_steps=3)).plan(snapshot, incumbent)


@given(snapshots())
@settings(max_examples=200)
def test_a_plan_breaks_no_rule(snapshot: Snapshot) -> None:
    """Quotas, concurrency, devices, caps, hours, gates, releases and work: the independent verifier finds nothing."""
    assert verify(snapshot, dispatch(snapshot)) == []


@given(snapshots())
@settings(max_examples=60)
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot) -> None:
    """The same jobs and pools in another order give the same plan."""
    turned = replace(snapshot, jobs=snapshot.jobs[::-1], pools=snapshot.pools[::-1])
    assert plan_quickly(turned).digest == plan_quickly(snapshot).digest


@given(snapshots())
@settings(max_examples=100)
def test_every_layer_breaks_no_rule_and_stays_below_the_bound(snapshot: Snapshot) -> None:
    """No layer fell back, nothing is violated, V <= bound, also when the plan is carried on a little later."""
    plan = plan_quickly(snapshot)
    later = replace(snapshot, now=snapshot.now + 600)
    for found, seen in ((plan, snapshot), (plan_quickly(later, plan), later)):
        assert found.warnings == ()
        assert verify(seen, found) == []
        assert found.bound is not None
        assert found.value <= found.bound * (1 + 1e-6) + 1e-6


@given(snapshots(), st.integers(0, 2))
@settings(max_examples=40)
def test_the_bound_never_rises_when_quota_is_removed(snapshot: Snapshot, number: int) -> None:
    """Closing a pool for a day lowers what is possible, or leaves it."""
    number %= len(snapshot.pools)
    closed = replace(snapshot.pools[number], closed_until=snapshot.now + DAY)
    pools = (*snapshot.pools[:number], closed, *snapshot.pools[number + 1 :])
    less, more = plan_quickly(replace(snapshot, pools=pools)).bound, plan_quickly(snapshot).bound
    assert less is not None
    assert more is not None
    assert less <= more * (1 + 1e-6) + 1e-6


@given(snapshots())
@settings(max_examples=100)
def test_admission_says_yes_to_every_session_in_turn(snapshot: Snapshot) -> None:
    """Replayed one by one through core.admission, each session of the plan has room."""
    plan = dispatch(snapshot)
    for view in snapshot.pools:
        charges, ends = list(view.charges), [run.held_until for run in view.live]
        for placement in plan.placements:
            if placement.pool != view.pool.name:
                continue
            length = placement.end - placement.start + view.pool.overrun_seconds
            assert room(view.pool, charges, ends, placement.start, view.observed).seconds >= length
            ends.append(placement.end + view.pool.overrun_seconds)
            price = view.pool.price_microdollars_per_hour
            charges.append(Charge(placement.start, ends[-1], price_microdollars_per_hour=price))


@given(snapshots())
@settings(max_examples=100)
def test_nobody_waits_beside_a_free_session(snapshot: Snapshot) -> None:
    """If a startable job could use the room that the plan leaves now, the plan is wrong."""
    plan = dispatch(snapshot)
    waiting = {deferral.job: deferral.reason.code for deferral in plan.deferrals}
    room_left = _room_left(snapshot, plan)
    for job in snapshot.jobs:
        if waiting.get(job.name) not in {"outbid", "concurrency", "quota_empty", "leftover_too_short", "pool_closed"}:
            continue
        for view in snapshot.pools:
            usable = not job.allowed_pools or view.pool.name in job.allowed_pools
            fits = job.needs.devices_min <= view.pool.devices_per_session and job.needs.vram_gib <= view.pool.vram_gib
            long_enough = view.pool.session_seconds_min + 1_800 + 300 + 300 + 200
            assert not (usable and fits and room_left[view.pool.name] > long_enough)


def _room_left(snapshot: Snapshot, plan: Plan) -> dict[str, int]:
    taken = defaultdict(list)
    for placement in plan.due_now:
        taken[placement.pool].append(placement)
    left = {}
    for view in snapshot.pools:
        book = Book(view, snapshot.now, snapshot.now + snapshot.horizon_seconds)
        for placement in taken[view.pool.name]:
            book.take(placement.start, placement.end)
        left[view.pool.name] = book.room(snapshot.now).seconds
    return left


@given(snapshots())
@settings(max_examples=60)
def test_every_open_job_starts_runs_or_has_a_reason(snapshot: Snapshot) -> None:
    """No job is forgotten, and none is both started and deferred."""
    plan = plan_quickly(snapshot)
    started = {seat.job for placement in plan.due_now for seat in placement.seats}
    deferred = {deferral.job for deferral in plan.deferrals}
    running = {job.name for job in snapshot.jobs if job.running is not None}
    done = {job.name for job in snapshot.jobs if job.remaining_steps == 0}
    assert started | deferred | running | done == {job.name for job in snapshot.jobs}
    assert not started & deferred
    assert not (started | deferred) & running
    assert all(deferral.reason.sentence() for deferral in plan.deferrals)
