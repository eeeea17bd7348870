"""Versions with a verdict, as the judge writes it, and one that is taken back while it serves."""

from typing import Any, Literal

from scheduler.core.version import OF_VERDICT
from scheduler.service.versions import promotion
from scheduler.store import deployments, evaluations, versions
from scheduler.store.versions import Version


def judge(tx: Any, version: Version, arrow: Literal["accept", "reject"], why: str, at: int) -> Version:
    """End the evaluation of a version with a verdict."""
    (evaluation,) = evaluations.of_version(tx, version)
    evaluations.end(tx, evaluation, "scored", at)
    verdict = next(word for word, one in OF_VERDICT.items() if one == arrow)
    evaluations.add_verdict(tx, evaluation, "e" * 64, verdict, {"findings": []}, at)  # type: ignore[arg-type]
    return versions.move(tx, version, arrow, why, at)


def accept(tx: Any, version: Version, at: int) -> Version:
    """Accept it."""
    return judge(tx, version, "accept", "all gates passed", at)


def reject(tx: Any, version: Version, at: int) -> Version:
    """Reject it."""
    return judge(tx, version, "reject", "quality is 0.5, where at least 0.9 is asked", at)


def fail_to_evaluate(tx: Any, version: Version, at: int) -> None:
    """End its evaluation without scores."""
    evaluations.end(tx, evaluations.of_version(tx, version)[-1], "failed", at, "line 3: no number")
    versions.move(tx, version, "fail", "line 3: no number", at)


def roll_back_while_deployed(tx: Any, version: Version, at: int) -> None:
    """Accept a version, promote it, bring it to a target by hand, and take it back."""
    promoted = promotion.promote(tx, accept(tx, version, at), "", at, "mia")
    deployments.serve(tx, deployments.intend(tx, promoted, "griffith", at, "mia"), at)
    promotion.rollback(tx, version.model, "it swears", at, "mia")
