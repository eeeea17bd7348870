"""Retention: the checkpoints that a job still needs, and why each other one may be deleted. Pure.

The rules apply in order; the first that applies is the reason that people see.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DAY = 86_400


@dataclass(frozen=True, slots=True)
class Retention:
    """The periods, in seconds, for which checkpoints, events, messages and reports are kept.

    The ``newest`` checkpoints of a job stay, and the first checkpoint at or past each of ``milestones`` equal parts of
    its target step. Others are deleted after ``grace_seconds``, damaged checkpoints after ``damaged_seconds``.
    """

    newest: int = 5
    milestones: int = 10
    grace_seconds: int = DAY
    damaged_seconds: int = 14 * DAY
    events_seconds: int = 400 * DAY
    messages_seconds: int = 90 * DAY
    reports_seconds: int = 30 * DAY


@dataclass(frozen=True, slots=True)
class SavedState:
    """The facts of one checkpoint that retention needs."""

    key: str
    step: int
    attempt: int
    good: bool
    pinned: bool
    seen_at: int
    run: str
    why: str = ""
    fenced: bool = False  # of a removed job of the same name or an earlier generation: no run resumes from it


@dataclass(frozen=True, slots=True)
class RetentionVerdict:
    """Whether one checkpoint stays, and the reason."""

    stays: bool
    why: str


def verdicts(
    saved: Sequence[SavedState],
    resumes_from: str | None,
    needed: Mapping[str, str],
    target_step: int,
    rule: Retention,
    now: int,
) -> dict[str, RetentionVerdict]:
    """Return the verdict on each unexpired checkpoint of one job, by key.

    ``resumes_from`` is the checkpoint that the job resumes from. ``needed`` gives the reason for others that must stay:
    a live session may read them, or another job is initialised from them.
    """
    good = sorted(
        (state for state in saved if state.good and not state.fenced),
        key=lambda state: (state.step, state.attempt),
        reverse=True,
    )
    newest = {state.key: rank for rank, state in enumerate(good[: rule.newest], start=1)}
    milestones = _milestones(good, target_step, rule.milestones)

    def verdict(state: SavedState) -> tuple[bool, str]:
        if state.pinned:
            return True, "pinned"
        if state.key == resumes_from:
            return True, "the job resumes from it"
        if state.key in needed:
            return True, needed[state.key]
        if state.fenced:
            return False, "from before the job was restarted"
        if not state.good and now < state.seen_at + rule.damaged_seconds:
            return True, f"damaged, kept for inspection: {state.why}"
        if not state.good:
            return False, f"damaged: {state.why}"
        if state.key in newest:
            return True, f"number {newest[state.key]} of the newest {rule.newest}"
        if state.key in milestones:
            return True, f"the first past {milestones[state.key]} of the target"
        return False, f"{len(newest)} newer ones are good, and it is not a milestone"

    return {state.key: RetentionVerdict(*verdict(state)) for state in saved}


def may_be_read(saved: Sequence[SavedState], run: str, launched_at: int, candidates: int) -> set[str]:
    """Return the keys of the checkpoints from which the session ``run``, launched at ``launched_at``, may resume.

    These are the newest ``candidates`` at that time, and checkpoints of other runs that became known later, because a
    few seconds pass between reservation and launch. The session's own checkpoints are not among them.
    """
    at_launch = [state for state in saved if state.good and not state.fenced and state.seen_at <= launched_at]
    later = {state.key for state in saved if state.seen_at > launched_at and state.run != run and not state.fenced}
    at_launch.sort(key=lambda state: (state.step, state.attempt), reverse=True)
    return later | {state.key for state in at_launch[:candidates]}


def _milestones(newest_first: Sequence[SavedState], target_step: int, parts: int) -> dict[str, str]:
    """Return the first checkpoint at or past each part of the target step, with that part in percent, by key."""
    milestones: dict[str, str] = {}
    part = 1
    for state in reversed(newest_first):
        passed = part
        while passed <= parts and state.step * parts >= target_step * passed:
            passed += 1
        if passed > part:
            milestones[state.key] = f"{round(100 * part / parts)} %"
            part = passed
    return milestones
