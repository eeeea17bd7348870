"""Books of pools with moving quotas: what still fits between booked sessions, held against the rules' own words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import FirstUseQuota, RollingQuota
from jobs.nouns.window import DAY, HOUR
from jobs.spec import Gate, Needs
from scheduler.core.admission import room
from scheduler.core.ledger import Charge
from scheduler.core.plan import Plan
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.planner.dispatch.dispatcher import dispatch, fill_gaps, make_schedule
from scheduler.planner.model.case import make_case
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.search.rebuild import without_jobs
from scheduler.planner.verify import verify
from tests.lab.night import share
from tests.lab.planner.strategies import snapshots

if TYPE_CHECKING:
    from collections.abc import Hashable

    from scheduler.planner.model.capacity_state import CapacityState

NOW = 1_763_769_600
TENTH = 360
ROLLING, FIRST_USE = RollingQuota("rolling", 4 * HOUR), FirstUseQuota("first", 5 * HOUR, DAY)


@st.composite
def moving(draw: st.DrawFn) -> PoolView:
    """A pool with one or two moving quotas, and what it was used for: told in full, in part, or still running."""
    quotas: tuple[RollingQuota | FirstUseQuota, ...] = draw(
        st.sampled_from(((ROLLING,), (FIRST_USE,), (ROLLING, FIRST_USE)))
    )
    pool = Pool("desk", "fake", "gpu", quotas, sessions_max=2, session_cap_seconds=12 * HOUR)
    charges = []
    for _ in range(draw(st.integers(0, 3))):
        start = NOW - TENTH * draw(st.integers(0, 400))
        told = draw(st.booleans())
        charges.append(Charge(start, start + TENTH * draw(st.integers(1, 30)), held=not told, exact=told))
    return PoolView(pool, tuple(charges))


@given(moving(), st.lists(st.integers(0, 600), max_size=4), st.integers(0, 600))
@settings(max_examples=share(150))
def test_whatever_order_sessions_are_booked_in_the_quota_s_own_words_allow_all_of_them(
    view: PoolView, starts: list[int], asked: int
) -> None:
    """Each is booked as long as there is room; the core then allows the last one exactly that, or a little more."""
    capacity = PoolCapacity(view, NOW, NOW + 5 * DAY)
    charges = list(view.charges)
    for start in (*starts, asked):
        begin = NOW + TENTH * start
        found = capacity.room(begin).seconds
        exact = room(replace(view.pool, sessions_max=9), charges, (), begin).seconds
        assert found <= exact
        if all(not charge.is_certain for charge in charges) and found < capacity.pool.session_cap_seconds:
            full = capacity.until_booked(begin)
            assert found == min(exact, full)
        if found > 0:
            capacity.book(begin, begin + found)
            charges.append(Charge(begin, begin + found, held=True))


@given(moving(), st.lists(st.tuples(st.integers(0, 600), st.booleans()), max_size=5), st.lists(st.integers(0, 600)))
@settings(max_examples=share(100))
def test_what_is_kept_and_shared_is_what_a_fresh_book_answers(
    view: PoolView, sessions: list[tuple[int, bool]], asked: list[int]
) -> None:
    """Pools that are alike share states: what is planned on one is not on the other, however it is asked."""
    until = NOW + 5 * DAY
    states: dict[Hashable, CapacityState] = {}
    capacities = [PoolCapacity(view, NOW, until, states) for _ in range(2)]
    untouched = [PoolCapacity(view, NOW, until).room(NOW + TENTH * instant) for instant in asked]
    empty, twin = capacities[0].room(NOW), capacities[0].copy()
    planned: list[tuple[int, bool]] = []
    for begin, ahead in sorted(sessions):
        start = NOW + TENTH * begin
        planned.append((start, ahead))
        (twin.book if ahead else twin.start_session)(start, start + HOUR)
        fresh = PoolCapacity(view, NOW, until)
        for at, booked in planned:
            (fresh.book if booked else fresh.start_session)(at, at + HOUR)
        for instant in asked:
            at = max(start, NOW + TENTH * instant)
            assert twin.room(at) == twin.copy().room(at) == fresh.room(at)
            assert twin.next_change(at) == fresh.next_change(at)
    assert capacities[0].room(NOW) == empty
    assert [capacities[1].room(NOW + TENTH * instant) for instant in asked] == untouched


@st.composite
def rooms_shared(draw: st.DrawFn) -> Snapshot:
    """Two pools of two or three devices, and families of small jobs that share them and wait for each other."""
    pools = tuple(
        Pool(f"desk-{n}", "fake", "gpu", devices_per_session=draw(st.integers(2, 3)), session_cap_seconds=4 * HOUR)
        for n in range(2)
    )
    names = [pool.name for pool in pools]
    jobs = tuple(
        JobView(
            f"job-{number}",
            draw(st.sampled_from((1.0, 2.0, 4.0))),
            HOUR * draw(st.integers(1, 20)),
            0,
            Needs(1, draw(st.integers(1, 2))),
            {name: Rate(1.0) for name in names},
            dict.fromkeys(names, 600),
            dict.fromkeys(names, 60),
            device_speedup=(1.0, 1.6),
            gate=Gate(f"job-{draw(st.integers(0, number - 1))}", draw(st.sampled_from((0.2, 0.7)))) if number else None,
            position=number,
        )
        for number in range(draw(st.integers(3, 7)))
    )
    return Snapshot(NOW, jobs, tuple(PoolView(pool) for pool in pools), 3 * DAY)


@given(st.one_of(rooms_shared(), snapshots()), st.data())
@settings(max_examples=share(150))
def test_a_plan_less_a_few_jobs_is_a_plan_and_so_is_what_it_is_filled_up_to(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """Partners in a shared session lose it too, with all that they and their children count on it for."""
    assume(snapshot.jobs)
    case = make_case(snapshot)
    whole = make_schedule(case)
    assume(whole.placements)
    jobs = data.draw(st.lists(st.integers(0, len(case.jobs) - 1), min_size=1, max_size=3))
    taken = {job: data.draw(st.sampled_from(whole.placements)).start for job in jobs}
    rest = without_jobs(case, whole, taken)
    assert verify(snapshot, Plan(snapshot.now, rest.placements, ())) == []
    assert verify(snapshot, Plan(snapshot.now, fill_gaps(case, rest).placements, ())) == []
    assert verify(snapshot, dispatch(snapshot)) == []
