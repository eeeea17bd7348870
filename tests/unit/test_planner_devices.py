"""How many devices a job takes: the first users' own table, and what holds of every one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, WEEK, Calendar
from jobs.spec import Needs
from scheduler.cli.commands.plan_changes import show_devices
from scheduler.cli.shell.output import Output
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.reasons import DevicesTaken
from scheduler.core.snapshot import JobView, LiveRun, PoolView, Rate, Snapshot
from scheduler.planner.planner import Planner, PlannerOptions
from scheduler.planner.questions.whatif import SetDevices, UnknownName, device_choices, what_if
from scheduler.planner.verify import verify
from tests.lab.planner.cases import EPOCH as NOW
from tests.lab.planner.cases import SAGEMAKER

H100 = replace(SAGEMAKER, name="h100", devices_per_session=4)
# 5,000 samples, 8 epochs; 2.0, 3.5 and 6.0 samples a second on 1, 2 and 4 devices, and 3 no better than 2.
GAINS = (1.0, 1.75, 1.75, 3.0)
SEED = JobView(
    "seed", 1.0, 40_000, 0, Needs(devices_max=4), {"h100": Rate(2.0)}, {"h100": 300}, {"h100": 30}, GAINS
)  # fmt: skip


@pytest.mark.parametrize(("hours", "chosen"), [(12, 1), (4, 2), (2, 4), (1, 4), (None, 1)])
def test_the_first_users_own_case(hours: int | None, chosen: int) -> None:
    deadline = None if hours is None else NOW + hours * HOUR
    found = device_choices(replace(SEED, deadline=deadline), H100, NOW)
    assert [one.devices for one in found] == [1, 2, 4], "three are no faster than two"
    assert [round(one.seconds / HOUR, 2) for one in found] == [5.56, 3.17, 1.85]
    assert [round(one.device_seconds / HOUR, 2) for one in found] == [5.56, 6.35, 7.41]
    assert [one.left for one in found] == [3, 2, 0]
    assert [one.devices for one in found if one.chosen] == [chosen]
    assert [one.in_time for one in found] == [None if hours is None else one.seconds <= hours * HOUR for one in found]


@given(
    gains=st.lists(st.floats(0.5, 8), max_size=7),
    least=st.integers(1, 8),
    more=st.integers(0, 7),
    devices=st.integers(1, 8),
    hours=st.none() | st.floats(0.01, 100),
)
def test_the_chosen_one_is_in_time_if_any_is_and_costs_least_of_those(
    gains: list[float], least: int, more: int, devices: int, hours: float | None
) -> None:
    view = replace(
        SEED,
        needs=Needs(devices_min=least, devices_max=least + more),
        device_speedup=(1.0, *gains),
        deadline=None if hours is None else NOW + int(hours * HOUR),
    )
    found = device_choices(view, replace(H100, devices_per_session=devices), NOW)
    assert all(least <= one.devices <= min(least + more, devices) for one in found)
    assert sum(one.chosen for one in found) == bool(found)
    if not found:
        assert least > devices
        return
    chosen = next(one for one in found if one.chosen)
    good = [one for one in found if one.in_time is not False]
    assert chosen.device_seconds == min(one.device_seconds for one in good) if good else chosen is found[-1]


def test_what_if_plans_it_on_so_many_and_on_no_others() -> None:
    snapshot = Snapshot(NOW, (SEED,), (PoolView(H100),), WEEK)
    plan, _ = what_if(snapshot, [SetDevices("seed", 2)], options=PlannerOptions(search_steps=2))
    lanes = [lane for placement in plan.placements for lane in placement.lanes]
    assert lanes
    assert {lane.devices for lane in lanes} == {2}
    with pytest.raises(UnknownName):
        what_if(snapshot, [SetDevices("nobody", 2)], options=PlannerOptions(search_steps=2))
    nothing, _ = what_if(snapshot, [SetDevices("seed", 8)], options=PlannerOptions(search_steps=2))
    assert nothing.placements == ()


def test_a_pool_that_the_job_may_not_use_offers_nothing() -> None:
    assert device_choices(SEED, SAGEMAKER, NOW) == ()


# Two nodes with four devices each, whose sessions ask for one, two or four of them.
CLUSTER = replace(
    H100,
    platform="slurm",
    quotas=(CalendarQuota("device hours", 200 * HOUR, Calendar("week"), by_device=True),),
    session_cap_seconds=12 * HOUR,
    device_counts=(1, 2, 4),
    devices_max=8,
    sessions_max=8,
)
QUICK = PlannerOptions(search_steps=2)


def planned(*jobs: JobView, pool: Pool = CLUSTER, live: tuple[LiveRun, ...] = ()) -> Plan:
    snapshot = Snapshot(NOW, jobs, (PoolView(pool, live=live),), WEEK)
    plan = Planner(QUICK).plan(snapshot)
    assert verify(snapshot, plan) == []
    return plan


@pytest.mark.parametrize(("hours", "chosen"), [(12, 1), (4, 2), (2, 4), (1, 4), (None, 1)])
def test_one_pool_gives_the_first_users_job_the_devices_of_their_own_table(hours: int | None, chosen: int) -> None:
    due = replace(SEED, deadline=None if hours is None else NOW + hours * HOUR)
    (placed,) = planned(due).placements
    assert [lane.devices for lane in placed.lanes] == [chosen]
    found = device_choices(due, CLUSTER, NOW)
    assert [(one.devices, one.left) for one in found] == [(1, 7), (2, 6), (4, 4)]
    assert [one.devices for one in found if one.chosen] == [chosen]
    # Set-up, checkpoints and the stop margin come on top of the table's hours.
    table = next(one.seconds for one in found if one.chosen)
    assert 0 < placed.end - placed.start - table < HOUR // 4
    if hours not in {None, 1}:
        assert placed.end <= NOW + (hours or 0) * HOUR


def test_what_if_prints_the_table_of_one_pool(capsys: pytest.CaptureFixture[str]) -> None:
    show_devices(
        Output(as_json=False, colour=False),
        "seed",
        device_choices(replace(SEED, deadline=NOW + 4 * HOUR), CLUSTER, NOW),
    )
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("h100")]
    assert rows == [
        ["h100", "1", "5.56", "5.56", "7", "no"],
        ["h100", "2", "3.17", "6.35", "6", "yes", "*"],
        ["h100", "4", "1.85", "7.41", "4", "yes"],
    ]


def test_jobs_of_different_widths_share_the_devices_and_their_hours() -> None:
    jobs = tuple(
        replace(SEED, name=name, position=place, deadline=deadline)
        for place, (name, deadline) in enumerate(
            (("slow", None), ("soon", NOW + 4 * HOUR), ("now", NOW + 2 * HOUR), ("too", None), ("last", None))
        )
    )
    plan = planned(*jobs)
    at_once = {placed.lanes[0].job: placed.devices for placed in plan.placements if placed.start == NOW}
    assert at_once["soon"] == 2
    assert at_once["now"] == 4
    assert sum(at_once.values()) == 8
    (left,) = {"slow", "too", "last"} - set(at_once)
    reason = next(one.reason for one in plan.deferrals if one.job == left)
    assert "h100" in reason.sentence()


def test_whoever_needs_more_devices_than_are_free_waits_and_is_told_so() -> None:
    wide = replace(SEED, needs=Needs(devices_min=4, devices_max=4))
    live = LiveRun("other", NOW - HOUR, NOW + HOUR, NOW + HOUR, ("gone",), devices=2)
    plan = planned(wide, pool=replace(CLUSTER, devices_max=4, sessions_max=4), live=(live,))
    assert [placed.start for placed in plan.placements] == [NOW + HOUR]
    then = NOW + HOUR
    assert plan.deferrals[0].reason == DevicesTaken("h100", 4, 4, then, planned_pool="h100", planned_start=then)
    odd = replace(SEED, needs=Needs(devices_min=3, devices_max=3))
    found = planned(odd)
    assert found.placements == ()
    assert "1 or 2 or 4 x" in found.deferrals[0].reason.sentence()


def test_who_is_due_waits_for_the_devices_with_which_it_is_in_time() -> None:
    """Two are free now, with which it would be late; all four are in ten minutes."""
    due = replace(SEED, deadline=NOW + int(2.5 * HOUR))
    live = LiveRun("other", NOW - HOUR, NOW + 600, NOW + 600, ("gone",), devices=2)
    (placed,) = planned(due, pool=replace(CLUSTER, devices_max=4, sessions_max=4), live=(live,)).placements
    assert (placed.start, placed.devices) == (NOW + 600, 4)
    assert placed.end <= NOW + int(2.5 * HOUR)


def test_the_verifier_counts_devices_by_itself() -> None:
    view = PoolView(CLUSTER, live=(LiveRun("other", NOW - HOUR, NOW + HOUR, NOW + HOUR, ("gone",), devices=4),))
    snapshot = Snapshot(NOW, (SEED, replace(SEED, name="more")), (view,), WEEK)

    def session(job: str, devices: int, *more: str) -> Placement:
        lanes = tuple(PlannedLane(name, devices, 10_000) for name in (job, *more))
        return Placement("h100", NOW, NOW + 6 * HOUR, lanes)

    def complaints(*placed: Placement) -> str:
        return "; ".join(verify(snapshot, Plan(NOW, placed, ())))

    assert complaints(session("seed", 2), session("more", 2)) == ""
    assert "3 devices for 1 job cannot be requested" in complaints(session("seed", 3))
    assert "4 devices for 2 jobs cannot be requested" in complaints(session("seed", 2, "more"))
    assert "10 devices held" in complaints(session("seed", 2), session("more", 4))
    short = replace(CLUSTER, quotas=(CalendarQuota("device hours", 20 * HOUR, Calendar("week"), by_device=True),))
    snapshot = replace(snapshot, pools=(replace(view, pool=short),))
    assert complaints(session("seed", 2)) == ""
    assert f"device hours {24 * HOUR} of {20 * HOUR} used" in complaints(session("seed", 4))
