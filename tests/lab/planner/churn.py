"""Churn: how much of a plan another one moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.core.plan import Plan


def churn(before: Plan, after: Plan, start: int, end: int) -> float:
    """Return the share of job-seconds of [start, end) that ``after`` gives to another pool or instant."""
    old, new = _lanes(before, start, end), _lanes(after, start, end)
    total = sum(stop - begin for spans in old.values() for begin, stop in spans)
    kept = 0
    for key, spans in old.items():
        for begin, stop in spans:
            kept += sum(max(0, min(stop, e) - max(begin, b)) for b, e in new.get(key, ()))
    return 1 - kept / total if total else 0.0


def _lanes(plan: Plan, start: int, end: int) -> dict[tuple[str, str], list[tuple[int, int]]]:
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for placement in plan.placements:
        begin, stop = max(placement.start, start), min(placement.end, end)
        if stop > begin:
            for planned_lane in placement.lanes:
                found.setdefault((planned_lane.job, placement.pool), []).append((begin, stop))
    return found
