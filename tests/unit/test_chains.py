"""Which job continues in a session, and how the time of a session is divided among its jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.lane_report import LaneReport
from jobs.nouns.window import HOUR
from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.run import Lane, Outcome, Run, Running, lane_seconds
from scheduler.core.snapshot import LiveRun
from scheduler.service.launch.chain import Slot, next_job, open_slots
from tests.lab.planner.cases import seed_case

SNAPSHOT = seed_case(1, gated=False, lanes=2)
NOW = SNAPSHOT.now
FREE: list[Lane] = []


def session(*lanes: Lane, hours: float = 10) -> Run:
    deadline = NOW + int(hours * HOUR)
    return Run("uff-main-0001", "kaggle", lanes, NOW - HOUR, deadline, deadline, Running("remote", NOW - HOUR))


def over(index: int, job: str, device: int = 0, begun_at: int | None = None) -> Lane:
    return Lane(index, job, 1, (device,), None, Outcome.FINISHED, begun_at=begun_at)


def works(index: int, job: str, device: int = 0, begun_at: int | None = None) -> Lane:
    return Lane(index, job, 1, (device,), None, begun_at=begun_at)


def said(run: Run, lane: int, until: int | None, ended: int = NOW) -> dict[tuple[str, int], LaneReport]:
    job = run.lanes[lane].job
    return {(run.key, lane): LaneReport(run.key, lane, job, outcome="finished", ended_at=ended, waits_until=until)}


@given(st.lists(st.integers(0, 100), max_size=6), st.lists(st.integers(0, 100), max_size=6), st.integers(1, 100))
def test_the_parts_of_a_session_are_the_whole(first: list[int], second: list[int], end: int) -> None:
    begun = sorted([(at, 0) for at in first] + [(at, 1) for at in second])
    lanes = [works(0, "a", 0), works(1, "b", 1), *(works(2 + n, "c", on, at) for n, (at, on) in enumerate(begun))]
    seconds = lane_seconds(lanes, 0, end)
    assert sum(seconds.values()) == 2 * end
    assert all(part >= 0 for part in seconds.values())


def test_each_job_pays_from_where_it_began() -> None:
    lanes = (over(0, "a"), works(1, "b", 1), over(2, "c", 0, 40), works(3, "d", 0, 70))
    assert lane_seconds(lanes, 0, 100) == {0: 40, 1: 100, 2: 30, 3: 30}
    assert lane_seconds(lanes, 0, 50) == {0: 40, 1: 50, 2: 10, 3: 0}
    assert session(*lanes).devices == 2


def test_a_job_takes_over_where_a_runner_said_that_it_waits() -> None:
    run = session(over(0, "main"), works(1, "ufm", 1))
    [slot] = open_slots(run, said(run, 0, NOW + 180), FREE, NOW)
    assert (slot.before.index, slot.idle) == (0, False)
    assert open_slots(run, said(run, 0, NOW + 180), FREE, NOW + HOUR), "while another lane works, it waits on"
    assert not open_slots(run, said(run, 0, None), FREE, NOW), "an older runner says nothing"
    assert not open_slots(run, {}, FREE, NOW)
    alone = session(over(0, "main"))
    assert open_slots(alone, said(alone, 0, NOW + 180), FREE, NOW + 180)[0].idle
    assert not open_slots(alone, said(alone, 0, NOW + 180), FREE, NOW + 181), "it has left"


def test_one_job_continues_after_each() -> None:
    run = session(over(0, "main"), over(1, "ufm", 1), works(2, "ucm", 0, NOW))
    waits = said(run, 0, NOW + 9) | said(run, 1, NOW + 9)
    assert [slot.before.index for slot in open_slots(run, waits, FREE, NOW)] == [1]


def test_a_device_that_no_lane_has_takes_a_job_while_another_works() -> None:
    free = [Lane(1, "", 0, (1,), None)]
    run = session(works(0, "main"))
    beat = {(run.key, 0): LaneReport(run.key, 0, "main")}
    [slot] = open_slots(run, beat, free, NOW)
    assert (slot.before.index, slot.before.devices, slot.idle) == (1, (1,), False)
    assert not open_slots(run, {}, free, NOW), "nothing is known of the session yet"
    assert not open_slots(session(works(0, "main"), works(2, "ufm", 1, NOW)), beat, free, NOW)
    assert not open_slots(session(over(0, "main")), beat, free, NOW), "it leaves with the others"


def test_the_next_job_of_the_plan_comes_first_then_what_nobody_else_takes_soon() -> None:
    slot = Slot(session(over(0, "main")), over(0, "main"), idle=True)

    def chosen(*placed: tuple[str, str, int], barred: tuple[str, ...] = ()) -> str | None:
        places = [Placement(pool, start, start + HOUR, (PlannedLane(job, 1, 1),)) for job, pool, start in placed]
        placement = next_job(SNAPSHOT, Plan(NOW, tuple(places), ()), slot, barred)
        return None if placement is None else placement.lanes[0].job

    assert chosen() in {"ufm", "ucm"}, "main had its lane here; the most valuable of the others"
    assert chosen(("uam", "kaggle", NOW + 5 * HOUR)) == "uam"
    assert chosen(("ufm", "sagemaker", NOW), barred=("urm",)) == "ucm", "it starts elsewhere now"
    assert chosen(("ufm", "sagemaker", NOW + 5 * HOUR), barred=("ucm",)) == "ufm"
    assert chosen(barred=("ufm", "ucm")) in {"urm", "ulm"}


def test_nothing_continues_without_time_or_on_a_closed_pool() -> None:
    short = Slot(session(over(0, "main"), hours=0.3), over(0, "main"), idle=True)
    assert next_job(SNAPSHOT, None, short) is None
    slot = Slot(session(over(0, "main")), over(0, "main"), idle=True)
    pools = tuple(replace(view, closed_until=NOW + HOUR) for view in SNAPSHOT.pools)
    assert next_job(replace(SNAPSHOT, pools=pools), None, slot) is None


def test_a_session_that_runs_costs_nothing_more() -> None:
    """A job continues though the quota has nothing left, and never beyond the end of the session."""
    live = LiveRun("uff-main-0001", NOW - HOUR, NOW + 10 * HOUR, NOW + 10 * HOUR, ())
    full = [replace(view, live=(live,), pool=replace(view.pool, sessions_max=1)) for view in SNAPSHOT.pools]
    slot = Slot(session(over(0, "main")), over(0, "main"), idle=True)
    placement = next_job(replace(SNAPSHOT, pools=tuple(full)), None, slot)
    assert placement is not None
    assert (placement.start, placement.end <= slot.run.deadline) == (NOW, True)


@pytest.mark.parametrize("index", [0, 3])
def test_a_lane_continues_only_after_one_with_its_devices(index: int) -> None:
    assert works(2, "b", 0, 5).continues(works(index, "a")) == (index == 0)
    assert not works(2, "b", 0).continues(works(0, "a"))
    assert not works(2, "b", 1, 5).continues(works(0, "a"))
