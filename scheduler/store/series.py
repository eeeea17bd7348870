"""Training metrics that sessions report by step, for curves; a few hundred points per attempt."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from jobs.grouping import grouped
from jobs.lane_report import GPU_METRICS, GpuMetrics, Telemetry
from jobs.payload.bounds import INSTANT_MAX
from scheduler.store.schema import lanes, runs, series

POINTS = 400
"""The maximum number of stored points from the first step to the target step of an attempt."""


@dataclass(frozen=True, slots=True)
class Point(Telemetry):
    """A report of one step at ``at`` (UTC seconds); values that were not reported are None."""

    job: str
    attempt: int
    step: int
    at: int
    loss: float | None
    held_out_loss: float | None

    def figures(self) -> dict[str, float]:
        """Return the reported values, by name."""
        figures = {name: getattr(self, name) for name in FIGURES}
        return {name: value for name, value in figures.items() if value is not None}


_TRAINING = tuple(field.name for field in fields(Telemetry) if field.name not in GPU_METRICS)
FIGURES = ("loss", "held_out_loss", *_TRAINING, *GPU_METRICS)
"""The names of a point's figures, in the order of all exports."""

_LAST = select(func.max(series.c.step)).where(
    series.c.job == bindparam("job"), series.c.attempt == bindparam("attempt")
)
_OF_JOBS = (
    select(series)
    .where(series.c.job.in_(bindparam("jobs", expanding=True)), series.c.attempt >= bindparam("first"))
    .order_by(series.c.job, series.c.attempt, series.c.step)
)
_OF_GPUS = [(func.max if name == "gpu_memory_bytes" else func.avg)(series.c[name]).label(name) for name in GPU_METRICS]
_GPUS = (
    select(series.c.job, runs.c.pool, *_OF_GPUS)
    .join(lanes, (lanes.c.job == series.c.job) & (lanes.c.attempt == series.c.attempt))
    .join(runs, runs.c.key == lanes.c.run)
    .where(series.c.at >= bindparam("start"), series.c.at < bindparam("end"))
    .group_by(series.c.job, runs.c.pool)
)


def gpu_metrics(tx: Connection, start: int = 0, end: int = INSTANT_MAX) -> dict[tuple[str, str], GpuMetrics]:
    """Return GPU metrics in [start, end), by job and pool: the peak of the memory and the means of the others."""
    rows = tx.execute(_GPUS, {"start": start, "end": end})
    return {(row.job, row.pool): GpuMetrics(**{name: getattr(row, name) for name in GPU_METRICS}) for row in rows}


def add(tx: Connection, point: Point, target_step: int) -> bool:
    """Store a point unless it is too close to the previous point for a chart; return whether it was stored."""
    last: int | None = tx.execute(_LAST, {"job": point.job, "attempt": point.attempt}).scalar_one()
    if last is not None and point.step < last + max(1, target_step // POINTS):
        return False
    tx.execute(insert(series), {field.name: getattr(point, field.name) for field in fields(point)})
    return True


def of_job(tx: Connection, job: str, first_attempt: int = 1) -> list[Point]:
    """Return the points of a job from an attempt on, sorted by attempt and step."""
    return of_jobs(tx, [job], first_attempt).get(job, [])


def of_jobs(tx: Connection, jobs: Collection[str], first_attempt: int = 1) -> dict[str, list[Point]]:
    """Return the points of jobs from an attempt on, sorted by attempt and step; jobs without points are absent."""
    rows = tx.execute(_OF_JOBS, {"jobs": list(jobs), "first": first_attempt}) if jobs else ()
    return grouped((row.job, Point(**row._asdict())) for row in rows)


def curve(points: Sequence[Point]) -> list[Point]:
    """Return the curve by step; an attempt replaces the points of earlier attempts from its first step on."""
    kept: list[Point] = []
    for point in points:
        while kept and kept[-1].attempt < point.attempt and kept[-1].step >= point.step:
            kept.pop()
        kept.append(point)
    return kept


def forget(tx: Connection, job: str) -> None:
    """Delete the points of a removed job whose name is reused."""
    tx.execute(delete(series).where(series.c.job == job))
