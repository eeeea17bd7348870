"""Training progress by job: saved and live steps, loss, speed and ETA."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev
from typing import Literal

from sqlalchemy import Connection

from jobs.lane_report import GPU_METRICS, GpuUse, LaneReport
from jobs.nouns.pool import Pool
from jobs.nouns.window import WEEK
from scheduler.core.job import Active
from scheduler.core.plan import Plan
from scheduler.core.run import Lane, Run, Running, Stopping
from scheduler.report.forecast import Forecast, forecast
from scheduler.service.facts.snapshot import hour_shares
from scheduler.store import jobs, rates, runs, series
from scheduler.store.jobs import JobRecord
from scheduler.store.rates import RateRecord
from scheduler.store.series import Point
from scheduler.views.documents import picked

Health = Literal["", "waits", "sets up", "trains", "saves", "stops", "silent"]
"""The state of a job's live session; empty without a live session.

``waits``: it is in its platform's queue. ``silent``: its next heartbeat is late.
"""

CURVED = 40
"""The points of at most this many jobs are read, more than a screen shows."""

_PHASES: Mapping[str, Health] = {"training": "trains", "saving": "saves", "stopping": "stops", "ended": "stops"}
_BEATS_MISSED = 3
_SURE = 0.02  # minimum relative error of a speed: data and other load change
_SPEEDS_MIN = 3
_DRAWN = 60  # points of a sparkline


@dataclass(frozen=True, slots=True)
class TrainingProgress(GpuUse):
    """The training progress of a job; instants are UTC seconds, None means unknown.

    ``saved_step`` is the step of the newest checkpoint, ``step`` the newest step reported by the live session. ``loss``
    is the newest loss; ``trend`` is the relative change of its mean from the second-last to the last tenth of its
    points. ``losses`` are (step, loss), held-out losses if at least two are known. ``steps_per_hour`` is measured
    unless ``guessed``. ``week_change`` is the newest loss minus the loss of seven days ago, or the first since then.
    """

    job: str
    saved_step: int
    step: int
    target_step: int
    health: Health
    pool: str | None
    run: str | None
    ends_at: int | None
    told_at: int | None
    loss: float | None
    trend: float | None
    held_out_loss: float | None
    losses: tuple[tuple[int, float], ...]
    steps_per_hour: float | None
    guessed: bool
    forecast: Forecast | None
    week_change: float | None = None


def trainings(
    tx: Connection,
    queue: Sequence[JobRecord],
    live: Sequence[Run],
    plan: Plan | None,
    pools: Mapping[str, Pool],
    beat_seconds: int,
    now: int,
) -> list[TrainingProgress]:
    """Return the training progress of each job of ``queue``. Raises StoreFailure."""
    reports = runs.heartbeats(tx, [run.key for run in live])
    places = {lane.job: (run, lane) for run in live for lane in run.lanes if lane.outcome is None}
    begun = [record for record in queue if record.attempts]
    begun.sort(key=lambda record: (not isinstance(record.state, Active), record.position))
    points = series.of_jobs(tx, [record.spec.name for record in begun[:CURVED]])
    measured = rates.of_jobs(tx, [record.spec.name for record in begun])
    return [
        _training(
            record,
            places.get(record.spec.name),
            reports,
            [rate for rate in measured.get(record.spec.name, ()) if rate.samples],
            [one for one in points.get(record.spec.name, ()) if one.attempt > record.fenced_attempt],
            plan,
            pools,
            beat_seconds,
            now,
        )
        for record in queue
    ]


def _training(  # noqa: PLR0913, PLR0917 - all that was read for one job
    record: JobRecord,
    place: tuple[Run, Lane] | None,
    reports: Mapping[tuple[str, int], LaneReport],
    measured: Sequence[RateRecord],
    points: Sequence[Point],
    plan: Plan | None,
    pools: Mapping[str, Pool],
    beat_seconds: int,
    now: int,
) -> TrainingProgress:
    run, lane = place or (None, None)
    report = reports.get((run.key, lane.index)) if run and lane else None
    curve = series.curve(points)
    losses = [one for one in curve if one.loss is not None and math.isfinite(one.loss)]
    held = [one for one in curve if one.held_out_loss is not None and math.isfinite(one.held_out_loss)]
    speed = report.steps_per_second if report else None
    best = max(measured, key=lambda rate: rate.at, default=None)
    per_second = speed or (best.steps_per_second if best else None)
    step = max(record.done_step, (report.step or 0) if report else 0)
    until = run.deadline if run and speed else None
    sigma = _spread([one for one in points if lane and one.attempt == lane.attempt])
    return TrainingProgress(
        job=record.spec.name,
        saved_step=record.done_step,
        step=step,
        target_step=record.spec.target_step,
        health=_health(run, report, pools, beat_seconds, now),
        pool=run.pool if run else None,
        run=run.key if run else None,
        ends_at=run.deadline if run and run.wait is None else None,
        told_at=report.at if report else None,
        loss=report.loss if report and report.loss is not None else losses[-1].loss if losses else None,
        **(picked(report, *GPU_METRICS) if report else {}),
        vram_gib=pools[run.pool].vram_gib if run and run.pool in pools else 0.0,
        trend=_trend([one.loss for one in losses if one.loss is not None]),
        held_out_loss=held[-1].held_out_loss if held else None,
        losses=_drawn(held, losses),
        steps_per_hour=3_600 * (per_second or record.spec.steps_per_hour / 3_600),
        guessed=per_second is None,
        forecast=forecast(
            record.spec.name,
            record.spec.target_step - step,
            plan,
            0.0,
            sigma if sigma is not None else best.sigma if best else None,
            now,
            (until, speed) if until and speed else None,
        ),
        week_change=_week_change([(one.at, one.held_out_loss) for one in held], now)
        if len(held) > 1
        else _week_change([(one.at, one.loss) for one in losses], now),
    )


def _health(
    run: Run | None, report: LaneReport | None, pools: Mapping[str, Pool], beat_seconds: int, now: int
) -> Health:
    if run is None:
        return ""
    if isinstance(run.state, Stopping):
        return "stops"
    if run.wait is not None:
        return "waits"
    if not isinstance(run.state, Running) or report is None:
        return "sets up"
    pool = pools.get(run.pool)
    patience = _BEATS_MISSED * beat_seconds + (pool.visibility_seconds if pool else 0)
    if report.at is not None and now - report.at > patience:
        return "silent"
    return _PHASES.get(report.phase, "sets up")


def _trend(losses: Sequence[float]) -> float | None:
    """Return the relative change of the mean from the second-last to the last tenth; None for too few points."""
    tenth = max(1, len(losses) // 10)
    if len(losses) < 2 * tenth or not (before := fmean(losses[-2 * tenth : -tenth])):
        return None
    return (fmean(losses[-tenth:]) - before) / abs(before)


def _week_change(losses: Sequence[tuple[int, float | None]], now: int) -> float | None:
    """Return the newest loss minus the loss of a week ago, or minus the oldest since then; None for fewer than two."""
    before = max((at for at, _ in losses if at <= now - WEEK), default=None)
    finite_losses = [loss for at, loss in losses if loss is not None and (before is None or at >= before)]
    return finite_losses[-1] - finite_losses[0] if len(finite_losses) > 1 else None


def _spread(points: Sequence[Point]) -> float | None:
    """Return the relative standard error of an attempt's speed, from its points; None for too few points."""
    speeds = [
        (after.step - before.step) / (after.at - before.at)
        for before, after in pairwise(points)
        if after.at > before.at
    ]
    mean = fmean(speeds) if len(speeds) >= _SPEEDS_MIN else 0.0
    return max(_SURE, stdev(speeds) / mean / math.sqrt(len(speeds))) if mean > 0 else None


