"""In force: which version of a model counts, how one is put in the place of another, and how it is taken back."""

from __future__ import annotations

from typing import Literal

from sqlalchemy import Connection

from jobs.problem import Refusal
from scheduler.store import evaluations, versions
from scheduler.store.evaluations import Overrule
from scheduler.store.versions import Promotion, Version


def promote(tx: Connection, version: Version, why: str, now: int, by: str) -> Version:
    """Promote a version; the one before it is retired, and stays at hand. Raises Refusal."""
    if version.state not in {"accepted", "retired"}:
        remedy = "See why" if version.state in {"rejected", "inconclusive"} else "Wait for its verdict"
        raise Refusal(
            f"{version.name} is {version.state}, only an accepted version can be promoted",
            remedy=f"{remedy}: schedctl models show {version.name}",
        )
    before = versions.in_force(tx, version.model)
    if before is not None and before.number == version.number:
        raise Refusal(f"{version.name} is promoted already", remedy=f"See: schedctl models show {version.model}")
    if before is not None and before.state == "accepted":
        versions.move(tx, before, "replace", f"replaced by {version.name}", now, by)
    if version.state == "retired":
        version = versions.move(tx, version, "recall", why, now, by)
    was = before.number if before else None
    versions.note_promotion(tx, Promotion(version.model, "promote", version.number, was, by, why, now))
    return version


def promote_by_itself(tx: Connection, version: Version, now: int) -> bool:
    """Promote an accepted version unless a newer one is, or a person took one back since the last promotion."""
    newest = next(iter(versions.promotions_of(tx, version.model)), None)
    if newest is not None and (newest.kind == "rollback" or (newest.number or 0) >= version.number):
        return False
    promote(tx, version, "its gates accepted it", now, "daemon")
    return True


def rollback(tx: Connection, model: str, why: str, now: int, by: str) -> tuple[Version, Version | None]:
    """Roll back the promoted version: it is barred, and the one before it is promoted again, if there is any.

    No version is promoted by itself any more until a person promotes one. Returns the version that was rolled back, and
    the one that is promoted now. Raises Refusal.
    """
    withdrawn = versions.in_force(tx, model)
    if withdrawn is None:
        raise Refusal(f"no version of {model} is promoted", remedy=f"See: schedctl models list {model}")
    if withdrawn.state == "accepted":  # a person may have overruled it since
        withdrawn = versions.move(tx, withdrawn, "return", f"returned: {why}", now, by)
    before = _before(tx, withdrawn)
    if before is not None and before.state == "retired":
        before = versions.move(tx, before, "recall", f"{withdrawn.name} was returned", now, by)
    number = before.number if before else None
    versions.note_promotion(tx, Promotion(model, "rollback", number, withdrawn.number, by, why, now))
    return withdrawn, before


def overrule(
    tx: Connection, version: Version, verdict: Literal["accepted", "rejected"], why: str, now: int, by: str
) -> Version:
    """Let a person's word count in place of the judge's; both stay on record. Raises Refusal."""
    if version.state == verdict:
        raise Refusal(f"{version.name} is {verdict} as it is", remedy=f"See: schedctl models show {version.name}")
    if version.state == "evaluating":
        raise Refusal(
            f"{version.name} is being evaluated", remedy=f"Wait for its verdict: schedctl models show {version.name}"
        )
    force = versions.in_force(tx, version.model)
    if verdict == "rejected" and force is not None and force.number == version.number:
        raise Refusal(
            f"{version.name} is promoted", remedy=f"Roll it back: schedctl models rollback {version.model} --reason WHY"
        )
    if verdict == "accepted" and version.state == "retired":
        raise Refusal(f"{version.name} was accepted", remedy=f"Promote it: schedctl models promote {version.name}")
    arrow = "overrule_accept" if verdict == "accepted" else "overrule_reject"
    evaluations.overrule(tx, Overrule(version.model, version.number, version.state, verdict, by, why, now))
    return versions.move(tx, version, arrow, f"overruled: {why}", now, by)


def _before(tx: Connection, withdrawn: Version) -> Version | None:
    """Return the version that was promoted before this one and may be again."""
    for past in versions.promotions_of(tx, withdrawn.model):
        candidate = versions.find(tx, withdrawn.model, past.was) if past.was is not None else None
        if (
            candidate is not None
            and candidate.number != withdrawn.number
            and candidate.state in {"accepted", "retired"}
        ):
            return candidate
    return None
