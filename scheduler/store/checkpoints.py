"""Checkpoints: the manifests found in the artifact store with their states, and objects marked for deletion."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, insert, select, update

from jobs.payload.bounds import INSTANT_MAX, SPAN_MAX, measures
from jobs.payload.store.manifest import Manifest
from jobs.problem import NotFound
from scheduler.store import codec, events
from scheduler.store.errors import Stale
from scheduler.store.schema import checkpoints, discards, jobs

CheckpointState = Literal["good", "quarantined", "expired"]
RESTORABLE = 5  # number of restore candidates that a session gets


@dataclass(frozen=True, slots=True)
class CheckpointRecord:
    """A recorded manifest. ``why`` is the reason for quarantine or expiry. A pinned checkpoint never expires."""

    manifest: Manifest
    seen_at: int
    state: CheckpointState
    why: str
    pinned: bool


_SAME_KEY = select(checkpoints.c.key).where(checkpoints.c.key == bindparam("key"))
_ALL = select(checkpoints).order_by(
    checkpoints.c.job, checkpoints.c.step.desc(), checkpoints.c.attempt.desc(), checkpoints.c.key
)
_SAVED = _ALL.with_only_columns(checkpoints.c.manifest, checkpoints.c.seen_at).where(
    checkpoints.c.state != "quarantined"
)
_ONE = select(checkpoints).where(checkpoints.c.key == bindparam("key"))
_KEYS = select(checkpoints.c.key).where(checkpoints.c.job == bindparam("job"))
_OF_JOB = _ALL.where(checkpoints.c.job == bindparam("job"))
# A job must not start from the checkpoints of a removed job with the same name.
_FENCE = select(func.coalesce(jobs.c.fenced_attempt, 0)).where(jobs.c.name == bindparam("job")).scalar_subquery()
_NEWEST = _OF_JOB.where(checkpoints.c.state == "good", checkpoints.c.attempt > _FENCE).limit(bindparam("limit"))
_UNEXPIRED = _ALL.where(checkpoints.c.state != "expired")
_UNEXPIRED_OF_JOB = _UNEXPIRED.where(checkpoints.c.job == bindparam("job"))
_UNEXPIRED_JOBS = select(checkpoints.c.job).where(checkpoints.c.state != "expired").distinct()
_LONG_EXPIRED = (
    select(checkpoints.c.key)
    .where(
        checkpoints.c.state == "expired",
        checkpoints.c.seen_at < bindparam("before"),
        checkpoints.c.key.not_in(select(discards.c.key)),
    )
    .limit(bindparam("limit"))
)


def record(tx: Connection, manifest: Manifest, now: int) -> bool:
    """Record a manifest as good and write the event ``checkpoint.seen``; return False if it is already recorded."""
    if tx.execute(_SAME_KEY, {"key": manifest.key}).first() is not None:
        return False
    row = codec.row_of(CheckpointRecord(manifest, now, "good", "", pinned=False), manifest=codec.dump(manifest))
    whose = {"key": manifest.key, "job": manifest.job, "step": manifest.step, "attempt": manifest.attempt}
    tx.execute(insert(checkpoints), {**row, **whose})
    events.append(tx, "checkpoint.seen", manifest.key, now, job=manifest.job, step=manifest.step)
    return True


def newest(tx: Connection, job: str, limit: int = RESTORABLE) -> list[CheckpointRecord]:
    """Return at most ``limit`` good checkpoints that a job may start from, highest step first."""
    return [_record(row) for row in tx.execute(_NEWEST, {"job": job, "limit": limit})]


def everything(tx: Connection, job: str | None = None) -> list[CheckpointRecord]:
    """Return all checkpoints (of one job if given), sorted by job, then highest step first."""
    rows = tx.execute(_ALL) if job is None else tx.execute(_OF_JOB, {"job": job})
    return [_record(row) for row in rows]


def saved(tx: Connection) -> list[tuple[Manifest, int]]:
    """Return good and expired checkpoints, without components, and when each was seen; sorted by job, step falling."""
    return [(_decoded({**codec.load_object(text), "components": ()}), at) for text, at in tx.execute(_SAVED).all()]


def unexpired(tx: Connection, job: str | None = None) -> list[CheckpointRecord]:
    """Return good and quarantined checkpoints (of one job if given), sorted by job, then highest step first."""
    rows = tx.execute(_UNEXPIRED) if job is None else tx.execute(_UNEXPIRED_OF_JOB, {"job": job})
    return [_record(row) for row in rows]


def unexpired_jobs(tx: Connection) -> set[str]:
    """Return the jobs that have a good or a quarantined checkpoint."""
    return set(tx.execute(_UNEXPIRED_JOBS).scalars())


def get(tx: Connection, key: str) -> CheckpointRecord:
    """Return one checkpoint. Raises NotFound."""
    stored = find(tx, key)
    if stored is None:
        raise NotFound("unknown checkpoint", "no checkpoint has this key", "See `schedctl checkpoints list`", key)
    return stored


def find(tx: Connection, key: str) -> CheckpointRecord | None:
    """Return one checkpoint, or None if it was never recorded."""
    row = tx.execute(_ONE, {"key": key}).one_or_none()
    return None if row is None else _record(row)


def keys(tx: Connection, jobs: Collection[str]) -> set[str]:
    """Return the keys of all recorded checkpoints of ``jobs``, in any state."""
    return {key for job in jobs for key in tx.execute(_KEYS, {"job": job}).scalars()}


def quarantine(tx: Connection, key: str, why: str, now: int) -> None:
    """Mark a good checkpoint as unusable and write an event. Raises NotFound, or Stale if it is not good."""
    _guarded(tx, key, "good", checkpoints.c.state == "good", state="quarantined", why=why)
    events.append(tx, "checkpoint.quarantined", key, now, why=why)


def pin(tx: Connection, key: str, pinned: bool, now: int, by: str) -> None:  # noqa: FBT001 - the value itself
    """Protect a checkpoint from expiry, or remove the protection. Raises NotFound, or Stale if it has expired."""
    _guarded(tx, key, "not expired", checkpoints.c.state != "expired", pinned=pinned)
    events.append(tx, "checkpoint.pinned" if pinned else "checkpoint.unpinned", key, now, by)


def expire(tx: Connection, key: str, why: str, now: int) -> None:
    """Mark a checkpoint as deleted by retention. Raises NotFound, or Stale if it is pinned or expired."""
    loose = (checkpoints.c.state != "expired") & ~checkpoints.c.pinned
    _guarded(tx, key, "not pinned and not expired", loose, state="expired", why=why)
    events.append(tx, "checkpoint.expired", key, now, why=why)


def forget(tx: Connection, before: int, limit: int) -> int:
    """Delete up to ``limit`` expired checkpoints seen before ``before`` and not in discards; return how many."""
    keys = tx.execute(_LONG_EXPIRED, {"before": before, "limit": limit}).scalars().all()
    if keys:
        tx.execute(delete(checkpoints).where(checkpoints.c.key.in_(keys)))
    return len(keys)


def _guarded(tx: Connection, key: str, expected: str, still: ColumnElement[bool], **values: Any) -> None:
    if not tx.execute(update(checkpoints).where(checkpoints.c.key == key, still).values(values)).rowcount:
        stored = get(tx, key)
        raise Stale(f"checkpoint {key}", expected, f"{stored.state}{', pinned' if stored.pinned else ''}")


def _record(row: Row[Any]) -> CheckpointRecord:
    return codec.record_of(CheckpointRecord, row, manifest=manifest_of(row.manifest))


@lru_cache(maxsize=512)
def manifest_of(text: str) -> Manifest:
    """Decode a manifest from its column. Raises KeyError, TypeError or ValueError."""
    return _decoded(codec.load_object(text))


def _decoded(document: dict[str, Any]) -> Manifest:
    document.pop("key", None)  # written by older versions
    # Older versions did not validate instants and metrics.
    for name, most in (("created_at", INSTANT_MAX), ("trained_seconds", SPAN_MAX)):
        document[name] = max(0, min(document[name], most))
    document["metrics"] = measures(document["metrics"])
    return codec.built(Manifest, document)


# Discards: objects of the artifact store marked for deletion, with the reason and the earliest time.
#
# The row is written first, the object is deleted after a grace period, and the row is deleted last, so that the next
# pass completes a deletion that a crash interrupted.
@dataclass(frozen=True, slots=True)
class Discard:
    """An object to delete, by its store key: a manifest or a blob of ``job``. Times are scheduled UTC seconds."""

    key: str
    job: str
    why: str
    marked_at: int
    delete_at: int


_MARKED = select(discards).order_by(discards.c.delete_at, discards.c.key)
_MARKED_OF_JOB = _MARKED.where(discards.c.job == bindparam("job"))


def marked(tx: Connection, job: str | None = None) -> list[Discard]:
    """Return the marked objects (of one job if given), sorted by their earliest time of deletion."""
    return codec.records(Discard, tx.execute(_MARKED) if job is None else tx.execute(_MARKED_OF_JOB, {"job": job}))


def mark(tx: Connection, rows: Collection[Discard]) -> None:
    """Mark objects for deletion; none of them may be marked already."""
    if rows:
        tx.execute(insert(discards), [codec.row_of(one) for one in rows])


def unmark(tx: Connection, keys: Collection[str]) -> None:
    """Remove marks, because the objects are deleted or are kept after all."""
    if keys:
        tx.execute(delete(discards).where(discards.c.key.in_(keys)))
