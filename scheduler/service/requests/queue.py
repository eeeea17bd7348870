"""Requests about jobs, with or without a running daemon.

These writes do not need the daemon's lease. They are guarded by the job's old state, and the daemon reads the result.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import Connection

from config.settings import AgentLimits
from jobs.catalogue import chain_of, wrong_share
from jobs.grouping import grouped
from jobs.problem import Refusal
from jobs.spec import JobSpec
from scheduler.core import job as arrows
from scheduler.core.job import Active, Cancelled, Done, IllegalArrow, JobState
from scheduler.service.facts import early_stops
from scheduler.service.launch.inputs import note
from scheduler.service.requests.agents import require_hours
from scheduler.store import checkpoints, jobs, runs, trees
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord


def add(
    database: Database,
    specs: Sequence[JobSpec],
    now: int,
    by: str,
    *,
    go_on: bool = False,
    limits: AgentLimits | None = None,
) -> list[JobRecord]:
    """Add jobs, whose code, lock and inputs are stored, to the end of the queue, all or none.

    With ``go_on`` a job with the name of a removed job resumes from its checkpoints. ``limits`` are those of an agent.
    Raises Refusal, Refused, NeedsApproval.
    """
    with database.write() as tx:
        for spec in specs:
            note(tx, spec)
        queued = {record.spec.name: record.spec.share for record in jobs.everything(tx)}
        shares = queued | {spec.name: spec.share for spec in specs}
        kept: dict[str, JobSpec] = {}
        for spec in specs:
            if problem := wrong_share(spec.name, shares):
                raise Refusal(f"{spec.name} cannot be added", problem)
            if spec.gate is not None and spec.gate.parent not in shares:
                raise Refusal(
                    f"{spec.name} waits for {spec.gate.parent}, which is not in the queue",
                    remedy=f"Add {spec.gate.parent} first",
                )
            before = jobs.find(tx, spec.name) if go_on else None
            if go_on and before is None:
                raise Refusal(f"there was never a job {spec.name} to continue", remedy="Add it without --continue")
            if before is not None and before.done_step >= spec.target_step:
                raise Refusal(
                    f"{spec.name} is at step {before.done_step} already, its target is {spec.target_step}",
                    remedy="Raise target_step, or add it without --continue",
                )
            if before is not None:
                kept[spec.name] = _same_corpus(spec, before.spec)
        if limits is not None:
            require_hours(tx, specs, limits, now)
        return [jobs.add(tx, kept.get(spec.name, spec), now, by, go_on=go_on) for spec in specs]


def _same_corpus(spec: JobSpec, before: JobSpec) -> JobSpec:
    """Return the job with the corpus version of ``before``, unless its definition names one."""
    if spec.mixture is None or spec.mixture.corpus or before.mixture is None:
        return spec
    return replace(spec, mixture=replace(spec.mixture, corpus=before.mixture.corpus))


def hold(database: Database, name: str, why: str, now: int, by: str) -> JobRecord:
    """Hold a job; a running job saves and ends its session first."""
    with database.write() as tx:
        record = jobs.get(tx, name)
        return _changed(tx, record, "hold", lambda state: arrows.ask_hold(state, by, why, now), now, by)


def release(database: Database, name: str, now: int, by: str) -> JobRecord:
    """Requeue a held, failed or cancelled job with its failures reset; withdraw a pending hold or cancel.

    A done job continues if the checkpoint of its target step was lost, or if its stop rule ended it; the rule is then
    removed. Raises UnknownJob, and Refusal, also if the checkpoints of a cancelled job are deleted.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        if isinstance(record.state, Cancelled) and record.checkpoint is not None:
            saved = checkpoints.find(tx, record.checkpoint)
            if saved is None or saved.state != "good":
                raise Refusal(
                    f"the checkpoints of {name} are deleted, so it cannot continue",
                    remedy=f"To start from step 0: schedctl queue remove {name}, then schedctl queue add",
                )
        early_stops.undo(tx, record, now, by)
        arrow = arrows.reopen if record.result_lost else arrows.release
        return _changed(tx, record, "release", lambda state: arrow(state, now), now, by, fresh=True)


