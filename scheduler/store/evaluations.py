"""Evaluations of versions, their verdicts, and the decisions of people that overrule a verdict."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Select, Table, bindparam, func, insert, select, update

from scheduler.core.version import version_name
from scheduler.store import codec, events
from scheduler.store.errors import Stale
from scheduler.store.schema import evaluations, overrules, verdicts
from scheduler.store.versions import Version

EvaluationState = Literal["open", "scored", "failed"]
VerdictWord = Literal["accepted", "rejected", "inconclusive"]


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """The evaluation of a version on a test set by a job; ``error`` says why it has no usable scores, else ""."""

    id: int
    model: str
    number: int
    job: str
    set_digest: str
    scorer_digest: str
    state: EvaluationState
    began_at: int
    ended_at: int | None
    error: str

    @property
    def version(self) -> str:
        """Name of the evaluated version: ``ufm@3``."""
        return version_name(self.model, self.number)


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """The verdict of quality gates on a version and a test set, with its evidence. It is never changed."""

    id: int
    model: str
    number: int
    evaluation: int
    gates_digest: str
    set_digest: str
    verdict: VerdictWord
    evidence: Mapping[str, Any]
    at: int


@dataclass(frozen=True, slots=True)
class Overrule:
    """A person's decision to replace the verdict ``was`` by ``verdict``: who, when and why."""

    model: str
    number: int
    was: str
    verdict: Literal["accepted", "rejected"]
    by: str
    why: str
    at: int


def _of_version(table: Table) -> Select[Any]:
    whose = (table.c.model == bindparam("model"), table.c.number == bindparam("number"))
    return select(table).where(*whose).order_by(table.c.id)


_EVALUATIONS = select(evaluations).order_by(evaluations.c.id)
_OF_VERSION = _of_version(evaluations)
_OPEN = _EVALUATIONS.where(evaluations.c.state == "open")
_SIMILAR = (
    select(evaluations.c.job)
    .where(evaluations.c.scorer_digest == bindparam("scorer"), evaluations.c.set_digest == bindparam("test_set"))
    .where(evaluations.c.state == "scored")
    .order_by(evaluations.c.id.desc())
    .limit(5)
)
_OF_JOB = _EVALUATIONS.where(evaluations.c.job == bindparam("job"))
_VERDICTS = _of_version(verdicts)
_SAME = _VERDICTS.where(verdicts.c.gates_digest == bindparam("gates"), verdicts.c.set_digest == bindparam("test_set"))
_BETWEEN = (
    select(verdicts)
    .where(verdicts.c.at >= bindparam("start"), verdicts.c.at < bindparam("end"))
    .order_by(verdicts.c.id)
)
_USES = select(func.count()).select_from(verdicts).where(verdicts.c.set_digest == bindparam("digest"))
_OVERRULES = _of_version(overrules)


def begin(tx: Connection, version: Version, job: str, set_digest: str, scorer_digest: str, now: int) -> int:
    """Record that a job evaluates a version; return the evaluation's id. A version has one open evaluation at most."""
    evaluation = EvaluationJob(0, version.model, version.number, job, set_digest, scorer_digest, "open", now, None, "")
    return int(tx.execute(insert(evaluations).returning(evaluations.c.id), codec.row_of(evaluation, "id")).scalar_one())


def end(tx: Connection, evaluation: EvaluationJob, state: EvaluationState, now: int, error: str = "") -> None:
    """Close an open evaluation and write the event ``evaluation.<state>``. Raises Stale if it is not open."""
    still = update(evaluations).where(evaluations.c.id == evaluation.id, evaluations.c.state == "open")
    if not tx.execute(still.values(state=state, ended_at=now, error=error)).rowcount:
        raise Stale(f"evaluation {evaluation.id} of {evaluation.version}", "open", "closed")
    events.append(tx, f"evaluation.{state}", evaluation.version, now, job=evaluation.job, why=error)


def open_ones(tx: Connection) -> list[EvaluationJob]:
    """Return the open evaluations, oldest first."""
    return codec.records(EvaluationJob, tx.execute(_OPEN))


def of_version(tx: Connection, version: Version) -> list[EvaluationJob]:
    """Return all evaluations of a version, oldest first."""
    return codec.records(EvaluationJob, tx.execute(_OF_VERSION, _key(version)))


def of_job(tx: Connection, job: str) -> EvaluationJob | None:
    """Return the evaluation that a job runs, or None."""
    return codec.single(EvaluationJob, tx.execute(_OF_JOB, {"job": job}))


def similar_jobs(tx: Connection, scorer_digest: str, set_digest: str) -> list[str]:
    """Return the jobs of the last successful evaluations with the same scorer and test set, newest first."""
    return list(tx.scalars(_SIMILAR, {"scorer": scorer_digest, "test_set": set_digest}))


def add_verdict(
    tx: Connection, evaluation: EvaluationJob, gates: str, verdict: VerdictWord, evidence: Mapping[str, Any], now: int
) -> None:
    """Store a verdict and an event; ``gates`` is the digest of its gates. A second verdict of the same is refused."""
    key = (evaluation.model, evaluation.number, evaluation.id)
    verdict_row = StoredVerdict(0, *key, gates, evaluation.set_digest, verdict, evidence, now)
    tx.execute(insert(verdicts), codec.row_of(verdict_row, "id", evidence=codec.dump(evidence)))
    events.append(tx, "version.judged", evaluation.version, now, verdict=verdict, gates=gates)


def verdicts_of(tx: Connection, version: Version) -> list[StoredVerdict]:
    """Return all verdicts on a version, oldest first."""
    return codec.records(StoredVerdict, tx.execute(_VERDICTS, _key(version)))


def verdicts_between(tx: Connection, start: int, end: int) -> list[StoredVerdict]:
    """Return all verdicts of [start, end), oldest first."""
    return codec.records(StoredVerdict, tx.execute(_BETWEEN, {"start": start, "end": end}))


def same_verdict(tx: Connection, version: Version, gates_digest: str, set_digest: str) -> StoredVerdict | None:
    """Return the verdict of these gates on a version and a test set, or None if there is none."""
    where = {**_key(version), "gates": gates_digest, "test_set": set_digest}
    return codec.single(StoredVerdict, tx.execute(_SAME, where))


def uses(tx: Connection, set_digest: str) -> int:
    """Return the number of verdicts on a test set. Each makes the next verdict on it slightly less reliable."""
    return int(tx.execute(_USES, {"digest": set_digest}).scalar_one())


def overrule(tx: Connection, overruled: Overrule) -> None:
    """Store a person's decision. It writes no event, because the change of the version's state writes one."""
    tx.execute(insert(overrules), asdict(overruled))


def overrules_of(tx: Connection, version: Version) -> list[Overrule]:
    """Return the overrules of a version, oldest first."""
    return codec.records(Overrule, tx.execute(_OVERRULES, _key(version)))


def _key(version: Version) -> dict[str, Any]:
    return {"model": version.model, "number": version.number}
