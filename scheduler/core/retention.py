"""Retention: which saved states a job still needs, and why each of the others may go. Pure.

The order of the rules is the order of the answers: the first that applies is the reason that people see.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is kept. Times are scheduled seconds.

    ``newest`` checkpoints of a job stay, and the first at or past each of ``milestones`` equal parts of its way to the
    target. What may go is deleted only after ``grace_seconds``; a damaged one stays ``damaged_seconds`` for a look.
    """

    newest: int = 5
    milestones: int = 10
    grace_seconds: int = DAY
    damaged_seconds: int = 14 * DAY
    events_seconds: int = 400 * DAY
    letters_seconds: int = 90 * DAY
    reports_seconds: int = 30 * DAY


@dataclass(frozen=True, slots=True)
class SavedState:
    """What retention must know of one checkpoint that has not expired."""

    key: str
    step: int
    attempt: int
    good: bool
    pinned: bool
    seen_at: int
    run: str
    why: str = ""
    fenced: bool = False  # of a removed job of the same name or an earlier generation: nothing goes on from it


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one checkpoint stays, and why or why not."""

    stays: bool
    why: str


def verdicts(
    saved: Sequence[SavedState],
    resumes_from: str | None,
    needed: Mapping[str, str],
    target_step: int,
    rule: Retention,
    now: int,
) -> dict[str, Verdict]:
    """Judge all unexpired checkpoints of one job; returns a verdict for each key.

    ``resumes_from`` is the checkpoint that the job goes on from, ``needed`` says of others why they
    must stay: a live session may read them, a job starts from them.
    """
    good = sorted(
        (state for state in saved if state.good and not state.fenced),
        key=lambda state: (state.step, state.attempt),
        reverse=True,
    )
    newest = {state.key: rank for rank, state in enumerate(good[: rule.newest], start=1)}
    milestones = _milestones(good, target_step, rule.milestones)
    found = {}
    for state in saved:
        if state.pinned:
            found[state.key] = Verdict(stays=True, why="pinned")
        elif state.key == resumes_from:
            found[state.key] = Verdict(stays=True, why="the job goes on from it")
        elif state.key in needed:
            found[state.key] = Verdict(stays=True, why=needed[state.key])
        elif state.fenced:
            found[state.key] = Verdict(stays=False, why="from before the job was restarted")
        elif not state.good and now < state.seen_at + rule.damaged_seconds:
            found[state.key] = Verdict(stays=True, why=f"damaged, kept for a look: {state.why}")
        elif not state.good:
            found[state.key] = Verdict(stays=False, why=f"damaged: {state.why}")
        elif state.key in newest:
            found[state.key] = Verdict(stays=True, why=f"number {newest[state.key]} of the newest {rule.newest}")
        elif state.key in milestones:
            found[state.key] = Verdict(stays=True, why=f"the first past {milestones[state.key]} of the target")
        else:
            found[state.key] = Verdict(stays=False, why=f"{len(newest)} newer ones are good, and it is no milestone")
    return found


def may_be_read(saved: Sequence[SavedState], run: str, launched_at: int, candidates: int) -> set[str]:
    """Return the keys that the session ``run``, launched at ``launched_at``, may start from.

    It was told the newest ``candidates`` that were known then. What others published and became known later counts as
    well: between the reservation and the launch a few seconds pass. What it published itself it never reads again.
    """
    then = [state for state in saved if state.good and not state.fenced and state.seen_at <= launched_at]
    later = {state.key for state in saved if state.seen_at > launched_at and state.run != run and not state.fenced}
    then.sort(key=lambda state: (state.step, state.attempt), reverse=True)
    return later | {state.key for state in then[:candidates]}


def _milestones(newest_first: Sequence[SavedState], target_step: int, parts: int) -> dict[str, str]:
    """Return the first checkpoint at or past each part of the way, with that part in percent."""
    found: dict[str, str] = {}
    part = 1
    for state in reversed(newest_first):
        passed = part
        while passed <= parts and state.step * parts >= target_step * passed:
            passed += 1
        if passed > part:
            found[state.key] = f"{round(100 * part / parts)} %"
            part = passed
    return found