def retry(database: Database, name: str, now: int, by: str) -> JobRecord:
    """Requeue a failed job, or one that waits after a failure, at once, with its failures reset."""
    with database.write() as tx:
        record = jobs.get(tx, name)
        return _changed(tx, record, "retry", lambda state: arrows.retry(state, now), now, by, fresh=True)


def remove(database: Database, name: str, now: int, by: str) -> JobRecord:
    """Remove a job from the queue, which frees its name; runs, hours and checkpoints are kept. Returns it unchanged.

    Raises UnknownJob, and Refusal if it has a session or another job depends on it.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        if isinstance(record.state, Active):
            raise Refusal(
                f"{name} has a lane in {record.state.run}",
                remedy=f"Cancel it first, and remove it when that has ended: schedctl queue cancel {name}",
            )
        waiting = [
            other
            for other in jobs.everything(tx, {"queued", "active", "held", "failed"})
            if other.spec.gate is not None and other.spec.gate.parent == name
        ]
        if waiting:
            key = "after" if waiting[0].spec.start_from is None else "start_from"
            raise Refusal(
                f"{', '.join(other.spec.name for other in waiting)} would wait for it for ever",
                remedy=f"Remove those first, or free them: schedctl queue edit {waiting[0].spec.name} --set {key}=",
            )
        jobs.remove(tx, name, now, by)
    return record


def cancel(database: Database, name: str, now: int, by: str, why: str = "") -> JobRecord:
    """Cancel a job; a running job saves and ends its session first. Checkpoints are kept. The event has ``why``."""
    with database.write() as tx:
        record = jobs.get(tx, name)
        return _changed(tx, record, "cancel", lambda state: arrows.ask_cancel(state, by, now), now, by, why=why)


_STORED = {"code", "evaluation", "inputs", "mixture", "requirements"}  # fields with files in the artifact store


def change(database: Database, name: str, now: int, by: str, **fields: Any) -> JobRecord:
    """Change fields of a job for its next sessions, or its queue ``position``. Raises UnknownJob, Refused."""
    with database.write() as tx:
        if _STORED & set(fields):
            note(tx, replace(jobs.get(tx, name).spec, **fields))
        return jobs.change_spec(tx, name, now, by, **fields)


# Fields that a session gets at its launch; the others are used by plans only.
_OF_SESSION = {"command", "environment", "mixture", "needs", "role", "seed", "target_step", "whole"}

_OF_JUDGING = {"evaluation", "gates", "halving"}  # the requirements on a trained model may change


def edit(database: Database, name: str, spec: JobSpec, now: int, by: str) -> tuple[JobRecord, list[str]]:
    """Replace the definition of a job; return it with the names of the changed fields.

    Raises UnknownJob, and Refusal for changes that contradict its running session or its checkpoints.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        # A field whose stored number is out of range is rewritten even if it reads the same.
        old = record.spec
        spec = _same_corpus(spec, old)
        if spec.halving is not None and old.halving is not None:  # people do not write left_at
            spec = replace(spec, halving=replace(spec.halving, left_at=old.halving.left_at))
        spec = replace(spec, agent=old.agent)
        changed = [field.name for field in fields(spec) if getattr(spec, field.name) != getattr(old, field.name)]
        if why := _contradiction(tx, record, spec, set(changed)):
            raise Refusal(f"cannot edit {name}", why)
        written = [field.name for field in fields(spec) if field.name != "name"] if record.faults else changed
        if not written:
            return record, []
        if _STORED & set(changed):
            note(tx, spec)
        record = jobs.change_spec(tx, name, now, by, **{field: getattr(spec, field) for field in written})
        # The gate that start_from implies was not written by a person.
        return record, [field for field in changed if field != "gate" or "start_from" not in changed]


