"""Deadlines: who goes first for his deadline, and that nobody does who is in time anyway."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobs.nouns.window import DAY, HOUR, WEEK
from scheduler.core.snapshot import PoolView, Snapshot
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.model.case import make_case
from scheduler.planner.model.policy import PLAIN, PlanPolicy
from scheduler.planner.search.deadlines import deadline_policies, drop_needless_urgency
from scheduler.planner.search.score import jobs_on_time
from tests.lab.planner.cases import EPOCH, SAGEMAKER
from tests.lab.planner.small import job
from tests.lab.planner.synthetic import synthetic
from tests.lab.planner.trace import on_our_pools

LIGHT, DENSE = 1.0, 8.0


def two_days() -> Snapshot:
    """Four hours a day; dense work for a day, and light jobs of an hour and a half due tonight and after tomorrow."""
    jobs = (
        job("dense", DENSE, 3.5),
        replace(job("tonight", LIGHT, 1.5), deadline=EPOCH + 20 * HOUR),
        replace(job("later", LIGHT, 1.5), deadline=EPOCH + 3 * DAY),
    )
    return Snapshot(EPOCH, jobs, (PoolView(SAGEMAKER),), WEEK)


def test_only_those_are_urgent_who_would_be_late() -> None:
    """``dense`` goes before ``later``, which is in time though, and not before ``tonight``."""
    case = make_case(two_days())
    index = {found.view.name: found.index for found in case.jobs}
    tonight, later = index["tonight"], index["later"]
    whole, found = deadline_policies(case), drop_needless_urgency(case, deadline_policies(case))
    assert whole[0].urgent == {tonight, later}
    assert found[0].urgent == {tonight}
    assert jobs_on_time(case, make_schedule(case, found[0])) == {tonight, later}
    assert not any(later in policy.urgent for policy in found)


def test_where_sparing_makes_somebody_late_all_stay_urgent() -> None:
    """What can never be in time stays as it was asked for: nothing is spared by halves."""
    case = make_case(replace(two_days(), jobs=tuple(replace(found, deadline=EPOCH + 1) for found in two_days().jobs)))
    asked = PlanPolicy(urgent=frozenset({0, 1}))
    assert drop_needless_urgency(case, [asked, asked]) == [asked]


def test_where_nobody_is_urgent_one_policy_is_enough() -> None:
    """How early somebody becomes urgent makes no difference then."""
    case = make_case(replace(two_days(), jobs=two_days().jobs[::2]))
    assert [policy.urgent for policy in deadline_policies(case)] != [frozenset()] * 3
    assert drop_needless_urgency(case, deadline_policies(case)) == [PLAIN]
    assert drop_needless_urgency(case, [PlanPolicy(foresight_seconds=1), PLAIN]) == [PlanPolicy(foresight_seconds=1)]


@pytest.mark.parametrize("seed", range(4))
def test_sparing_costs_no_deadline(seed: int) -> None:
    """Everybody whom a policy of ``committed`` promises a deadline has it, and fewer than that are put first."""
    case = make_case(on_our_pools(synthetic("due", 60, seed), 60))
    saved = 0
    for policy in deadline_policies(case):
        (found,) = drop_needless_urgency(case, [policy])
        assert policy.urgent & jobs_on_time(case, make_schedule(case, policy)) <= jobs_on_time(
            case, make_schedule(case, found)
        )
        assert found.urgent <= policy.urgent
        saved += len(policy.urgent - found.urgent)
    assert saved > 0
