"""Turns in a finished plan: jobs that share hours get its sessions by their shares.

The search looks at value only. Afterwards each session, in order of time, goes to the job of its share group that has
received least relative to its share, and hours that become free are filled.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.plan import Plan
from scheduler.planner.dispatch.dispatcher import make_schedule
from scheduler.planner.dispatch.incumbent import pinned_sessions
from scheduler.planner.model.case import Case
from scheduler.planner.search.candidates import Candidate
from scheduler.planner.search.score import score


def take_turns(case: Case, candidate: Candidate) -> Candidate:
    """Return ``candidate`` with the sessions of share groups in turns; itself if there are no such groups."""
    if not case.turns:
        return candidate
    pins = pinned_sessions(case, Plan(case.now, candidate.schedule.placements, ()))
    schedule = make_schedule(case, replace(candidate.policy, admits=None, pinned=pins))
    return replace(candidate, schedule=schedule, score=score(case, schedule))
