"""Judging: scores that came home become a verdict, once, in one transaction with all that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError
from scheduler.core.version import OF_VERDICT
from scheduler.service.faults.isolation import why
from scheduler.service.versions.force import promote_by_itself
from scheduler.service.versions.making import gates_digest
from scheduler.service.versions.reading import NoScores, scores_of
from scheduler.store import evaluations, jobs, versions
from scheduler.store.errors import Stale, StoreFailure

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from jobs.spec import JobSpec
    from scheduler.judge.judgement import Judgement
    from scheduler.service.outside.ports import Ports
    from scheduler.store.evaluations import Evaluation
    from scheduler.store.versions import Version


@dataclass(frozen=True, slots=True)
class Case:
    """One evaluation to be judged: the version, its model's definition, and who is in force with its own scores."""

    evaluation: Evaluation
    version: Version
    spec: JobSpec
    in_force: Version | None = None
    compared: Evaluation | None = None  # of the version in force; None: no gate compares with it


def judge_alone(ports: Ports, case: Case) -> None:
    """Read the scores of an evaluation and write down what comes of them. May take minutes; may be repeated.

    Raises StoreError while the artifact store gives no answer, OSError, and what the database raises: nothing is
    written then.
    """
    try:
        judgement = _judgement(ports, case)
    except NoScores as error:
        end_without_verdict(ports, case.evaluation, str(error))
        return
    except (StoreError, StoreFailure, OSError):
        raise
    except Exception as error:
        ports.log.exception("verdict.failed", version=case.version.name)
        end_without_verdict(ports, case.evaluation, f"its scores cannot be judged: {why(error)}")
        return
    if judgement is not None and judgement.verdict == "error":
        end_without_verdict(ports, case.evaluation, judgement.reason)
        return
    now = ports.clock.now()
    try:
        with ports.write() as tx:
            if judgement is None:
                evaluations.end(tx, case.evaluation, "scored", now)
            else:
                _write(tx, case, judgement, now)
    except Stale as error:  # a person was faster, or what was in force is so no more: it is looked at anew
        ports.log.info("verdict.stale", version=case.version.name, why=str(error))
        return
    if judgement is not None:
        ports.log.info("version.judged", version=case.version.name, verdict=judgement.verdict, why=judgement.reason)


def end_without_verdict(ports: Ports, evaluation: Evaluation, error: str) -> None:
    """Write down that an evaluation gave no scores that can be judged: the version is as if it had had none."""
    now = ports.clock.now()
    try:
        with ports.write() as tx:
            evaluations.end(tx, evaluation, "failed", now, error[:1_000])
            version = versions.get(tx, evaluation.model, evaluation.number)
            if version.state == "evaluating":
                versions.move(tx, version, "fail", error[:1_000], now)
    except Stale as stale:
        ports.log.info("verdict.stale", version=evaluation.version, why=str(stale))
        return
    ports.log.error(
        "evaluation.failed", version=evaluation.version, why=error, next=f"schedctl models evaluate {evaluation.model}"
    )


def _judgement(ports: Ports, case: Case) -> Judgement | None:
    """Return what the gates say; None of a version that was only scored to be compared with."""
    from scheduler.judge.judge import judge  # only where there are scores: it costs a daemon's start

    scores = scores_of(ports, case.evaluation, case.version)
    if case.version.state != "evaluating":
        return None
    before = None
    if case.compared is not None and case.in_force is not None:
        try:
            before = scores_of(ports, case.compared, case.in_force)
        except NoScores as error:
            raise NoScores(f"there is nothing to compare with, {case.in_force.name} is promoted: {error}") from None
    return judge(case.spec.gates, scores, before)


def _write(tx: Connection, case: Case, judgement: Judgement, now: int) -> None:
    """Write verdict, evidence, the version's state and what is in force from now on. Raises Stale."""
    version, evaluation = case.version, case.evaluation
    in_force = versions.in_force(tx, version.model)
    if in_force != case.in_force:
        raise Stale(f"the promoted version of {version.model}", repr(case.in_force), repr(in_force))
    evaluations.end(tx, evaluation, "scored", now)
    digest = gates_digest(case.spec, evaluation.scorer_digest)
    known = evaluations.same_verdict(tx, version, digest, evaluation.set_digest)
    if known is not None:  # the gates were changed meanwhile, to what they were before
        versions.move(tx, version, OF_VERDICT[known.verdict], f"as on {known.set_digest[:12]} before", now)
        return
    evidence = {
        **judgement.document(),
        "in_force": in_force.name if in_force else None,
        "set": case.spec.evaluation.test_set.source if case.spec.evaluation else "",
        "set_uses": evaluations.uses(tx, evaluation.set_digest) + 1,
        "scorer": evaluation.scorer_digest,
    }
    evaluations.say(tx, evaluation, digest, judgement.verdict, evidence, now)  # type: ignore[arg-type] # no error here
    judged = versions.move(tx, version, OF_VERDICT[judgement.verdict], judgement.reason[:1_000], now)
    wanted = case.spec.evaluation
    if judged.state == "accepted" and wanted is not None and wanted.promote == "automatic":
        promote_by_itself(tx, judged, now)


def newest_scored(tx: Connection, version: Version, like: Evaluation) -> Evaluation | None:
    """Return the newest evaluation of a version on the same set by the same scorer, whatever came of it."""
    found = [
        one
        for one in evaluations.of_version(tx, version)
        if (one.set_digest, one.scorer_digest) == (like.set_digest, like.scorer_digest)
    ]
    return found[-1] if found else None


def case_of(tx: Connection, evaluation: Evaluation) -> Case | None:
    """Return what is to be judged; None while the version in force must be scored first. Raises NoScores."""
    version = versions.get(tx, evaluation.model, evaluation.number)
    record = jobs.find(tx, evaluation.model)
    if record is None:
        raise NoScores(f"there is no job {evaluation.model}")
    in_force = versions.in_force(tx, evaluation.model)
    case = Case(evaluation, version, record.spec, in_force)
    compares = version.state == "evaluating" and any(gate.compares for gate in record.spec.gates)
    if in_force is None or in_force.number == version.number or not compares:
        return case
    compared = newest_scored(tx, in_force, evaluation)
    if compared is None or compared.state == "open":
        return None
    if compared.state == "failed":
        raise NoScores(f"there is nothing to compare with: {in_force.name} could not be scored: {compared.error}")
    return Case(evaluation, version, record.spec, in_force, compared)
