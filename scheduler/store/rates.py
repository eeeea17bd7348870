"""Measured speed and overheads of each job on each pool."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from jobs.grouping import grouped
from jobs.payload.bounds import SPEED_MAX, SPEED_MIN
from scheduler.core.throughput import PRIOR_SIGMA, Estimate
from scheduler.store.schema import rates


@dataclass(frozen=True, slots=True)
class RateRecord:
    """Steps per second on one device while it trains, and the time a session loses otherwise (see core.throughput).

    ``samples`` counts the measured speeds; with 0 only the lost time is known.
    """

    job: str
    pool: str
    steps_per_second: float
    sigma: float
    samples: int
    setup_seconds: int
    checkpoint_seconds: int
    at: int
    delay_seconds: int = 0
    setup_sigma: float = PRIOR_SIGMA
    checkpoint_sigma: float = PRIOR_SIGMA

    @property
    def estimate(self) -> Estimate:
        """The values from which further measurements are learned."""
        return Estimate(**{name: getattr(self, name) for name in _ESTIMATED})


def _believed(row: Any) -> RateRecord:
    """Return a rate clamped to what plans accept: older versions stored unvalidated reports."""
    record = RateRecord(*row)
    unfit: dict[str, Any] = {}
    for name in ("setup_seconds", "checkpoint_seconds", "delay_seconds"):
        if not 0 <= getattr(record, name) <= _LOST_MAX:
            unfit[name] = max(0, min(getattr(record, name), _LOST_MAX))
    for name in ("sigma", "setup_sigma", "checkpoint_sigma"):
        if not 0 <= getattr(record, name) <= _SIGMA_MAX:
            unfit[name] = _SIGMA_MAX
    if record.samples and not SPEED_MIN <= record.steps_per_second <= SPEED_MAX:
        unfit |= {"steps_per_second": 0.0, "sigma": PRIOR_SIGMA, "samples": 0}  # treated as not measured
    return replace(record, **unfit) if unfit else record


_LOST_MAX = 31 * 86_400  # seconds, longer than any session
_SIGMA_MAX = 100.0
_ESTIMATED = tuple(field.name for field in fields(Estimate))
_MEASURED = (*_ESTIMATED, "at")
_ALL = select(rates).order_by(rates.c.job, rates.c.pool)
_ONE = select(rates).where(rates.c.job == bindparam("job"), rates.c.pool == bindparam("pool"))
_OF_JOBS = _ALL.where(rates.c.job.in_(bindparam("jobs", expanding=True)))


def everything(tx: Connection) -> dict[tuple[str, str], RateRecord]:
    """Return all rates by job and pool."""
    return {(row.job, row.pool): _believed(row) for row in tx.execute(_ALL)}


def of_job(tx: Connection, job: str) -> list[RateRecord]:
    """Return the measurements of one job, by pool."""
    return of_jobs(tx, [job]).get(job, [])


def of_jobs(tx: Connection, jobs: Collection[str]) -> dict[str, list[RateRecord]]:
    """Return the measurements of jobs; jobs without any are absent."""
    rows = tx.execute(_OF_JOBS, {"jobs": list(jobs)}) if jobs else ()
    return grouped((row.job, _believed(row)) for row in rows)


def get(tx: Connection, job: str, pool: str) -> RateRecord | None:
    """Return the measurements of a job on a pool, or None."""
    row = tx.execute(_ONE, {"job": job, "pool": pool}).one_or_none()
    return None if row is None else _believed(row)


def put(tx: Connection, record: RateRecord) -> None:
    """Store a rate, replacing the previous one."""
    row = asdict(record)
    change = update(rates).where(rates.c.job == record.job, rates.c.pool == record.pool)
    if not tx.execute(change.values({name: row[name] for name in _MEASURED})).rowcount:
        tx.execute(insert(rates), row)
