"""Successive halving: decide which candidates of a sweep train on, after Li et al. 2018 (ASHA). Pure.

Candidates are promoted while others still train, so no pool waits for the slowest one. There are two differences from
ASHA, since the number of candidates is known. Never more than one in ``factor`` is promoted from a rung, and the last
place of a rung stays free until all have been measured: the best of a rung is always promoted, in whatever order they
come.
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from jobs.spec import Halving


@dataclass(frozen=True, slots=True)
class SweepCandidate:
    """A job of a sweep: the rung that it trains for or waits at, counted from 0, and its metric at the end of it.

    One that is ``out`` failed, is on hold or left: it counts as the worst of its rung, so that no other waits for it.
    """

    name: str
    rung: int
    state: Literal["trains", "waits", "out"]
    value: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The names of those that train on to the next rung, and of those that end at theirs."""

    promoted: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


def decide(rule: Halving, candidates: Collection[SweepCandidate]) -> Decision:
    """Return the decisions that follow from the known metrics. Equal metrics are ordered by name.

    A metric that is missing or no finite number is never promoted.
    """
    promoted: list[str] = []
    dropped: list[str] = []
    size, coming = rule.candidates, 0  # of this rung; those of them that have not arrived at it
    for rung in range(len(rule.rungs) - 1):
        waiting = [one for one in candidates if one.rung == rung and one.state == "waits"]
        unmeasured = coming + sum(one.rung == rung and one.state == "trains" for one in candidates)
        passed = sum(one.rung > rung for one in candidates)
        size //= rule.factor
        free = size - passed - -(-unmeasured // rule.factor)
        ranked = sorted((key, one.name) for one in waiting if isfinite(key := _loss(rule, one)))
        up = [name for _, name in ranked[: max(0, free)]]
        promoted += up
        coming = len(up) + (max(0, size - passed - len(up)) if unmeasured else 0)
        if not unmeasured:
            dropped += sorted({one.name for one in waiting} - set(up))
    return Decision(tuple(promoted), tuple(dropped))


def rung_of(rule: Halving, target_step: int) -> int:
    """Return the rung that a job with this target trains for, from 0."""
    return min(bisect_left(rule.rungs, target_step), len(rule.rungs) - 1) if rule.left_at is None else rule.left_at


def rungs_of(target_step: int, candidates: int, factor: int) -> tuple[int, ...]:
    """Return the steps at which candidates are compared; the last is the target, which at least one reaches.

    Few rungs compare later, and are surer: there are as few as make at most a third of the steps of the whole grid.
    """
    rungs = [target_step]
    while candidates // factor ** len(rungs) and _steps(rungs, candidates, factor) > candidates * target_step / 3:
        rungs.insert(0, max(1, round(target_step / factor ** len(rungs))))
    return tuple(rungs)


def _steps(rungs: Sequence[int], candidates: int, factor: int) -> int:
    spans = enumerate(zip((0, *rungs), rungs, strict=False))
    return sum(candidates // factor**level * (end - start) for level, (start, end) in spans)


def _loss(rule: Halving, one: SweepCandidate) -> float:
    if one.value is None:
        return float("inf")
    return one.value if rule.aim == "low" else -one.value