def _contradiction(tx: Connection, record: JobRecord, spec: JobSpec, changed: set[str]) -> str:
    name, state = record.spec.name, record.state
    if "name" in changed:
        return f"its name stays {name}, because its sessions and checkpoints carry it. Remove it and add another"
    if isinstance(state, Done) and changed - _OF_JUDGING:
        return (
            f"it is done. To train on from step {record.done_step}: schedctl queue remove {name}, then "
            "schedctl queue add FILE --continue"
        )
    if isinstance(state, Active) and (fixed := sorted(changed & _OF_SESSION)):
        return (
            f"its session {state.run} was launched with its present {', '.join(fixed)}. "
            f"First let it end: schedctl queue hold {name}"
        )
    if "target_step" in changed and spec.target_step <= record.done_step:
        return f"its checkpoint is at step {record.done_step}. Give a target_step above that"
    if "seed" in changed and record.done_step:
        return f"its checkpoint at step {record.done_step} was trained with seed {record.spec.seed}. Keep it"
    if "gate" in changed and spec.gate is not None:
        gates = {other.spec.name: other.spec.gate for other in jobs.everything(tx)} | {name: spec.gate}
        chain = chain_of(name, gates)
        if chain[-1] not in gates:
            return f"it would wait for {chain[-1]}, which is not in the queue. Add {chain[-1]} first"
        if chain[-1] in chain[:-1]:
            return f"the gates would wait for each other: {' -> '.join(chain)}. Remove one of them"
    return _share_contradiction(tx, spec) if "share" in changed else ""


def _share_contradiction(tx: Connection, spec: JobSpec) -> str:
    """Return why the share of the job, or of a job that shares with it, becomes invalid; "" if it does not."""
    shares = {record.spec.name: record.spec.share for record in jobs.everything(tx)} | {spec.name: spec.share}
    mine = [name for name, share in shares.items() if share is not None and share.partner == spec.name]
    return next((problem for name in (spec.name, *mine) if (problem := wrong_share(name, shares))), "")


def _changed(
    tx: Connection, record: JobRecord, verb: str, arrow: Any, now: int, by: str, *, fresh: bool = False, why: str = ""
) -> JobRecord:
    name = record.spec.name
    try:
        new: JobState = arrow(record.state)
    except IllegalArrow:
        state = type(record.state).__name__.lower()
        raise Refusal(f"cannot {verb} {name}", f"it is {state}", f"See: schedctl queue show {name}") from None
    detail = {"why": why} if why else {}
    jobs.change_state(tx, name, record.state, new, verb, now, by, **detail)
    if fresh:
        jobs.note_failures(tx, name, 0)
    return jobs.get(tx, name)


# Corpus versions of jobs.
def take_up(database: Database, name: str, version: str, now: int, by: str, grace_seconds: int) -> JobRecord:
    """Let the next sessions of a job train on another local version of the corpus; event ``job.changed``.

    A running session keeps its version. Raises UnknownJob, Refusal, Refused.
    """
    with database.write() as tx:
        record = jobs.get(tx, name)
        mixture = record.spec.mixture
        if mixture is None:
            remedy = f"Give it one first: schedctl queue edit {name} --set mixture.corpus={version}"
            raise Refusal(f"{name} does not train on a corpus", remedy=remedy)
        if mixture.corpus == version:
            return record
        if isinstance(record.state, Active) and mixture.corpus:
            over = runs.get(tx, record.state.run).held_until
            trees.record(tx, trees.CORPUS, mixture.corpus, max(over, now) + grace_seconds)
        trees.record(tx, trees.CORPUS, version, None)
        return jobs.change_spec(tx, name, now, by, mixture=replace(mixture, corpus=version))


def jobs_by_version(tx: Connection) -> dict[str, list[str]]:
    """Return the jobs of the queue by corpus version; "" for those without one yet."""
    specs = (record.spec for record in jobs.everything(tx))
    return grouped((spec.mixture.corpus, spec.name) for spec in specs if spec.mixture is not None)
