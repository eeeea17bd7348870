"""Idle: how a pool took what was launched on it, and why it did nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from scheduler.core.run import Ended, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.core.run import Run

_WHY_CHARACTERS = 300
_REFUSED_MIN = 2  # one may be chance: an account that was busy


@dataclass(frozen=True, slots=True)
class Launches:
    """How many launches a pool had, and how many of them never became a session.

    A launch that came after its own deadline is no launch: the calls before it took its time, the pool refused nothing.
    ``why_idle`` is empty when a session ran; ``barred`` when something kept the pool from all that was meant for it.
    """

    launches: int
    refused: int
    last_refusal: str
    why_idle: str
    barred: bool


def launches_on(pool: str, runs: Sequence[Run], closed: str | None) -> Launches:
    """Return what became of the launches on ``pool``; ``closed`` is why it is closed, None when it is open."""
    mine = [run for run in runs if run.pool == pool and not _too_late(run)]
    refused = [run for run in mine if _rejected(run)]
    last = next((lane.message for run in reversed(refused) for lane in run.lanes if lane.message), "")[:_WHY_CHARACTERS]
    if len(mine) > len(refused):
        return Launches(len(mine), len(refused), last, "", barred=False)
    if closed is not None:
        tried = f"{_of(len(refused))} refused; it is closed: " if refused else "it is closed: "
        return Launches(len(mine), len(refused), last, tried + closed[:_WHY_CHARACTERS], barred=True)
    if refused:
        why = f"{_of(len(refused))} refused, the last: {last}"
        return Launches(len(mine), len(refused), last, why, barred=len(refused) >= _REFUSED_MIN)
    return Launches(0, 0, "", "no session was planned there", barred=False)


def _rejected(run: Run) -> bool:
    return isinstance(run.state, Ended) and run.state.outcome is Outcome.REJECTED


def _too_late(run: Run) -> bool:
    return isinstance(run.state, Ended) and _rejected(run) and run.state.at >= run.deadline


def _of(many: int) -> str:
    return "its only launch was" if many == 1 else f"all of its {many} launches were"
