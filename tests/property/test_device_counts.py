"""Pools whose sessions ask for their devices: what must hold of every plan, from its definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR, Calendar
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.quota import longest
from scheduler.planner.dispatch.dispatcher import dispatch
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.strategies import snapshots

if TYPE_CHECKING:
    from scheduler.core.plan import Plan
    from scheduler.core.snapshot import PoolView, Snapshot

QUICK = PlannerOptions(search_steps=3)
GRAIN = 600
ZERO = 1_763_769_600


def sessions_have_what_may_be_asked_for(snapshot: Snapshot, plan: Plan) -> None:
    """One job each, on one of the counts, which it takes; never more devices held at once than there are."""
    pools = {view.pool.name: view for view in snapshot.pools}
    jobs = {job.name: job for job in snapshot.jobs}
    for placed in plan.placements:
        view = pools[placed.pool]
        if not view.pool.device_counts:
            continue
        (lane,) = placed.lanes
        assert lane.devices in view.pool.device_counts
        needs = jobs[lane.job].needs
        assert needs.devices_min <= lane.devices <= needs.devices_max
        held = [(run.start, run.held_until, run.devices) for run in view.live]
        held += [
            (one.start, one.end + view.pool.overrun_seconds, one.devices)
            for one in plan.placements
            if one.pool == placed.pool
        ]
        assert sum(devices for start, end, devices in held if start <= placed.start < end) <= view.pool.devices_max


def no_window_has_more_device_seconds_than_its_limit(snapshot: Snapshot, plan: Plan) -> None:
    """Every day, week and span, as the sum over its sessions."""
    for view in snapshot.pools:
        mine = [
            (one.start, one.end + view.pool.overrun_seconds, one.devices)
            for one in plan.placements
            if one.pool == view.pool.name
        ]
        for quota in view.pool.quotas:
            if isinstance(quota, CalendarQuota | RollingQuota) and quota.by_device and not view.observed:
                for start, end in _windows(quota, view, mine, snapshot):
                    ours = sum(devices * _common(s, e, start, end) for s, e, devices in mine)
                    others = sum(c.devices * c.sign * _common(c.start, c.end, start, end) for c in view.charges)
                    assert ours == 0 or ours + others <= quota.limit_seconds


def _windows(
    quota: CalendarQuota | RollingQuota, view: PoolView, mine: list[tuple[int, int, int]], snapshot: Snapshot
) -> list[tuple[int, int]]:
    if isinstance(quota, CalendarQuota):
        found = quota.calendar.windows(snapshot.now, snapshot.now + snapshot.horizon_seconds + DAY)
        return [(window.start, window.end) for window in found]
    spans = [(c.start, c.end) for c in view.charges] + [(s, e) for s, e, _ in mine]
    ends = {end for _, end in spans} | {start + quota.span_seconds for start, _ in spans}
    return [(end - quota.span_seconds, end) for end in ends]


def _common(start: int, end: int, first: int, last: int) -> int:
    return max(0, min(end, last) - max(start, first))


def admission_says_yes_to_every_session_in_turn(snapshot: Snapshot, plan: Plan) -> None:
    for view in snapshot.pools:
        charges = list(view.charges)
        ends = [run.held_until for run in view.live for _ in range(view.pool.places_of(run.devices))]
        for placed in plan.placements:
            if placed.pool == view.pool.name:
                length = placed.end - placed.start + view.pool.overrun_seconds
                assert room(view.pool, charges, ends, placed.start, view.observed, placed.devices).seconds >= length
                ends += [placed.start + length] * view.pool.places_of(placed.devices)
                price = view.pool.price_microdollars_per_hour
                end = placed.start + length
                charges.append(Charge(placed.start, end, price_microdollars_per_hour=price, devices=placed.devices))


@given(snapshots(counted=True))
@settings(max_examples=share(150))
def test_the_plain_dispatcher_gives_no_more_devices_than_there_are(snapshot: Snapshot) -> None:
    plan = dispatch(snapshot)
    assert verify(snapshot, plan) == []
    sessions_have_what_may_be_asked_for(snapshot, plan)
    no_window_has_more_device_seconds_than_its_limit(snapshot, plan)
    admission_says_yes_to_every_session_in_turn(snapshot, plan)


@given(snapshots(counted=True))
@settings(max_examples=share(60))
def test_no_layer_gives_more_and_none_exceeds_the_bound(snapshot: Snapshot) -> None:
    plan = Planner(QUICK).plan(snapshot)
    assert plan.warnings == ()
    assert verify(snapshot, plan) == []
    sessions_have_what_may_be_asked_for(snapshot, plan)
    no_window_has_more_device_seconds_than_its_limit(snapshot, plan)
    assert plan.bound is not None
    assert plan.value <= plan.bound * (1 + 1e-6) + 1e-6
    again = Planner(QUICK).plan(snapshot, plan)
    assert verify(snapshot, again) == []


charges = st.builds(
    lambda start, length, devices: Charge(ZERO + start * GRAIN, ZERO + (start + length) * GRAIN, devices=devices),
    st.integers(-200, 100),
    st.integers(1, 40),
    st.integers(1, 4),
)
quotas = st.sampled_from(
    (
        CalendarQuota("day", 20 * HOUR, Calendar("day"), by_device=True),
        RollingQuota("rolling", 20 * HOUR, DAY, by_device=True),
    )
)


@given(st.lists(charges, max_size=5), quotas, st.integers(0, 150), st.integers(1, 4))
@settings(max_examples=share(200))
def test_a_session_on_several_devices_is_as_long_as_so_many_on_one_beside_each_other(
    found: list[Charge], quota: CalendarQuota | RollingQuota, grain: int, devices: int
) -> None:
    """The longest allowed leaves each window within its limit, and a second more would not."""
    start = ZERO + grain * GRAIN
    length = longest(quota, found, start, 12 * HOUR, devices=devices)
    # Each device alone, in a book that counts none: the same interval so many times.
    single = [Charge(one.start, one.end) for one in found for _ in range(one.devices)]
    if length > 0:
        assert _fits(quota, [*single, *[Charge(start, start + length)] * devices], start)
    if length < 12 * HOUR and _fits(quota, single, start):
        assert not _fits(quota, [*single, *[Charge(start, start + length + 1)] * devices], start)


def _fits(quota: CalendarQuota | RollingQuota, found: list[Charge], start: int) -> bool:
    """Tell whether no window that a session from ``start`` can touch holds more than the limit."""
    if isinstance(quota, CalendarQuota):
        windows = [(window.start, window.end) for window in quota.calendar.windows(start, start + DAY)]
        windows = [w for w in windows if any(one.start == start and one.end > w[0] for one in found)] or windows[:1]
    else:
        ends = {edge for one in found for edge in (one.end, one.start + DAY, one.end + DAY)} | {start}
        windows = [(end - DAY, end) for end in ends if end >= start]
    return all(sum(one.within(*window) for one in found) <= quota.limit_seconds for window in windows)


def test_places_are_devices_where_sessions_ask_for_them() -> None:
    pool = Pool("h100", "slurm", "H100", device_counts=(2, 4), devices_max=8, devices_per_session=4, sessions_max=4)
    ends = [ZERO + HOUR] * pool.places_of(4) + [ZERO + 2 * HOUR] * pool.places_of(2)
    assert room(pool, (), ends, ZERO, devices=2).seconds == pool.session_cap_seconds
    assert room(pool, (), ends, ZERO, devices=4).limited_by == "concurrency"
    assert room(pool, (), ends, ZERO + HOUR, devices=4).seconds == pool.session_cap_seconds
    assert (pool.places_of(0), pool.held_devices(2), pool.devices_at_once) == (2, 2, 8)
