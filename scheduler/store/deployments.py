"""Deployments: which version was deployed to which target, when it was in service, and how that ended. Append-only.

The intent is written before the target changes, so that the next process after a crash knows what to check. For each
model and target, the database allows one unfinished deployment and one version in service at a time.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, func, insert, select, update

from scheduler.core.version import Deployment, DeploymentState
from scheduler.store import codec, events
from scheduler.store.errors import Stale
from scheduler.store.schema import deployments
from scheduler.store.versions import Version

DAEMON = "daemon"  # recorded as the author of automatic deployments
RESUMED = "deployment.resume"
_RESUMED_MAX = 500
_NOTHING: Mapping[str, Any] = {}

_ALL = select(deployments).order_by(deployments.c.id)
_ONE = _ALL.where(deployments.c.id == bindparam("id"))
_LIVE = _ALL.where(deployments.c.state.in_(["intended", "serving"]))
_OF_MODEL = _ALL.where(deployments.c.model == bindparam("model"))
_THERE = _OF_MODEL.where(deployments.c.target == bindparam("target"), deployments.c.state == bindparam("state"))
_INTEND = insert(deployments).returning(deployments.c.id)
_NEWEST = _ALL.where(
    deployments.c.id.in_(select(func.max(deployments.c.id)).group_by(deployments.c.model, deployments.c.target))
)


def intend(tx: Connection, version: Version, target: str, now: int, by: str, why: str = "") -> Deployment:
    """Record an intended deployment. The database refuses a second unfinished one to the same target."""
    wanted = Deployment(0, version.model, version.number, target, "intended", by, why, _NOTHING, now, None, None)
    number = tx.execute(_INTEND, codec.row_of(wanted, "id", evidence=codec.dump({}))).scalar_one()
    events.append(tx, "deployment.intend", version.name, now, by, target=target, why=why)
    return get(tx, number)


def serve(tx: Connection, deployment: Deployment, now: int, evidence: Mapping[str, Any] = _NOTHING) -> Deployment:
    """Record that an intended version is in service; the version before it is replaced. Raises Stale."""
    before = serving(tx, deployment.model, deployment.target)
    if before is not None:
        move(tx, before, "replaced", now, f"by {deployment.version}", before.evidence)
    return move(tx, deployment, "serving", now, deployment.why, evidence)


def get(tx: Connection, number: int) -> Deployment:
    """Return one deployment by its id, which must exist."""
    return codec.record_of(Deployment, tx.execute(_ONE, {"id": number}).one())


def serving(tx: Connection, model: str, target: str) -> Deployment | None:
    """Return the deployment in service at a target, or None."""
    return codec.single(Deployment, tx.execute(_THERE, {"model": model, "target": target, "state": "serving"}))


def intended(tx: Connection, model: str, target: str) -> Deployment | None:
    """Return the unfinished deployment to a target, or None. After a crash it may have no process that finishes it."""
    return codec.single(Deployment, tx.execute(_THERE, {"model": model, "target": target, "state": "intended"}))


def live(tx: Connection) -> list[Deployment]:
    """Return all deployments that are unfinished or in service, oldest first."""
    return codec.records(Deployment, tx.execute(_LIVE))


def newest(tx: Connection) -> list[Deployment]:
    """Return the newest deployment of each model at each target, oldest first."""
    return codec.records(Deployment, tx.execute(_NEWEST))


def of_model(tx: Connection, model: str) -> list[Deployment]:
    """Return all deployments of a model, oldest first."""
    return codec.records(Deployment, tx.execute(_OF_MODEL, {"model": model}))


def move(
    tx: Connection, row: Deployment, state: DeploymentState, now: int, why: str, evidence: Mapping[str, Any] = _NOTHING
) -> Deployment:
    """Store the next state of a deployment, with its end unless it is in service, and write an event. Raises Stale."""
    serves = state == "serving"
    values = {
        "state": state,
        "why": why,
        "evidence": codec.dump(dict(evidence)),
        "served_at": now if serves else row.served_at,
        "ended_at": None if serves else now,
    }
    still = update(deployments).where(deployments.c.id == row.id, deployments.c.state == row.state)
    if not tx.execute(still.values(values)).rowcount:
        actual = get(tx, row.id).state
        raise Stale(f"deployment {row.id} of {row.version}", row.state, actual)
    events.append(tx, f"deployment.{state}", row.version, now, target=row.target, why=why)
    return get(tx, row.id)


def resumed(tx: Connection) -> Mapping[str, int]:
    """Return the instant at which a person last resumed each model."""
    return {event.subject: event.at for event in events.tail(tx, limit=_RESUMED_MAX, kinds={RESUMED})}


def stopped(tx: Connection) -> list[Deployment]:
    """Return the newest deployment of each model and target that failed or was rolled back, unless resumed since."""
    since = resumed(tx)
    bad = [one for one in newest(tx) if one.state in {"returned", "failed"}]
    return [one for one in bad if since.get(one.model, 0) < (one.ended_at or 0)]
