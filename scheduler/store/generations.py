"""Generations: the restarts of a job, their initial weights, and the checkpoints that must be kept because of them."""

from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Connection, Update, bindparam, delete, insert, select, update

from jobs.grouping import grouped
from scheduler.store import codec, conditions, events
from scheduler.store.schema import checkpoints, generations, jobs


@dataclass(frozen=True, slots=True)
class Generation:
    """A start of a job, numbered from 1; its first attempt is ``first_attempt``.

    The generation is initialised from the manifest ``parent_key`` of the job ``parent`` at ``parent_step``. If
    ``parent_key`` is None, it starts from scratch, or the first launch has yet to choose a manifest.
    """

    job: str
    number: int
    first_attempt: int
    began_at: int
    parent: str | None = None
    parent_step: int | None = None
    parent_key: str | None = None
    refused: tuple[str, ...] = ()  # checkpoints that sessions could not start from


_OF_JOB = select(generations).where(generations.c.job == bindparam("job")).order_by(generations.c.number)
_NEWEST = (
    select(generations.c.parent_key, generations.c.job)
    .join(jobs, jobs.c.name == generations.c.job)
    .where(jobs.c.removed_at.is_(None))
    .order_by(generations.c.job, generations.c.number)
)
_BEGINNINGS = (
    select(generations.c.job, generations.c.began_at, generations.c.first_attempt)
    .where(generations.c.number > 1)  # the first generation began when the job was added
    .order_by(generations.c.job, generations.c.number)
)
_NEEDED = _NEWEST.where(jobs.c.state.not_in(["done", "cancelled"]))
_ENDS = (
    select(checkpoints.c.key)
    .where(
        checkpoints.c.job == bindparam("job"),
        checkpoints.c.attempt >= bindparam("first"),
        checkpoints.c.attempt < bindparam("end"),
        checkpoints.c.state == "good",
    )
    .order_by(checkpoints.c.step.desc(), checkpoints.c.attempt.desc())
    .limit(1)
)


def of_job(tx: Connection, job: str) -> list[Generation]:
    """Return the recorded generations of a job, oldest first; empty without a parent or a restart."""
    rows = tx.execute(_OF_JOB, {"job": job})
    return [codec.record_of(Generation, row, refused=codec.names(row.refused)) for row in rows]


def current(tx: Connection, job: str) -> Generation | None:
    """Return the newest generation of a job, or None if none is recorded."""
    rows = of_job(tx, job)
    return rows[-1] if rows else None


def of_attempt(tx: Connection, job: str, attempt: int) -> Generation | None:
    """Return the generation of an attempt of a job, or None if none is recorded."""
    return next((generation for generation in reversed(of_job(tx, job)) if generation.first_attempt <= attempt), None)


def parents(tx: Connection) -> dict[str, str]:
    """Return the checkpoint from which the newest generation of each job in the queue started; others are absent."""
    newest = {row.job: row.parent_key for row in tx.execute(_NEWEST)}
    return {job: key for job, key in newest.items() if key is not None}


def beginnings(tx: Connection) -> dict[str, list[tuple[int, int]]]:
    """Return (start in UTC seconds, first attempt) of the second and later generations, by job."""
    return grouped((row.job, (row.began_at, row.first_attempt)) for row in tx.execute(_BEGINNINGS))


def begin(tx: Connection, job: str, first_attempt: int, now: int) -> Generation:
    """Record a restart of a job at ``first_attempt``. Without records, its earlier attempts become generation 1."""
    earlier = of_job(tx, job)
    if not earlier and first_attempt > 1:
        earlier = [_add(tx, Generation(job, 1, 1, now))]
    return _add(tx, Generation(job, len(earlier) + 1, first_attempt, now))


def pin(tx: Connection, generation: Generation, parent: str, step: int, key: str, now: int, by: str) -> None:
    """Record the checkpoint from which a generation starts, and write the event ``job.start_from``."""
    tx.execute(_this(generation).values(parent=parent, parent_step=step, parent_key=key))
    data = {"parent": parent, "step": step, "checkpoint": key, "generation": generation.number}
    events.write(tx, "job.start_from", generation.job, now, by, data)


def refuse(tx: Connection, generation: Generation, why: str, now: int) -> None:
    """Record that a session could not start from the chosen checkpoint, so that the next launch chooses another one.

    Writes two events: one of the job, and one that keeps all jobs from this checkpoint until it is verified.
    """
    if generation.parent_key is None:
        return
    refused = codec.dump((*generation.refused, generation.parent_key))
    tx.execute(_this(generation).values(parent=None, parent_step=None, parent_key=None, refused=refused))
    data = {"checkpoint": generation.parent_key, "why": why}
    events.write(tx, "job.parent_refused", generation.job, now, "daemon", data)
    events.append(tx, conditions.SUSPECTED, generation.parent_key, now, why=f"{generation.job}: {why}")


def forget(tx: Connection, job: str) -> None:
    """Delete the generations of a removed job whose name is reused."""
    tx.execute(delete(generations).where(generations.c.job == job))


def kept(tx: Connection, job: str) -> dict[str, str]:
    """Return why checkpoints of a job must be kept for generations, by checkpoint key.

    These are the checkpoints from which jobs in the queue started (they may start from them again), and the last
    checkpoint of each earlier generation.
    """
    rows = of_job(tx, job)
    last = {
        key: f"the last of generation {earlier.number}"
        for earlier, later in pairwise(rows)
        for key in tx.execute(_ENDS, {"job": job, "first": earlier.first_attempt, "end": later.first_attempt}).scalars()
    }
    starts = {row.job: row.parent_key for row in tx.execute(_NEEDED)}  # the last row of a job is its newest generation
    return last | {key: f"{child} starts from it" for child, key in starts.items() if key is not None}


def _add(tx: Connection, generation: Generation) -> Generation:
    tx.execute(insert(generations), codec.row_of(generation, refused=codec.dump(generation.refused)))
    return generation


def _this(generation: Generation) -> Update:
    return update(generations).where(generations.c.job == generation.job, generations.c.number == generation.number)