def _drawn(held: Sequence[Point], training: Sequence[Point]) -> tuple[tuple[int, float], ...]:
    points = (
        [(one.step, one.held_out_loss) for one in held] if len(held) > 1 else [(one.step, one.loss) for one in training]
    )
    every = math.ceil(len(points) / _DRAWN) or 1
    kept = points[::-1][::every][::-1]  # the newest is always included
    return tuple((step, loss) for step, loss in kept if loss is not None)


@dataclass(frozen=True, slots=True)
class ShareNow:
    """The ``part`` (0 to 1) of a job in the device hours that it shares with ``partners``.

    ``so_far`` is the part that it has used, None before any hours were used. Live sessions count in full.
    """

    partners: tuple[str, ...]
    part: float
    so_far: float | None

    def words(self) -> str:
        """Return the share as a sentence."""
        had = "none yet" if self.so_far is None else f"{self.so_far:.0%} so far"
        return f"{self.part:.0%} of its hours with {', '.join(self.partners)}; {had}".replace("%", " %")


def share_now(tx: Connection, name: str) -> ShareNow | None:
    """Return the share of the job ``name``; None if it has no share, or if its partner has left the queue."""
    shares = hour_shares(tx, jobs.everything(tx))
    mine = shares.get(name)
    if mine is None:
        return None
    partners = tuple(other for other, share in shares.items() if share.group == mine.group and other != name)
    return ShareNow(partners, mine.part, mine.so_far)
