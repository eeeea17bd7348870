"""In turn: a plan as it is when jobs that share hours take its sessions in turns, whatever was searched for before.

A search moves sessions about and looks at what they are worth; each session in order of time then goes to whoever of
its group has had least for its part and could start there, and what that frees is filled up.
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
    """Return ``found`` with the sessions of those who share hours in turns; itself where nobody does."""
    if not case.turns:
        return candidate
    pins = pinned_sessions(case, Plan(case.now, candidate.schedule.placements, ()))
    schedule = make_schedule(case, replace(candidate.policy, admits=None, pinned=pins))
    return replace(candidate, schedule=schedule, score=score(case, schedule))
