"""Successive halving: decide which candidates of a sweep train on, after Li et al. 2018 (ASHA). Pure.

A rung is a step at which candidates are compared. Candidates are promoted while others still train, so no pool waits
for the slowest one. There are two differences from ASHA, since the number of candidates is known. Never more than one
in ``factor`` is promoted from a rung. The last place of a rung stays free until all candidates have been measured, so
the best of a rung is always promoted, in any order of arrival.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from jobs.spec import Halving


@dataclass(frozen=True, slots=True)
class SweepCandidate:
    """A job of a sweep: the rung that it trains for or waits at, counted from 0, and its metric at that rung.

    A candidate is ``out`` if it will not arrive at its rung now: it counts as the worst there, so that no other waits.
    """

    name: str
    rung: int
    state: Literal["trains", "waits", "out"]
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The names of the candidates that train on to the next rung, and of those that end at their rung."""

    promoted: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def decide(rule: Halving, candidates: Collection[SweepCandidate]) -> Decision:
    """Return the decisions that follow from the known metrics. Equal metrics are ordered by name.

    A candidate whose metric is missing, infinite or not a number is never promoted.
    """
    promoted: list[str] = []
    dropped: list[str] = []
    places, coming = rule.candidates, 0  # of the next rung; candidates that have not arrived at this rung
    for rung in range(len(rule.rungs) - 1):
        waiting = [candidate for candidate in candidates if candidate.rung == rung and candidate.state == "waits"]
        unmeasured = coming + sum(each.rung == rung and each.state == "trains" for each in candidates)
        passed = sum(candidate.rung > rung for candidate in candidates)
        places //= rule.factor
        free = places - passed - -(-unmeasured // rule.factor)
        ranked = sorted((loss, each.name) for each in waiting if isfinite(loss := _loss(rule, each)))
        best = [name for _, name in ranked[: max(0, free)]]
        promoted += best
        coming = len(best) + (max(0, places - passed - len(best)) if unmeasured else 0)
        if not unmeasured:
            dropped += sorted({candidate.name for candidate in waiting} - set(best))
    return Decision(tuple(promoted), tuple(dropped))


def rung_of(rule: Halving, target_step: int) -> int:
    """Return the rung, from 0, that a candidate with this target step trains for, or at which it left the sweep."""
    return min(bisect_left(rule.rungs, target_step), len(rule.rungs) - 1) if rule.left_at is None else rule.left_at


def rungs_of(target_step: int, candidates: int, factor: int) -> tuple[int, ...]:
    """Return the steps at which candidates are compared; the last is the target, which at least one reaches.

    With fewer rungs the comparisons come later and are more reliable. So there are only as many rungs as are needed to
    train at most a third of the steps without halving.
    """
    rungs = [target_step]
    while candidates // factor ** len(rungs) and _steps(rungs, candidates, factor) > candidates * target_step / 3:
        rungs.insert(0, max(1, round(target_step / factor ** len(rungs))))
    return tuple(rungs)


def _steps(rungs: Sequence[int], candidates: int, factor: int) -> int:  # of all candidates together
    spans = enumerate(zip((0, *rungs), rungs, strict=False))
    return sum(candidates // factor**level * (end - start) for level, (start, end) in spans)


def _loss(rule: Halving, candidate: SweepCandidate) -> float:
    if candidate.value is None:
        return float("inf")
    return candidate.value if rule.aim == "low" else -candidate.value
