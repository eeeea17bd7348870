"""Jobs: their definitions, progress and states, and the order of the queue. Every change writes one event."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Update, bindparam, delete, func, insert, select, update

from jobs.grouping import grouped
from jobs.nouns.window import DAY
from jobs.problem import NotFound, Refusal
from jobs.spec import EVALUATE, JobSpec
from scheduler.core.job import Done, JobState, Queued, add_again
from scheduler.core.job import remove as removed_state
from scheduler.core.job import restart as restarted_state
from scheduler.store import codec, events, generations, series
from scheduler.store.errors import CORRUPT_REMEDY, DatabaseCorrupt, Stale
from scheduler.store.generations import Generation
from scheduler.store.schema import checkpoints, jobs, rates


def duplicate_job(name: str) -> Refusal:
    """Return the error for a name in use. Checkpoints and attempts have the name of their job, so it must be unique."""
    remedy = f"Choose another name, or change that job: `schedctl queue edit {name}`, `schedctl queue remove {name}`"
    return Refusal("job not added", "a job of this name exists", remedy, name)


class UnknownJob(NotFound):
    """No job has this name; ``close_matches`` are the names most similar to it."""

    def __init__(self, name: str, close_matches: tuple[str, ...]) -> None:
        meant = f"Did you mean {' or '.join(close_matches)}?" if close_matches else ""
        super().__init__("unknown job", "no job has this name", meant or "See `schedctl queue list`", name)
        self.name = name
        self.close_matches = close_matches


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored.

    ``attempts`` counts launches, ``failures`` consecutive failed runs. ``done_step`` is the step of the newest
    checkpoint, ``checkpoint`` the key of its manifest. ``position`` is the place in the queue, from 1. ``faults`` has
    a sentence for each number of the definition that is out of range, as older versions stored it; in ``spec`` these
    numbers are clamped, and the job is not run.
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
    faults: tuple[str, ...] = ()
    removed_at: int | None = None  # out of the queue since then; None: in the queue
    fenced_attempt: int = 0  # checkpoints of attempts up to this one belong to a removed job of this name

    @property
    def stopped_early(self) -> bool:
        """Whether its stop rule ended it before its target step."""
        return isinstance(self.state, Done) and self.state.full_target_step is not None

    @property
    def furthest_step(self) -> int:
        """The highest step that its checkpoints can have: the target step before a stop rule lowered it."""
        return getattr(self.state, "full_target_step", None) or self.spec.target_step

    @property
    def result_lost(self) -> bool:
        """Whether the job is done, but the checkpoint of its target step is damaged."""
        return isinstance(self.state, Done) and self.done_step < self.spec.target_step


_IN_QUEUE = jobs.c.removed_at.is_(None)
_ALL = select(jobs).order_by(jobs.c.position, jobs.c.name).where(_IN_QUEUE)
# Decode only jobs that have an evaluation. The pattern cannot match inside a text, because JSON escapes its quotes.
_WITH_EVALUATION = _ALL.join(checkpoints, checkpoints.c.key == jobs.c.checkpoint).where(
    checkpoints.c.state == "good",
    jobs.c.state.in_(("queued", "active", "held", "done")),
    jobs.c.spec.not_like('%"evaluation":null%'),
)
_CANDIDATES = select(jobs).where(jobs.c.spec.like('%"halving":{%')).order_by(jobs.c.name)
_WITH_BUDGET = select(jobs).where(
    jobs.c.spec.like('%"halving":{%')
    | (jobs.c.spec.like('%"budget_seconds":%') & jobs.c.spec.not_like('%"budget_seconds":null%'))
)
_BY_AGE = select(jobs.c.name).where(jobs.c.removed_at.is_(None)).order_by(jobs.c.created_at, jobs.c.name)
_FIRST_ADDED = select(func.min(jobs.c.created_at))
_ONE = select(jobs).where(jobs.c.name == bindparam("name"))
_SPEC = select(jobs.c.spec).where(jobs.c.name == bindparam("name"))
_NAMES = select(jobs.c.name).where(_IN_QUEUE)
_LAST = select(func.coalesce(func.max(jobs.c.position), 0))
_COUNT = select(func.count()).select_from(jobs).where(_IN_QUEUE)


def add(tx: Connection, spec: JobSpec, now: int, by: str = "cli", *, go_on: bool = False) -> JobRecord:
    """Add a new job to the end of the queue. Raises Refusal.

    A job with the name of a removed job continues the count of attempts, so that launch keys and manifests stay unique.
    It starts from scratch and cannot use the checkpoints of the removed job; with ``go_on`` it resumes from them.
    """
    removed = find(tx, spec.name)
    last: int = tx.execute(_LAST).scalar_one()
    if removed is not None and removed.removed_at is None:
        raise duplicate_job(spec.name)
    fresh = {"failures": 0, "created_at": now, "position": last + 1, "removed_at": None}
    if removed is None:
        state = Queued(now)
        before = {}
        counts = {"attempts": 0, "done_step": 0, "checkpoint": None, "last_pool": None}
        tx.execute(insert(jobs).values(name=spec.name, **_columns(spec, state), **counts, **fresh))
    else:
        state = add_again(removed.state, now)
        before = {"from": codec.state_json(removed.state)}
        reset = {"done_step": 0, "checkpoint": None, "last_pool": None, "fenced_attempt": removed.attempts}
        values = {**_columns(spec, state), **fresh, **({} if go_on else reset)}
        tx.execute(_one(spec.name).values(**values))
        if not go_on:
            tx.execute(delete(rates).where(rates.c.job == spec.name))
            generations.forget(tx, spec.name)
            series.forget(tx, spec.name)
    data = {**before, "to": codec.state_json(state), "spec": spec}
    events.write(tx, "job.added", spec.name, now, by, data)
    return get(tx, spec.name)


def _columns(spec: JobSpec, state: JobState) -> dict[str, Any]:
    definition = {name: value for name, value in codec.spec_columns(spec).items() if name != "name"}
    return {**definition, **codec.state_columns(state)}


def restart(tx: Connection, name: str, now: int, by: str) -> Generation:
    """Restart a job without a session from scratch, as its next generation, and write the event ``job.restart``.

    Its checkpoints are no longer used; the count of its attempts continues. Raises UnknownJob, IllegalArrow.
    """
    record = get(tx, name)
    fresh = restarted_state(record.state, now)
    change_state(tx, name, record.state, fresh, "restart", now, by, step=record.done_step, checkpoint=record.checkpoint)
    reset = {"done_step": 0, "checkpoint": None, "failures": 0, "fenced_attempt": record.attempts}
    tx.execute(_one(name).values(**reset))
    return generations.begin(tx, name, record.attempts + 1, now)


def remove(tx: Connection, name: str, now: int, by: str) -> None:
    """Remove a job without a session from the queue, and write an event. Raises UnknownJob, IllegalArrow."""
    record = get(tx, name)
    change_state(tx, name, record.state, removed_state(record.state, by, now), "remove", now, by)
    _shift(tx, record.position + 1, tx.execute(_LAST).scalar_one(), -1)
    tx.execute(_one(name).values(removed_at=now, position=0))


def get(tx: Connection, name: str, *, removed: bool = False) -> JobRecord:
    """Return one job of the queue; with ``removed`` also a job that was removed from it. Raises UnknownJob."""
    record = find(tx, name)
    if record is None or (record.removed_at is not None and not removed):
        from difflib import get_close_matches

        names = list(tx.execute(_NAMES).scalars())
        if record is None and name in names:
            raise DatabaseCorrupt("database is damaged", "table jobs", f"its index lacks {name}", CORRUPT_REMEDY)
        raise UnknownJob(name, tuple(get_close_matches(name, names)))
    return record


def find(tx: Connection, name: str) -> JobRecord | None:
    """Return one job, removed or not; None if no job ever had this name."""
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


def with_evaluation(tx: Connection) -> list[JobRecord]:
    """Return the jobs with an evaluation, neither failed nor cancelled, whose newest checkpoint is good."""
    return [record for row in tx.execute(_WITH_EVALUATION) if (record := _record(row)).spec.evaluation is not None]


def candidates(tx: Connection) -> dict[str, list[JobRecord]]:
    """Return the candidates of each halved sweep, by sweep and sorted by name; removed jobs are included."""
    records = map(_record, tx.execute(_CANDIDATES))
    return grouped((record.spec.sweep, record) for record in records if record.spec.halving is not None)


def with_budget(tx: Connection) -> list[JobRecord]:
    """Return the jobs that have a budget or belong to a halved sweep; removed jobs are included."""
    return [_record(row) for row in tx.execute(_WITH_BUDGET)]


def page(
    tx: Connection, limit: int, offset: int = 0, states: Collection[str] = (), part: str = ""
) -> tuple[list[JobRecord], int]:
    """Return up to ``limit`` jobs in queue order after the first ``offset``, and the total number of jobs.

    Only jobs in one of ``states`` count (empty: in any), and only jobs whose names contain ``part``.
    """
    wanted: list[ColumnElement[bool]] = [jobs.c.state.in_(sorted(states))] if states else []
    if part:
        wanted.append(jobs.c.name.contains(part, autoescape=True))
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    return [_record(row) for row in tx.execute(_ALL.where(*wanted).limit(limit).offset(offset))], total


def names_by_age(tx: Connection) -> list[str]:
    """Return the names of the jobs in the queue, oldest first."""
    return list(tx.execute(_BY_AGE).scalars())


def first_added(tx: Connection) -> int | None:
    """Return when the first job was added, in UTC seconds; None if there never was one."""
    at: int | None = tx.execute(_FIRST_ADDED).scalar_one()
    return at


def change_state(
    tx: Connection, name: str, old: JobState, new: JobState, arrow: str, now: int, by: str = "daemon", **detail: Any
) -> None:
    """Replace the state ``old`` by ``new`` and write the event ``job.<arrow>``. Raises Stale in any other state."""
    if not tx.execute(_one(name).where(*codec.is_in(jobs, old)).values(codec.state_columns(new))).rowcount:
        raise Stale(f"job {name}", repr(old), repr(get(tx, name).state))
    before, after = codec.state_json(old), codec.state_json(new)
    events.write(tx, f"job.{arrow}", name, now, by, {**detail, "from": before, "to": after})


def change_spec(tx: Connection, name: str, now: int, by: str, **fields: Any) -> JobRecord:
    """Change fields of the definition, or ``position`` (from 1; the other jobs move).

    The event is ``job.changed``, or ``job.code`` or ``job.requirements`` if only that field changes.

    Raises UnknownJob, and TypeError for a field that a definition does not have. The name cannot be changed.
    """
    record = get(tx, name)
    position = fields.pop("position", None)
    old = {field: getattr(record.spec, field) for field in fields if hasattr(record.spec, field)}
    changed = replace(record.spec, **{**fields, "name": name})
    if fields:
        stored = tx.execute(_SPEC, {"name": name}).scalar_one()
        tx.execute(_one(name).values(codec.changed_columns(stored, changed, fields)))
    if position is not None:
        old, fields = {**old, "position": record.position}, {**fields, "position": _move(tx, record, position)}
    alone = next(iter(fields)) if len(fields) == 1 else ""
    kind = f"job.{alone}" if alone in {"code", "requirements"} else "job.changed"
    events.append(tx, kind, name, now, by, old=old, new=fields)
    return get(tx, name)


def note_launch(tx: Connection, name: str, pool: str) -> int:
    """Count a launch on ``pool`` and return the number of the attempt, from 1. Raises UnknownJob."""
    counted = _one(name).values(attempts=jobs.c.attempts + 1, last_pool=pool).returning(jobs.c.attempts)
    attempt: int | None = tx.execute(counted).scalar_one_or_none()
    return attempt if attempt is not None else get(tx, name).attempts


def note_failures(tx: Connection, name: str, failures: int) -> None:
    """Store the number of consecutive failed runs. Raises UnknownJob."""
    if not tx.execute(_one(name).values(failures=failures)).rowcount:
        get(tx, name)


def note_progress(tx: Connection, name: str, step: int, checkpoint_key: str | None, *, fork: bool = False) -> None:
    """Store the newest good checkpoint. Raises Refusal if ``step`` is below the stored step, unless ``fork`` is set."""
    onward = _one(name) if fork else _one(name).where(jobs.c.done_step <= step)
    if not tx.execute(onward.values(done_step=step, checkpoint=checkpoint_key)).rowcount:
        why = f"step {step} is below the {get(tx, name).done_step} already reached"
        raise Refusal("progress refused", why, "Look at `schedctl checkpoints list`", name)


def _move(tx: Connection, record: JobRecord, position: int) -> int:
    wanted = max(1, min(position, tx.execute(_COUNT).scalar_one()))
    if wanted < record.position:
        _shift(tx, wanted, record.position - 1, 1)
    elif wanted > record.position:
        _shift(tx, record.position + 1, wanted, -1)
    tx.execute(_one(record.spec.name).values(position=wanted))
    return wanted


def _shift(tx: Connection, first: int, last: int, by: int) -> None:
    tx.execute(update(jobs).where(jobs.c.position.between(first, last)).values(position=jobs.c.position + by))


def _one(name: str) -> Update:
    return update(jobs).where(jobs.c.name == name)


@lru_cache(maxsize=4_096)
def _record(row: Row[Any]) -> JobRecord:
    spec, faults = codec.spec(row)
    state = codec.job_state(row.state, row.state_detail)
    fenced = row.fenced_attempt or 0
    return codec.record_of(JobRecord, row, spec=spec, faults=faults, state=state, fenced_attempt=fenced)


def has_time(spec: JobSpec, now: int) -> bool:
    """Return whether a job is an evaluation with a deadline more than a day away: it may wait for unused hours."""
    return spec.role == EVALUATE and spec.deadline is not None and now < spec.deadline - DAY
