"""Planned: what the newest plan does in the seven days after a report. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.core.plan import Plan


@dataclass(frozen=True, slots=True)
class Planned:
    """The planned sessions of a job on a pool; jobs that share their sessions are one row, ``ufm, ucm``."""

    pool: str
    job: str
    sessions: int
    seconds: int
    steps: int


def planned(plan: Plan | None, now: int) -> tuple[Planned, ...]:
    """Return the sessions of the seven days after ``now``, each counted once."""
    found: dict[tuple[str, str], Planned] = {}
    for placement in () if plan is None else plan.placements:
        if placement.end <= now or placement.start >= now + 7 * 86_400:
            continue
        at = placement.pool, ", ".join(sorted({lane.job for lane in placement.lanes}))
        old = found.get(at, Planned(*at, 0, 0, 0))
        steps = sum(lane.steps for lane in placement.lanes)
        found[at] = Planned(*at, old.sessions + 1, old.seconds + placement.end - placement.start, old.steps + steps)
    return tuple(found[at] for at in sorted(found))
