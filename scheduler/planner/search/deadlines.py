"""Deadlines: the jobs that a policy treats as urgent, so that they finish in time. Urgent jobs precede value."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from jobs.nouns.window import DAY, HOUR
from scheduler.core.snapshot import JobView
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.model.case import Case
from scheduler.planner.model.policy import PLAIN, PlanPolicy
from scheduler.planner.model.pool_capacity import NEVER
from scheduler.planner.model.value import reference_rate
from scheduler.planner.search.score import jobs_on_time

# Up to this many jobs deadlines are met at any cost in value; with more jobs their cost is limited.
FIRM_JOBS_MAX = 10
ROUNDS_MAX, ROUNDS_OF_MANY = 6, 2  # the second unless the case is small
# A job is urgent only from this time before its latest start on; before that it competes by value.
FORESIGHTS_SECONDS = (NEVER, 5 * DAY // 2, 6 * HOUR)


def deadline_policies(case: Case) -> list[PlanPolicy]:
    """Return one policy per foresight, each with the urgent jobs that it finishes in time."""
    if not case.firm_deadlines:
        return [PLAIN]
    due = frozenset(
        job.index for job in case.jobs if job.deadline is not None and job.startable and job.deadline > case.now
    )
    small = jobs_on_time(case, make_schedule(case, PlanPolicy(order=partial(_shortest_due_first, case.now)))) & due
    policies = []
    for foresight in FORESIGHTS_SECONDS:
        policy = PlanPolicy(foresight_seconds=foresight)
        policies.append(replace(policy, urgent=feasible_urgent_jobs(case, policy, due, small)))
    return policies


def feasible_urgent_jobs(case: Case, policy: PlanPolicy, due: frozenset[int], small: frozenset[int]) -> frozenset[int]:
    """Return a set of jobs that all finish before their deadlines if they are treated as urgent.

    Start with all ``due`` jobs. Drop those that miss their deadline, because they only use hours of the others, and
    plan again, for at most ROUNDS_MAX rounds. At the end add the ``small`` jobs if more deadlines are met with them,
    which is the case under heavy overload.
    """
    urgent, best = due, frozenset[int]()
    for _ in range(ROUNDS_MAX if case.small else ROUNDS_OF_MANY):
        if not urgent:
            break
        on_time = jobs_on_time(case, make_schedule(case, replace(policy, urgent=urgent)))
        if len(on_time) > len(best):
            best = on_time
        if on_time >= urgent:
            break
        urgent &= on_time
    if small <= best:
        return best
    on_time = jobs_on_time(case, make_schedule(case, replace(policy, urgent=best | small)))
    return on_time if len(on_time) > len(best) else best


def drop_needless_urgency(case: Case, policies: Sequence[PlanPolicy]) -> list[PlanPolicy]:
    """Return ``policies`` without urgent jobs that are in time anyway; a policy is unchanged if others would be late.

    A job that is in time by value alone must not precede work of more value.
    """
    if not any(policy.urgent for policy in policies):
        return [*policies[:1]]
    anyway = jobs_on_time(case, make_schedule(case))
    spared_policies: list[PlanPolicy] = []
    for policy in policies:
        spared = _drop_needless(case, policy, anyway)
        if spared not in spared_policies:
            spared_policies.append(spared)
    return spared_policies


def _drop_needless(case: Case, policy: PlanPolicy, anyway: frozenset[int]) -> PlanPolicy:
    urgent = policy.urgent - anyway
    if not urgent:
        return PLAIN
    for _ in range(ROUNDS_MAX if case.small else ROUNDS_OF_MANY):
        sparing = replace(policy, urgent=urgent)
        late = policy.urgent - jobs_on_time(case, make_schedule(case, sparing))
        if not late:
            return sparing
        if late <= urgent:
            break
        urgent |= late
    return policy


def _shortest_due_first(now: int, job: JobView, remaining: int) -> float:
    """Rank the least work first among jobs that are due; all others come last."""
    return remaining / reference_rate(job) if job.deadline is not None and job.deadline > now else float("inf")
