"""Jobs: what is to be trained, how far it is, and in which state. Every change writes one event."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, case, func, insert, select, update

from scheduler.core.job import Queued
from scheduler.store import codec, events
from scheduler.store.errors import Stale, StoreFailure
from scheduler.store.schema import jobs

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import ColumnElement, Connection, Row

    from jobs.spec import JobSpec
    from scheduler.core.job import JobState


class DuplicateJob(StoreFailure):
    """The name is taken; names are never reused, because checkpoints and attempts carry them."""

    def __init__(self, name: str) -> None:
        why = "a job of this name exists"
        super().__init__("job not added", name, why, "Choose another name, or change the job with `schedctl queue`")
        self.name = name


class UnknownJob(StoreFailure):
    """No job has this name; ``close_matches`` are names like it."""

    def __init__(self, name: str, close_matches: tuple[str, ...]) -> None:
        meant = f"Did you mean {' or '.join(close_matches)}?" if close_matches else ""
        super().__init__("unknown job", name, "no job has this name", meant or "See `schedctl queue list`")
        self.name = name
        self.close_matches = close_matches


class Backwards(StoreFailure):
    """A checkpoint below the step already reached; only a person may go back, by a fork."""

    def __init__(self, name: str, step: int, done_step: int) -> None:
        why = f"step {step} is below the {done_step} already reached"
        super().__init__("progress refused", name, why, "Look at `schedctl checkpoints list`")
        self.name = name
        self.step = step
        self.done_step = done_step


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored.

    ``attempts`` counts launches, ``failures`` consecutive failed runs, ``done_step`` checkpointed steps;
    ``checkpoint`` is the manifest key they are in. ``position`` is its place in the queue, from 1.
    """

    spec: JobSpec
    state: JobState
    attempts: int
    failures: int
    done_step: int
    checkpoint: str | None
    last_pool: str | None
    created_at: int
    position: int


_ALL = select(jobs).order_by(jobs.c.position, jobs.c.name)
_FIRST_ADDED = select(func.min(jobs.c.created_at))
_ONE = select(jobs).where(jobs.c.name == bindparam("name"))
_NAMES = select(jobs.c.name)
_LAST = select(
    func.coalesce(func.max(jobs.c.position), 0),
    func.count(case((jobs.c.name == bindparam("name"), 1))),
)
_INSERT = insert(jobs)
_GUARDED = (
    update(jobs)
    .where(
        jobs.c.name == bindparam("b_name"),
        jobs.c.state == bindparam("b_state"),
        jobs.c.state_detail == bindparam("b_detail"),
    )
    .values(state=bindparam("new_state"), state_detail=bindparam("new_detail"))
)
_LAUNCHED = (
    update(jobs)
    .where(jobs.c.name == bindparam("b_name"))
    .values(attempts=jobs.c.attempts + 1, last_pool=bindparam("pool"))
    .returning(jobs.c.attempts)
)
_FAILURES = update(jobs).where(jobs.c.name == bindparam("b_name")).values(failures=bindparam("count"))
_PROGRESS = (
    update(jobs)
    .where(jobs.c.name == bindparam("b_name"))
    .values(done_step=bindparam("step"), checkpoint=bindparam("key"))
)
_FORWARD = _PROGRESS.where(jobs.c.done_step <= bindparam("step"))
_COUNT = select(func.count()).select_from(jobs)
_MOVE_DOWN = (
    update(jobs)
    .where(jobs.c.position >= bindparam("first"), jobs.c.position < bindparam("last"))
    .values(position=jobs.c.position + 1)
)
_MOVE_UP = (
    update(jobs)
    .where(jobs.c.position > bindparam("first"), jobs.c.position <= bindparam("last"))
    .values(position=jobs.c.position - 1)
)


def add(tx: Connection, spec: JobSpec, now: int, by: str = "cli") -> JobRecord:
    """Put a new job at the end of the queue. Raises DuplicateJob."""
    last, taken = tx.execute(_LAST, {"name": spec.name}).one()
    if taken:
        raise DuplicateJob(spec.name)
    state = Queued(now)
    record = JobRecord(spec, state, 0, 0, 0, None, None, now, last + 1)
    row = {
        **codec.spec_columns(spec),
        "state": codec.state_name(state),
        "state_detail": codec.state_detail(state),
        "attempts": 0,
        "failures": 0,
        "done_step": 0,
        "created_at": now,
        "position": record.position,
    }
    tx.execute(_INSERT, row)
    events.append(tx, "job.added", spec.name, now, by, to=codec.state_json(state), spec=spec)
    return record


def get(tx: Connection, name: str) -> JobRecord:
    """Return one job. Raises UnknownJob."""
    row = tx.execute(_ONE, {"name": name}).one_or_none()
    if row is None:
        from difflib import get_close_matches

        names = list(tx.execute(_NAMES).scalars())
        raise UnknownJob(name, tuple(get_close_matches(name, names)))
    return _record(row)


def find(tx: Connection, name: str) -> JobRecord | None:
    """Return one job, or None when there is none of that name."""
    row = tx.execute(_ONE, {"name": name}).one_or_none()
    return None if row is None else _record(row)


