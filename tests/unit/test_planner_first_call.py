"""First call: whoever loses most without a pool has its hours first, for work that is there and work expected."""

from __future__ import annotations

import json
from dataclasses import replace

from jobs.spec import Gate, Needs
from scheduler.core.plan import Plan
from scheduler.core.snapshot import Arrivals, JobView, PoolView, Rate, Snapshot
from scheduler.core.window import DAY, HOUR, WEEK
from scheduler.planner import Options, Planner, verify
from scheduler.planner.planner import FORESIGHT_SECONDS
from scheduler.store.plan_json import dumped, loaded
from tests.lab.planner.cases import EPOCH, KAGGLE, SAGEMAKER

DAEMON = Options(search_steps=0, foresight_seconds=FORESIGHT_SECONDS)
MONDAY = EPOCH + 8 * WEEK


def job(kind: str, number: int, hours: float, weight: float, on_kaggle: float, **others: object) -> JobView:
    view = JobView(
        name=f"{kind}-{number}",
        weight=weight,
        target_step=round(hours * HOUR),
        done_step=0,
        needs=Needs(),
        rates={"kaggle": Rate(on_kaggle), "sagemaker": Rate(1.0)},
        setup_seconds={"kaggle": 1_000, "sagemaker": 1_000},
        checkpoint_seconds={"kaggle": 60, "sagemaker": 60},
        position=number,
        reference_rate=1.0,
        kind=kind,
    )
    return replace(view, **others)  # type: ignore[arg-type]


def main(number: int, **others: object) -> JobView:
    return job("main", number, 60, 8, 1.6, **others)


def manager(number: int, **others: object) -> JobView:
    return job("manager", number, 12, 4, 1.2, **others)


def history(now: int, last_main: float = 3.0) -> tuple[Arrivals, ...]:
    """Return a main every seven days, the last so many days ago, and three managers of each main."""
    mains = tuple(now - round((last_main + 7 * n) * DAY) for n in reversed(range(5)))
    managers = tuple(instant for instant in mains for _ in range(3))
    return Arrivals("main", mains, main(0)), Arrivals("manager", managers, manager(0))


def week(now: int, *jobs: JobView, last_main: float = 3.0) -> Snapshot:
    return Snapshot(now, jobs, (PoolView(KAGGLE), PoolView(SAGEMAKER)), WEEK, arrivals=history(now, last_main))


def on(plan: Plan, pool: str, kind: str, start: int, end: int) -> int:
    """Return the seconds that jobs of a kind have on a pool between two instants."""
    return sum(
        min(placed.end, end) - placed.start
        for placed in plan.placements
        if placed.pool == pool and placed.lanes[0].job.startswith(kind) and start <= placed.start < end
    )


def test_a_family_that_makes_most_of_a_pool_has_its_hours_before_denser_work() -> None:
    nearly = manager(2, done_step=8 * HOUR)  # four hours left: per hour it is worth much more than main
    snapshot = week(MONDAY, main(1), nearly, *(manager(n) for n in range(3, 8)))
    plan = Planner(DAEMON).plan(snapshot)
    assert verify(snapshot, plan) == []
    assert plan.made_by == "first call"
    assert on(plan, "kaggle", "manager", MONDAY, MONDAY + WEEK) < HOUR
    assert on(plan, "kaggle", "main", MONDAY, MONDAY + WEEK) > 29 * HOUR
    assert on(plan, "sagemaker", "main", MONDAY, MONDAY + WEEK) == 0
    assert next(p for p in plan.placements if p.pool == "sagemaker").lanes[0].job == nearly.name


def test_hours_are_kept_for_a_main_that_is_expected() -> None:
    snapshot = week(MONDAY, *(manager(n) for n in range(2, 8)), last_main=5)
    plan = Planner(DAEMON).plan(snapshot)
    assert verify(snapshot, plan) == []
    (kept, *_) = plan.kept
    assert (kept.kind, kept.pool, kept.expected_at) == ("main", "kaggle", MONDAY + 2 * DAY)
    assert kept.seconds > 29 * HOUR
    assert on(plan, "kaggle", "manager", MONDAY, MONDAY + 2 * DAY) < HOUR
    assert {lane.job for placed in plan.placements for lane in placed.lanes} <= {view.name for view in snapshot.jobs}
    waiting = {deferral.job for deferral in plan.deferrals}
    assert waiting <= {view.name for view in snapshot.jobs}
    assert any("the next main" in deferral.reason.sentence() for deferral in plan.deferrals)


def test_what_it_cannot_use_before_the_window_ends_is_not_kept() -> None:
    now = MONDAY + WEEK - 20 * HOUR  # thirty hours are left, of which who comes in fifteen can use five
    snapshot = week(now, *(manager(n) for n in range(2, 8)), last_main=7 - 15 / 24)
    plan = Planner(DAEMON).plan(snapshot)
    assert verify(snapshot, plan) == []
    assert on(plan, "kaggle", "manager", now, MONDAY + WEEK) >= 20 * HOUR
    assert min(placed.start for placed in plan.placements if placed.pool == "kaggle") == now


def test_without_history_nothing_is_kept_and_nobody_goes_first() -> None:
    snapshot = replace(week(MONDAY, main(1), *(manager(n) for n in range(2, 8))), arrivals=())
    plan = Planner(DAEMON).plan(snapshot)
    assert plan.made_by != "first call"
    assert plan.kept == ()


def test_a_deadline_comes_before_first_call() -> None:
    due = manager(2, deadline=MONDAY + 14 * HOUR)  # only Kaggle can do it in time
    snapshot = week(MONDAY, main(1), due, *(manager(n) for n in range(3, 8)))
    plan = Planner(DAEMON).plan(snapshot)
    assert verify(snapshot, plan) == []
    ends = max(placed.end for placed in plan.placements if placed.lanes[0].job == due.name)
    assert ends <= MONDAY + 14 * HOUR


def test_the_same_queue_in_another_order_gives_the_same_plan() -> None:
    gated = [manager(n, gate=Gate("main-1", 0.4)) for n in range(2, 6)]
    snapshot = week(MONDAY, main(1), *gated, manager(6), last_main=5)
    turned = replace(snapshot, jobs=snapshot.jobs[::-1], pools=snapshot.pools[::-1], arrivals=snapshot.arrivals[::-1])
    one, other = Planner(DAEMON).plan(snapshot), Planner(DAEMON).plan(turned)
    assert one.digest == other.digest
    assert one.kept == other.kept


def test_a_stored_plan_keeps_its_hours_and_an_old_one_has_none() -> None:
    plan = Planner(DAEMON).plan(week(MONDAY, manager(2), last_main=5))
    assert plan.kept
    assert loaded(dumped(plan)) == plan
    old = json.loads(dumped(plan))
    del old["kept"]
    assert loaded(json.dumps(old)).kept == ()
