"""Forecasts of when a job will be done (its ETA), from the newest plan and the measured speed. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.size import counted
from scheduler.core.plan import Plan

SIGMA_UNKNOWN = 0.3
_SIGMA_MAX = 0.9


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected end of a job in UTC seconds, and one standard error earlier and later. ``basis``: the data used."""

    earliest: int
    expected: int
    latest: int
    basis: Literal["plan", "plan's pace", "last week's pace"]


def forecast(
    job: str,
    steps_left: int,
    plan: Plan | None,
    pace: float,
    sigma: float | None,
    now: int,
    live: tuple[int, float] | None = None,
) -> Forecast | None:
    """Return when ``steps_left`` will be trained; None if neither the plan nor the pace says so, or none are left.

    ``pace`` is steps per second of calendar time in the past week, ``sigma`` the relative standard error of the speed.
    ``live`` is the end and the steps per second of the running session; planned sessions count from its end on.
    """
    if steps_left <= 0:
        return None
    planned_lanes = [
        (placement.start, placement.end, lane.steps)
        for placement in (plan.placements if plan else ())
        if placement.end > now
        for lane in placement.lanes
        if lane.job == job
    ]
    planned_lanes.sort(key=lambda lane: lane[1])  # in order of their ends
    if live is not None:
        until, speed = live
        here = (now, until, max(0, int(speed * (until - now))))
        planned_lanes = [here, *(lane for lane in planned_lanes if lane[0] >= until)]
    planned = sum(steps for _, _, steps in planned_lanes)
    basis: Literal["plan", "plan's pace", "last week's pace"]
    if planned >= steps_left:
        expected, basis = _reached(planned_lanes, steps_left), "plan"
    elif planned > 0:
        span = max(end for _, end, _ in planned_lanes) - now
        expected, basis = now + round(span * steps_left / planned), "plan's pace"
    elif pace > 0:
        expected, basis = now + round(steps_left / pace), "last week's pace"
    else:
        return None
    span, error = expected - now, min(SIGMA_UNKNOWN if sigma is None else sigma, _SIGMA_MAX)
    return Forecast(now + round(span / (1 + error)), expected, now + round(span / (1 - error)), basis)


def _reached(planned_lanes: Sequence[tuple[int, int, int]], steps_left: int) -> int:
    done = 0
    for start, end, steps in planned_lanes:
        if steps and done + steps >= steps_left:
            return start + round((end - start) * (steps_left - done) / steps)
        done += steps
    raise ValueError(f"the lanes hold {counted(done, 'step')}, not {steps_left}")
