"""The walk in use and the plain one come to the same sessions, from any case, policy and schedule."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scheduler.core.plan import Plan
from scheduler.core.snapshot import HourShare, Snapshot
from scheduler.planner.dispatch.dispatcher import extend, fill_gaps, make_full_schedule, make_schedule, pinned_sessions
from scheduler.planner.dispatch.orders import ORDERS, in_order
from scheduler.planner.dispatch.walk import Walk, answers_alike
from scheduler.planner.lp.grid import make_grid
from scheduler.planner.lp.prices import scarcity_prices
from scheduler.planner.model.case import Case, make_case
from scheduler.planner.model.policy import PHASES, PLAIN, PlanPolicy, Schedule
from scheduler.planner.search.candidates import simple_orders
from scheduler.planner.search.rebuild import without_jobs
from tests.lab.night import share
from tests.lab.planner.cases import SMALL_MIX, make_pools, random_case
from tests.lab.planner.plain_walk import PlainWalk
from tests.lab.planner.strategies import snapshots

# Pools that are alike are in one class, so that it matters where a job ran last.
ALIKE = st.builds(lambda seed: random_case(9, make_pools(SMALL_MIX), seed), st.integers(0, 1_000))
# Hours are so few that they have prices.
SCARCE = st.builds(lambda seed: random_case(40, make_pools(SMALL_MIX[:2]), seed), st.integers(0, 1_000))


def bent(case: Case, rng: Random) -> PlanPolicy:
    """Return a policy that bends anything: densities, phases, prices, deadlines, or an order."""
    if rng.random() < 0.2:
        return in_order(rng.choice(sorted(ORDERS)))
    jobs, classes = range(len(case.jobs)), range(len(case.classes))
    due = [job.index for job in case.jobs if job.deadline is not None]
    prices = scarcity_prices(case, make_grid(case))
    factors = [rng.choice((0.0, 0.5, 0.9, 1.1)) for _ in classes]
    return PlanPolicy(
        factors={(group, job): rng.lognormvariate(0, 1) for group in classes for job in jobs if rng.random() < 0.4},
        phased={(group, job, rng.randrange(PHASES)): 3.0 for group in classes for job in jobs if rng.random() < 0.2},
        admits=prices.admits(factors, rng.choice((0.0, 0.8, 1.0))) if rng.random() < 0.6 else None,
        urgent=frozenset(job for job in due if rng.random() < 0.7),
        foresight_seconds=rng.choice((3_600, 86_400, 1 << 40)),
    )


def both(case: Case, policy: PlanPolicy, booked: Schedule | None = None) -> Schedule:
    """Return what both walks come to, which is the same."""
    plain = PlainWalk(case, policy, booked).run()
    found = make_schedule(case, policy) if booked is None else extend(case, booked, policy)
    assert found == plain
    return found


def sharing(snapshot: Snapshot, rng: Random) -> Snapshot:
    """Return the snapshot with some jobs that share their hours."""
    jobs = tuple(
        replace(job, share=HourShare(rng.choice("ab"), rng.choice((0.2, 0.5)), rng.choice((0, 3_600))))
        if rng.random() < 0.6
        else job
        for job in snapshot.jobs
    )
    return replace(snapshot, jobs=jobs)


@given(st.one_of(snapshots(), snapshots(counted=True), ALIKE), st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=share(150))
def test_the_walk_is_what_the_plain_one_is(snapshot: Snapshot, seed: int, shared: bool) -> None:
    """From nothing; from a plan less some jobs, twice over; and with an earlier plan to keep."""
    assume(snapshot.jobs)
    rng = Random(seed)
    case = make_case(sharing(snapshot, rng) if shared else snapshot)
    both(case, PLAIN)
    whole = both(case, bent(case, rng))
    for _ in range(2):
        taken = {rng.randrange(len(case.jobs)): case.now + rng.randrange(case.until - case.now) for _ in range(2)}
        rest = without_jobs(case, whole, taken)
        whole = both(case, replace(bent(case, rng), admits=None), both(case, bent(case, rng), rest))
    pins = pinned_sessions(case, Plan(case.now, whole.placements, ()))
    both(case, replace(bent(case, rng), pinned=pins))


@given(st.one_of(snapshots(), ALIKE), st.integers(0, 1 << 30))
@settings(max_examples=share(50))
def test_where_a_schedule_leaves_jobs_and_pools_is_worked_out_as_well_from_its_sessions(
    snapshot: Snapshot, seed: int
) -> None:
    """A schedule that comes from a walk says where it stands; one that is read says the same."""
    assume(snapshot.jobs)
    rng = Random(seed)
    case = make_case(snapshot)
    whole = make_schedule(case, bent(case, rng))
    rest = without_jobs(case, whole, {rng.randrange(len(case.jobs)): case.now})
    read = Schedule(rest.placements, rest.gate_passes)
    policy = bent(case, rng)
    assert read.state_after is None
    assert extend(case, read, policy) == extend(case, rest, policy)


@given(st.one_of(snapshots(), snapshots(counted=True), ALIKE, SCARCE), st.integers(0, 1 << 30), st.booleans())
@settings(max_examples=share(150))
def test_where_nobody_was_refused_nothing_is_left_to_fill(snapshot: Snapshot, seed: int, shared: bool) -> None:
    """Hours are filled up after prices only where a job that they kept out has work left: no other would come."""
    assume(snapshot.jobs)
    rng = Random(seed)
    case = make_case(sharing(snapshot, rng) if shared else snapshot)
    schedule: Schedule | None = None
    for _ in range(3):
        policy = bent(case, rng)
        found = make_schedule(case, policy) if schedule is None else extend(case, schedule, policy)
        assert make_full_schedule(case, policy, schedule) == fill_gaps(case, found, policy)
        schedule = without_jobs(case, found, {rng.randrange(len(case.jobs)): case.now + rng.randrange(86_400)})


@given(st.integers(0, 1 << 30))
@settings(max_examples=share(20))
def test_who_is_told_the_same_at_every_turn_comes_to_the_same(seed: int) -> None:
    """What one walk asked tells whether other prices would change it: never that they do not when they do."""
    rng = Random(seed)
    case = make_case(random_case(12, make_pools(SMALL_MIX), seed % 8), firm_deadlines=False)
    prices = scarcity_prices(case, make_grid(case))
    asked = [prices.admits([rng.uniform(0.5, 1.2)] * len(case.classes), rng.choice((0.0, 1.0))) for _ in range(4)]
    for one in asked:
        walk = Walk(case, PlanPolicy(admits=one))
        found = walk.run()
        for other in asked:
            if answers_alike(other, walk.questions):
                assert Walk(case, PlanPolicy(admits=other)).run() == found


def test_prices_that_differ_by_nothing_are_told_the_same() -> None:
    """And others are not: the shortcut is taken where it may be, and nowhere else."""
    case = make_case(random_case(50, make_pools(SMALL_MIX), 0), firm_deadlines=False)
    prices = scarcity_prices(case, make_grid(case))
    walks = {
        factor: Walk(case, PlanPolicy(admits=prices.admits([factor] * len(case.classes), 0.0))) for factor in (0.9, 1)
    }
    for walk in walks.values():
        walk.run()
    close, far = (prices.admits([factor] * len(case.classes), 0.0) for factor in (0.9 + 1e-12, 2.0))
    assert answers_alike(close, walks[0.9].questions)
    assert not answers_alike(far, walks[0.9].questions)


@given(ALIKE, st.booleans())
@settings(max_examples=share(50))
def test_orders_that_are_the_same_walk_once(snapshot: Snapshot, by_weight: bool) -> None:
    """Each order's candidate is what its own walk makes; where weights follow the queue one walk does for both."""
    if by_weight:
        snapshot = replace(snapshot, jobs=tuple(replace(job, weight=100 - job.position) for job in snapshot.jobs))
    case = make_case(snapshot)
    found = simple_orders(case)
    for name in found.keys() & ORDERS.keys():
        assert found[name].schedule == make_schedule(case, in_order(name))
    if by_weight:
        assert found["priority"].schedule is found["fifo"].schedule
