"""Generations: how often a job was restarted, from whose weights, and which saved states that keeps in the store."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import Connection, Update, bindparam, delete, insert, select, update

from scheduler.store import codec, conditions, events
from scheduler.store.schema import checkpoints, generations, jobs


@dataclass(frozen=True, slots=True)
class Generation:
    """One beginning of a job, by number from 1; its first attempt is ``first_attempt``.

    ``parent_key`` is the manifest of the job ``parent`` that it started from at ``parent_step``; None: from nothing, or
    it is chosen at its first launch.
    """

    job: str
    number: int
    first_attempt: int
    began_at: int
    parent: str | None = None
    parent_step: int | None = None
    parent_key: str | None = None
    refused: tuple[str, ...] = ()  # what sessions could not start from


_OF_JOB = select(generations).where(generations.c.job == bindparam("job")).order_by(generations.c.number)
_NEWEST = (
    select(generations.c.parent_key, generations.c.job)
    .join(jobs, jobs.c.name == generations.c.job)
    .where(jobs.c.removed_at.is_(None))
    .order_by(generations.c.job, generations.c.number)
)
_BEGINNINGS = (
    select(generations.c.job, generations.c.began_at, generations.c.first_attempt)
    .where(generations.c.number > 1)  # the first began when the job was added
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
    """Return what was noted of a job's generations, oldest first; nothing without a parent or a restart."""
    rows = tx.execute(_OF_JOB, {"job": job})
    return [codec.record_of(Generation, row, refused=codec.names(row.refused)) for row in rows]


def current(tx: Connection, job: str) -> Generation | None:
    """Return the newest generation of a job, or None when nothing was noted."""
    rows = of_job(tx, job)
    return rows[-1] if rows else None


def of_attempt(tx: Connection, job: str, attempt: int) -> Generation | None:
    """Return the generation that an attempt of a job belongs to, or None when nothing was noted."""
    return next((generation for generation in reversed(of_job(tx, job)) if generation.first_attempt <= attempt), None)


def parents(tx: Connection) -> dict[str, str]:
    """Return by job of the queue the checkpoint that its newest generation started from, where there is one."""
    newest = {row.job: row.parent_key for row in tx.execute(_NEWEST)}
    return {job: key for job, key in newest.items() if key is not None}


def beginnings(tx: Connection) -> dict[str, list[tuple[int, int]]]:
    """Return by job when its second and later generations began (UTC seconds), each with its first attempt."""
    starts: dict[str, list[tuple[int, int]]] = {}
    for row in tx.execute(_BEGINNINGS):
        starts.setdefault(row.job, []).append((row.began_at, row.first_attempt))
    return starts


def begin(tx: Connection, job: str, first_attempt: int, now: int) -> Generation:
    """Note that a job restarts with ``first_attempt``; what it was before is generation 1, if nothing was noted."""
    earlier = of_job(tx, job)
    if not earlier and first_attempt > 1:
        earlier = [_add(tx, Generation(job, 1, 1, now))]
    return _add(tx, Generation(job, len(earlier) + 1, first_attempt, now))


def pin(tx: Connection, generation: Generation, parent: str, step: int, key: str, now: int, by: str) -> None:
    """Note from which checkpoint a generation starts; event ``job.start_from``."""
    tx.execute(_this(generation).values(parent=parent, parent_step=step, parent_key=key))
    data = {"parent": parent, "step": step, "checkpoint": key, "generation": generation.number}
    events.write(tx, "job.start_from", generation.job, now, by, data)


def refuse(tx: Connection, generation: Generation, why: str, now: int) -> None:
    """Record that a session could not start from what was chosen: the next launch chooses another. Events.

    No job is given it before it is verified.
    """
    if generation.parent_key is None:
        return
    refused = codec.dump((*generation.refused, generation.parent_key))
    tx.execute(_this(generation).values(parent=None, parent_step=None, parent_key=None, refused=refused))
    data = {"checkpoint": generation.parent_key, "why": why}
    events.write(tx, "job.parent_refused", generation.job, now, "daemon", data)
    events.append(tx, conditions.SUSPECTED, generation.parent_key, now, why=f"{generation.job}: {why}")


def forget(tx: Connection, job: str) -> None:
    """Remove what was noted of a removed job, whose name another takes."""
    tx.execute(delete(generations).where(generations.c.job == job))


def kept(tx: Connection, job: str) -> dict[str, str]:
    """Return which checkpoints of a job stay because of generations, by key, and why.

    Those that jobs of the queue started from and may have to start from again, and the last one of each earlier
    generation.
    """
    rows = of_job(tx, job)
    last = {
        key: f"the last of generation {earlier.number}"
        for earlier, later in pairwise(rows)
        for key in tx.execute(_ENDS, {"job": job, "first": earlier.first_attempt, "end": later.first_attempt}).scalars()
    }
    starts = {row.job: row.parent_key for row in tx.execute(_NEEDED)}  # of each job its newest generation comes last
    return last | {key: f"{child} starts from it" for child, key in starts.items() if key is not None}


def _add(tx: Connection, generation: Generation) -> Generation:
    tx.execute(insert(generations), codec.row_of(generation, refused=codec.dump(generation.refused)))
    return generation


def _this(generation: Generation) -> Update:
    return update(generations).where(generations.c.job == generation.job, generations.c.number == generation.number)
