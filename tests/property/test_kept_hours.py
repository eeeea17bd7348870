"""Hours kept for work that is expected: no plan breaks a rule for them, and none of them is lost if nobody comes."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from jobs.spec import Gate, Needs
from scheduler.core.ledger import Charge
from scheduler.core.snapshot import Arrivals, JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.core.window import DAY, HOUR, WEEK
from scheduler.planner import Options, Planner, verify
from scheduler.planner.model.forecast import EXPECTED
from scheduler.planner.planner import FORESIGHT_SECONDS
from tests.lab.planner.cases import EPOCH, KAGGLE, SAGEMAKER

DAEMON = Options(search_steps=0, foresight_seconds=FORESIGHT_SECONDS)
POOLS = (KAGGLE, SAGEMAKER)
MONDAY = EPOCH + 8 * WEEK


def job(kind: str, number: int, hours: float, weight: float, on_kaggle: float, done: float = 0.0) -> JobView:
    return JobView(
        name=f"{kind}-{number}",
        weight=weight,
        target_step=round(hours * HOUR),
        done_step=round(hours * HOUR * done),
        needs=Needs(),
        rates={"kaggle": Rate(on_kaggle), "sagemaker": Rate(1.0)},
        setup_seconds={"kaggle": 1_000, "sagemaker": 700},
        checkpoint_seconds={"kaggle": 60, "sagemaker": 60},
        position=number,
        reference_rate=1.0,
        kind=kind,
    )


def drawn(seed: int) -> Snapshot:
    """Return a week with a history of mains and managers, some of them there, at a random instant."""
    rng = Random(seed)
    now = MONDAY + rng.randrange(WEEK)
    every, last = rng.uniform(4, 14) * DAY, rng.uniform(0, 10) * DAY
    mains = tuple(round(now - last - every * n * rng.uniform(0.9, 1.1)) for n in reversed(range(rng.randint(1, 6))))
    main = job("main", 0, 60, 8, 1.6)
    managers = [job("manager", n, 12, rng.choice((2, 4)), 1.2, rng.random()) for n in range(1, rng.randint(2, 9))]
    gated = [
        replace(found, gate=Gate("main-0", 0.4), done_step=0) if rng.random() < 0.3 else found for found in managers
    ]
    history = (
        Arrivals("main", tuple(sorted(mains)), main),
        Arrivals("manager", tuple(at + n for at in sorted(mains) for n in range(3)), job("manager", 1, 12, 4, 1.2)),
    )
    there = (replace(main, done_step=rng.randrange(main.target_step)),) if rng.random() < 0.5 else ()
    jobs = (*there, *(found for found in gated if there or found.gate is None))
    used = rng.randrange(20 * HOUR)
    charges = (Charge(max(now - used, MONDAY), now),) if now - used > MONDAY else ()
    return Snapshot(now, jobs, (PoolView(KAGGLE, charges), PoolView(SAGEMAKER)), WEEK, arrivals=history)


@pytest.mark.parametrize("seed", range(40))
def test_plans_that_keep_hours_break_no_rule_and_hold_none_who_is_not_there(seed: int) -> None:
    snapshot = drawn(seed)
    plan = Planner(DAEMON).plan(snapshot)
    assert verify(snapshot, plan) == []
    assert not plan.warnings
    assert not any(lane.job.startswith(EXPECTED) for placed in plan.placements for lane in placed.lanes)
    assert {one.job for one in plan.deferrals} <= {view.name for view in snapshot.jobs}
    turned = replace(snapshot, jobs=snapshot.jobs[::-1], pools=snapshot.pools[::-1], arrivals=snapshot.arrivals[::-1])
    other = Planner(DAEMON).plan(turned)
    assert (other.digest, other.kept) == (plan.digest, plan.kept)


@pytest.mark.parametrize("said_days", [1, 4, 6])
def test_hours_kept_for_somebody_who_never_comes_are_not_lost(said_days: int) -> None:
    """Through a whole window, planned anew whenever a session ends: the others have used it up at its end."""
    end = MONDAY + WEEK
    left = {view.name: view for view in (job("manager", n, 40, 4, 1.2) for n in range(1, 9))}
    charges: dict[str, list[Charge]] = {pool.name: [] for pool in POOLS}
    live: list[tuple[str, LiveRun, int]] = []
    planner, now, kept = Planner(DAEMON), MONDAY, 0
    history = Arrivals("manager", tuple(MONDAY - n * WEEK for n in (3, 2, 1)), job("manager", 1, 12, 4, 1.2))
    while now < end:
        for found in [one for one in live if one[1].deadline <= now]:
            live.remove(found)
            view = left[found[1].jobs[0]]
            left[view.name] = replace(view, done_step=view.done_step + found[2], running=None)
        said = tuple(at for at in (MONDAY + said_days * DAY, end + said_days * DAY) if at > now)
        main = Arrivals("main", tuple(MONDAY - n * WEEK for n in (3, 2, 1)), job("main", 0, 60, 8, 1.6), said)
        views = tuple(
            PoolView(pool, tuple(charges[pool.name]), tuple(run for name, run, _ in live if name == pool.name))
            for pool in POOLS
        )
        plan = planner.plan(Snapshot(now, tuple(left.values()), views, WEEK, arrivals=(main, history)))
        kept += sum(one.seconds for one in plan.kept)
        for placed in plan.due_now:
            (lane,) = placed.lanes
            run = LiveRun(f"{lane.job}-{now}", now, placed.end, placed.end, (lane.job,))
            live.append((placed.pool, run, lane.steps))
            charges[placed.pool].append(Charge(now, placed.end))
            left[lane.job] = replace(left[lane.job], running=run.key)
        starts = [placed.start for placed in plan.placements if placed.start > now]
        now = min([*starts, *(run.deadline for _, run, _ in live), now + 6 * HOUR])
    assert kept > 0
    used = sum(charge.within(MONDAY, end) for charge in charges["kaggle"])
    assert 29 * HOUR <= used <= 30 * HOUR
