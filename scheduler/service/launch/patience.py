"""Patience: how long a command is given before its session is taken for one that makes no progress.

Each bound grows from what is known of the job, so that what is slow by nature is not taken for dead:

- First progress: four times what nine in ten set-ups take, and a quarter of an hour at least. A command that has never
  reported may be one that works without a word: it is given half more than all its work should take, for at most two
  hours. One that has saved and never reported is such a command, and only its checkpoints are looked at.
- Progress: half an hour, four steps, four saves, or four times the longest pause of earlier sessions that ended well.
- A checkpoint: a command that has run for longer than nine in ten set-ups and a save take has had time for one. So has
  one that ran for three quarters of the longest session of its pool, unless more set-up than that was declared:
  sessions that were cut off before their first step would otherwise make the bound longer than any session.

A job that is run whole tells nothing on its way and is judged by one thing: whether it had the time that it asked for.

Where the clock runs faster than real time a bound holds some real seconds at least: a process takes those to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jobs.lane_report import LaneReport
from jobs.spec import JobSpec
from scheduler.core.pool import Pool
from scheduler.core.throughput import within
from scheduler.core.window import DAY, HOUR
from scheduler.service.facts.overheads import Overhead
from scheduler.store.rates import RateRecord

FIRST_PROGRESS_SECONDS, NO_PROGRESS_SECONDS = 900, 1_800
SILENT_SECONDS_MAX = 2 * HOUR
_OFTEN = 4
_BOUND_MAX = 30 * DAY  # whatever a session or a definition says
_SILENT_SLACK = 1.5
_LONG_ENOUGH = 0.75  # of a pool's longest session
# Real seconds, where the clock is scaled.
_WATCH_WALL, _SAVE_WALL = 8.0, 1.5


def patience(
    spec: JobSpec,
    pool: Pool,
    overhead: Overhead,
    measured: Mapping[tuple[str, str], RateRecord],
    *,
    done_step: int,
    quiet_seconds: float,
    scale: float,
) -> dict[str, Any]:
    """Return the ``stall`` part of a lane's orders, in scheduled seconds and counts; None: that rule is off.

    ``quiet_seconds`` is the longest time between two steps in the job's last sessions that ended well.
    """
    from scheduler.planner.model.session_yield import longest  # here: a daemon starts without the planner

    own, stall = measured.get((spec.name, pool.name)), spec.stall
    speed = own.steps_per_second if own is not None and own.samples else spec.steps_per_hour / HOUR * pool.speed
    if spec.whole:  # it reports and saves nothing until its end; one that was cut after all its time is reported
        ended = _bound(None, 1 / speed, _SAVE_WALL, scale)
        return {
            "first_progress_seconds": None,
            "no_progress_seconds": None,
            "checkpoint_seconds": ended,
            "loss_nan": None,
        }
    reports = any(rate.samples for (job, _), rate in measured.items() if job == spec.name)
    setup = within(overhead.setup_seconds, overhead.setup_sigma)
    first: float | None = max(FIRST_PROGRESS_SECONDS, _OFTEN * setup)
    if not reports:
        work = setup + _SILENT_SLACK * (spec.target_step - done_step) / speed
        first = None if done_step else max(first or 0, min(work, SILENT_SECONDS_MAX))
    declared = pool.setup_seconds + spec.setup_seconds + overhead.closing_seconds
    save = min(setup + overhead.closing_seconds, max(_LONG_ENOUGH * longest(pool), declared))
    progress = max(NO_PROGRESS_SECONDS, _OFTEN * max(1 / speed, overhead.closing_seconds, quiet_seconds))
    return {
        "first_progress_seconds": _bound(stall.first_progress_seconds, first, _WATCH_WALL, scale),
        "no_progress_seconds": _bound(stall.no_progress_seconds, progress, _WATCH_WALL, scale),
        "checkpoint_seconds": _bound(stall.checkpoint_seconds, save, _SAVE_WALL, scale),
        "loss_nan": stall.loss_nan or None,
    }


def quiet_seconds(reports: Iterable[LaneReport]) -> float:
    """Return the longest time between two steps that sessions reported."""
    return max((report.longest_quiet_seconds or 0.0 for report in reports), default=0.0)


def _bound(chosen: int | None, estimate: float | None, wall_seconds: float, scale: float) -> int | None:
    """Return what a person chose (zero: nothing), or what is known."""
    bound = estimate if chosen is None else chosen
    if not bound:
        return None
    return round(min(_BOUND_MAX, bound if scale == 1 else max(bound, wall_seconds * scale)))
