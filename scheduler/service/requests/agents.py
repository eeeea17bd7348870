"""Agents: budgets for the jobs of coding agents, and changes that need the approval of a person.

Each job of an agent has a budget in device hours, which its sessions never exceed. The limits apply to these budgets.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from sqlalchemy import Connection

from config.settings import AgentLimits
from jobs.grouping import grouped
from jobs.nouns.pool import Pool
from jobs.nouns.window import DAY, HOUR
from jobs.problem import NotFound, Refusal
from jobs.spec import JobSpec
from scheduler.core.job import Cancelled, Done
from scheduler.service.facts import halvings
from scheduler.store import conditions, events, jobs
from scheduler.store.engine import Database

PREFIX = "agent:"
"""The names of agents in the event log begin like this."""
AGENT, IS_APPROVED = "UFF_AGENT", "UFF_AGENT_IS_APPROVED"
"""Variables of a command that runs for an agent: its name, and whether a person approved the change."""
APPROVED, REJECTED = "agent.approved", "agent.rejected"
_OPEN_MAX = 50
_REJECTED_SECONDS = DAY  # the same proposal is not made again before


class NeedsApproval(Refusal):
    """An agent may not make this change without a person."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A change that waits for a person: the verb with its arguments, and its preview when it was proposed.

    ``digest`` is that of the previewed subject, ``agent`` who proposed it, ``since`` when, in UTC seconds.
    """

    id: str
    since: int
    agent: str
    why: str
    verb: str
    args: Mapping[str, Any]
    digest: str
    preview: Mapping[str, Any]


def budgeted(specs: Sequence[JobSpec], by: str, pools: Mapping[str, Pool], limits: AgentLimits | None) -> list[JobSpec]:
    """Return the jobs that an agent adds, with the agent's name, and with a budget each if agents have ``limits``."""
    if not by.startswith(PREFIX):
        return list(specs)
    named = [replace(spec, agent=by) for spec in specs]
    return [
        spec if limits is None or halvings.account(spec) else replace(spec, budget_seconds=planned_seconds(spec, pools))
        for spec in named
    ]


def planned_seconds(spec: JobSpec, pools: Mapping[str, Pool]) -> int:
    """Return an estimate of a job's device seconds on the reference device, with the set-ups of its sessions."""
    usable = [pool for name, pool in pools.items() if name in (spec.pools or pools)]
    trained = spec.target_step / spec.steps_per_hour * HOUR
    longest = max((pool.session_cap_seconds for pool in usable), default=DAY)
    overrun = max((pool.overrun_seconds for pool in usable), default=0)
    around = ceil(trained / longest) * (halvings.least_seconds(spec) + overrun)
    return max(60, ceil(trained + around) * spec.needs.devices_min)


def require_hours(tx: Connection, specs: Sequence[JobSpec], limits: AgentLimits, now: int) -> None:
    """Raise NeedsApproval if the budgets of an agent's jobs exceed what it may use without a person.

    Call it in the transaction that adds the jobs, so that two agents never get the same hours.
    """
    budgets: dict[str, int] = {}
    for spec in specs:
        budgets[halvings.account(spec)] = max(budgets.get(halvings.account(spec), 0), halvings.budget_of(spec))
    wanted, day = sum(budgets.values()), reserved_on_day(tx, now)
    if any(spec.evaluation is not None for spec in specs):
        raise NeedsApproval("evaluations of its checkpoints use hours beyond its budget")
    if wanted > limits.change_seconds:
        allowed = f"the {limits.change_seconds / HOUR:g} that an agent may use without asking"
    elif day + wanted > limits.day_seconds:
        left = max(0, limits.day_seconds - day) / HOUR
        allowed = f"what agents may still use today: {left:.2f} of {limits.day_seconds / HOUR:g}"
    else:
        return
    raise NeedsApproval(f"{wanted / HOUR:.2f} device hours are more than {allowed}")


def reserved_on_day(tx: Connection, now: int) -> int:
    """Return the device seconds of the jobs that agents added on the UTC day of ``now``.

    An open job counts with its budget, an ended one with the time that it used. A sweep counts once.
    """
    since = now - now % DAY
    added = (one for one in jobs.with_budget(tx) if one.spec.agent and since <= one.created_at < since + DAY)
    accounts = grouped((halvings.account(record.spec), record) for record in added)
    left = halvings.budgets(tx) if accounts else {}
    total = 0
    for account, records in accounts.items():
        is_over = all(isinstance(record.state, Done | Cancelled) for record in records)
        total += max(halvings.budget_of(record.spec) for record in records) - (max(0, left[account]) if is_over else 0)
    return total


# Proposals: changes that wait for a person.
def propose(database: Database, proposal: Proposal) -> None:
    """Store a proposal for a person to decide; it replaces an earlier proposal of the same change.

    Raises Refusal if a person has rejected it within a day, or if too many proposals wait.
    """
    with database.write() as tx:
        for newest in events.latest(tx, [proposal.id], REJECTED, conditions.PROPOSED):
            if newest.kind == REJECTED and proposal.since < newest.at + _REJECTED_SECONDS:
                why = f"{newest.by} rejected this proposal: {newest.data['why'] or 'no reason given'}"
                raise Refusal("proposal refused", why, "Propose another change")
        waiting = {one.subject for one in conditions.standing(tx, conditions.PROPOSED)} - {proposal.id}
        if len(waiting) >= _OPEN_MAX:
            raise Refusal("proposal refused", f"{len(waiting)} proposals wait already", "See: schedctl agents list")
        data = {
            "why": proposal.why,
            "verb": proposal.verb,
            "args": proposal.args,
            "digest": proposal.digest,
            "preview": proposal.preview,
        }
        events.write(tx, conditions.PROPOSED, proposal.id, proposal.since, proposal.agent, data)


def waiting(tx: Connection) -> list[Proposal]:
    """Return the proposals that wait for a person, by ID. One whose event was removed by retention is left out."""
    names = [one.subject for one in conditions.standing(tx, conditions.PROPOSED)]
    proposed = events.latest(tx, names, conditions.PROPOSED)
    return [Proposal(event.subject, event.at, event.by, **event.data) for event in proposed]


def find(tx: Connection, proposal_id: str) -> Proposal:
    """Return a waiting proposal by its ID. Raises NotFound."""
    for proposal in waiting(tx):
        if proposal.id == proposal_id:
            return proposal
    raise NotFound("unknown proposal", "no proposal of this ID waits", "See: schedctl agents list", proposal_id)


def close(database: Database, proposal: Proposal, now: int, by: str, *, is_approved: bool, why: str = "") -> None:
    """Record that a person approved or rejected a proposal. Raises NotFound if it does not wait any more."""
    with database.write() as tx:
        find(tx, proposal.id)
        kind, one = APPROVED if is_approved else REJECTED, proposal
        events.append(tx, kind, one.id, now, by, why=why, agent=one.agent, verb=one.verb)