def everything(tx: Connection, states: Collection[str] | None = None) -> list[JobRecord]:
    """Return all jobs, or those in the named states (``"queued"``, ``"active"``...), in queue order."""
    if states is None:
        return [_record(row) for row in tx.execute(_ALL)]
    unknown = set(states).difference(codec.JOB_STATES)
    if unknown:
        raise ValueError(f"no job state is called {', '.join(sorted(unknown))}")
    return [_record(row) for row in tx.execute(_ALL.where(jobs.c.state.in_(sorted(states))))]


def page(
    tx: Connection, limit: int, offset: int = 0, states: Collection[str] = (), part: str = ""
) -> tuple[list[JobRecord], int]:
    """Return up to ``limit`` jobs in queue order after the first ``offset``, and how many there are in all.

    Only jobs in ``states``, if any are named, whose names hold ``part``.
    """
    wanted: list[ColumnElement[bool]] = [jobs.c.state.in_(sorted(states))] if states else []
    if part:
        wanted.append(jobs.c.name.contains(part, autoescape=True))
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    return [_record(row) for row in tx.execute(_ALL.where(*wanted).limit(limit).offset(offset))], total


def first_added(tx: Connection) -> int | None:
    """Return when the first job was added, None when there never was one."""
    at: int | None = tx.execute(_FIRST_ADDED).scalar_one()
    return at


def change_state(
    tx: Connection,
    name: str,
    old: JobState,
    new: JobState,
    arrow: str,
    now: int,
    by: str = "daemon",
    **detail: Any,
) -> None:
    """Store the new state if the job is still exactly in the old one; event ``job.<arrow>``. Raises Stale."""
    changed = tx.execute(
        _GUARDED,
        {
            "b_name": name,
            "b_state": codec.state_name(old),
            "b_detail": codec.state_detail(old),
            "new_state": codec.state_name(new),
            "new_detail": codec.state_detail(new),
        },
    ).rowcount
    if not changed:
        raise Stale(f"job {name}", repr(old), repr(get(tx, name).state))
    before, after = codec.state_json(old), codec.state_json(new)
    events.write(tx, f"job.{arrow}", name, now, by, {**detail, "from": before, "to": after})


def change_spec(tx: Connection, name: str, now: int, by: str, **fields: Any) -> JobRecord:
    """Change fields of the definition, or ``position`` (from 1; the others make way); event ``job.changed``.

    Raises UnknownJob, and TypeError for a field a definition does not have. The name cannot be changed.
    """
    record = get(tx, name)
    position = fields.pop("position", None)
    old = {field: getattr(record.spec, field) for field in fields if hasattr(record.spec, field)}
    changed = replace(record, spec=replace(record.spec, **{**fields, "name": name}))
    tx.execute(update(jobs).where(jobs.c.name == name).values(codec.spec_columns(changed.spec)))
    if position is not None:
        changed = replace(changed, position=_move(tx, record, position))
        old, fields = {**old, "position": record.position}, {**fields, "position": changed.position}
    events.append(tx, "job.changed", name, now, by, old=old, new=fields)
    return changed


def note_launch(tx: Connection, name: str, pool: str) -> int:
    """Count one more launch, on ``pool``, and return the attempt's number, from 1. Raises UnknownJob."""
    attempt: int | None = tx.execute(_LAUNCHED, {"b_name": name, "pool": pool}).scalar_one_or_none()
    return attempt if attempt is not None else get(tx, name).attempts


def note_failures(tx: Connection, name: str, failures: int) -> None:
    """Store the number of consecutive failed runs. Raises UnknownJob."""
    if not tx.execute(_FAILURES, {"b_name": name, "count": failures}).rowcount:
        get(tx, name)


def note_progress(tx: Connection, name: str, step: int, checkpoint_key: str | None, *, fork: bool = False) -> None:
    """Store the newest good checkpoint. Raises Backwards when ``step`` is lower than before, unless ``fork``."""
    values = {"b_name": name, "step": step, "key": checkpoint_key}
    if not tx.execute(_PROGRESS if fork else _FORWARD, values).rowcount:
        raise Backwards(name, step, get(tx, name).done_step)


def _move(tx: Connection, record: JobRecord, position: int) -> int:
    wanted = max(1, min(position, tx.execute(_COUNT).scalar_one()))
    if wanted < record.position:
        tx.execute(_MOVE_DOWN, {"first": wanted, "last": record.position})
    elif wanted > record.position:
        tx.execute(_MOVE_UP, {"first": record.position, "last": wanted})
    tx.execute(update(jobs).where(jobs.c.name == record.spec.name).values(position=wanted))
    return wanted


@lru_cache(maxsize=4_096)
def _record(row: Row[Any]) -> JobRecord:
    return JobRecord(
        spec=codec.spec(row),
        state=codec.job_state(row.state, row.state_detail),
        attempts=row.attempts,
        failures=row.failures,
        done_step=row.done_step,
        checkpoint=row.checkpoint,
        last_pool=row.last_pool,
        created_at=row.created_at,
        position=row.position,
    )
