"""The newest plans, kept for `plan show`, `plan diff` and the answer to "why is my job not running?"."""

from sqlalchemy import Connection, bindparam, delete, func, insert, select

from scheduler.core.plan import Plan
from scheduler.core.reasons import Reason
from scheduler.store.plan_json import dumped, loaded
from scheduler.store.schema import plans

KEPT = 500
KEPT_CHARACTERS = 8_000_000  # bytes: a plan with a thousand waiting jobs has 200,000
_PRUNED_EVERY = 10
_KEPT_LEAST = 2  # plans that `plan diff` may compare

_INSERT = insert(plans).returning(plans.c.id)
_SIZES = select(plans.c.id, func.length(plans.c.body)).order_by(plans.c.id.desc()).limit(KEPT + 1)
_NUMBER = select(func.max(plans.c.id))
_NEWEST = select(plans.c.body).order_by(plans.c.id.desc()).limit(1)
_BEFORE = _NEWEST.where(plans.c.made_at < bindparam("before"))


def save(tx: Connection, plan: Plan, now: int) -> None:
    """Store a plan. The newest 500 are kept, fewer if they are large; every tenth call deletes the others."""
    row = {"made_at": plan.made_at, "saved_at": now, "digest": plan.digest, "body": dumped(plan)}
    number: int = tx.execute(_INSERT, row).scalar_one()
    if number % _PRUNED_EVERY == 0:
        _prune(tx)


def newest_number(tx: Connection) -> int:
    """Return a number that grows with every stored plan, 0 if there is none."""
    return int(tx.execute(_NUMBER).scalar_one() or 0)


def newest(tx: Connection) -> Plan | None:
    """Return the plan stored last, or None."""
    body = tx.execute(_NEWEST).scalar()
    return None if body is None else loaded(body)


def previous(tx: Connection, before: int) -> Plan | None:
    """Return the newest plan made before the instant ``before``, or None."""
    body = tx.execute(_BEFORE, {"before": before}).scalar()
    return None if body is None else loaded(body)


def reason(tx: Connection, job: str) -> Reason | None:
    """Return why ``job`` waits in the newest plan; None if it does not wait or is not in the plan."""
    plan = newest(tx)
    if plan is None:
        return None
    return next((deferral.reason for deferral in plan.deferrals if deferral.job == job), None)


def _prune(tx: Connection) -> None:
    characters = 0
    for kept, (number, length) in enumerate(tx.execute(_SIZES).all()):
        characters += length
        if kept >= KEPT or (kept >= _KEPT_LEAST and characters > KEPT_CHARACTERS):
            tx.execute(delete(plans).where(plans.c.id <= number))
            return
