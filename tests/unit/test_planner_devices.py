"""How many devices a job takes: the first users' own table, and what holds of every one."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.spec import Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.core.window import HOUR, WEEK
from scheduler.planner import Options, SetDevices, UnknownName, device_choices, what_if
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
    plan, _ = what_if(snapshot, [SetDevices("seed", 2)], options=Options(search_steps=2))
    lanes = [lane for placement in plan.placements for lane in placement.lanes]
    assert lanes
    assert {lane.devices for lane in lanes} == {2}
    with pytest.raises(UnknownName):
        what_if(snapshot, [SetDevices("nobody", 2)], options=Options(search_steps=2))
    nothing, _ = what_if(snapshot, [SetDevices("seed", 8)], options=Options(search_steps=2))
    assert nothing.placements == ()


def test_a_pool_that_the_job_may_not_use_offers_nothing() -> None:
    assert device_choices(SEED, SAGEMAKER, NOW) == ()
