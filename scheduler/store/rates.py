"""Measured speed and overheads of each job on each pool."""

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from jobs.grouping import grouped
from jobs.payload.bounds import SPEED_MAX, SPEED_MIN
from scheduler.core.throughput import PRIOR_SIGMA, Estimate
from scheduler.store.schema import rates


@dataclass(frozen=True, slots=True, kw_only=True)
class RateRecord(Estimate):
    """A job's estimate on a pool from reports up to ``at`` (UTC seconds). With 0 samples its speed is unknown."""

    job: str
    pool: str
    at: int


def _clamped(row: Any) -> RateRecord:
    """Return a rate with values that plans accept, because older versions stored reports without validation."""
    values = row._asdict()
    for name in ("setup_seconds", "checkpoint_seconds", "delay_seconds"):
        values[name] = max(0, min(values[name], _LOST_MAX))
    for name in ("sigma", "setup_sigma", "checkpoint_sigma"):
        values[name] = values[name] if 0 <= values[name] <= _SIGMA_MAX else _SIGMA_MAX
    if values["samples"] and not SPEED_MIN <= values["steps_per_second"] <= SPEED_MAX:
        values |= {"steps_per_second": 0.0, "sigma": PRIOR_SIGMA, "samples": 0}  # treated as not measured
    return RateRecord(**values)


_LOST_MAX = 31 * 86_400  # seconds, longer than any session
_SIGMA_MAX = 100.0
_ALL = select(rates).order_by(rates.c.job, rates.c.pool)
_ONE = select(rates).where(rates.c.job == bindparam("job"), rates.c.pool == bindparam("pool"))
_OF_JOBS = _ALL.where(rates.c.job.in_(bindparam("jobs", expanding=True)))


def everything(tx: Connection) -> dict[tuple[str, str], RateRecord]:
    """Return all rates by job and pool."""
    return {(row.job, row.pool): _clamped(row) for row in tx.execute(_ALL)}


def of_job(tx: Connection, job: str) -> list[RateRecord]:
    """Return the measurements of one job, by pool."""
    return of_jobs(tx, [job]).get(job, [])


def of_jobs(tx: Connection, jobs: Collection[str]) -> dict[str, list[RateRecord]]:
    """Return the measurements of jobs; jobs without any are absent."""
    rows = tx.execute(_OF_JOBS, {"jobs": list(jobs)}) if jobs else ()
    return grouped((row.job, _clamped(row)) for row in rows)


def get(tx: Connection, job: str, pool: str) -> RateRecord | None:
    """Return the measurements of a job on a pool, or None."""
    row = tx.execute(_ONE, {"job": job, "pool": pool}).one_or_none()
    return None if row is None else _clamped(row)


def put(tx: Connection, record: RateRecord) -> None:
    """Store a rate, replacing the previous one."""
    row = asdict(record)
    change = update(rates).where(rates.c.job == record.job, rates.c.pool == record.pool)
    if not tx.execute(change.values(row)).rowcount:
        tx.execute(insert(rates), row)
