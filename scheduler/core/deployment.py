"""Deployment: which versions are due at which targets now, and why others wait. Pure: rows in, decisions out.

What is in force is wanted at every automatic target. One version is on its way to a target at a time. Where a target
names a first model, the others follow once that one's newest version has served for a while. A version that was
returned is not tried again by itself, nor is any other of its model, until a person resumes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_ALL = "*"


class Row(Protocol):
    """What is recorded of one deployment; times are UTC seconds."""

    @property
    def model(self) -> str:
        """Whose version it was."""

    @property
    def number(self) -> int:
        """Of the version."""

    @property
    def target(self) -> str:
        """Where to."""

    @property
    def state(self) -> str:
        """One of intended, serving, returned, failed, replaced."""

    @property
    def why(self) -> str:
        """Of how it ended."""

    @property
    def served_at(self) -> int | None:
        """When it was first seen to answer."""

    @property
    def ended_at(self) -> int | None:
        """When it was over."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What a target's settings say of when something is brought there."""

    name: str
    models: tuple[str, ...] = (_ALL,)
    automatic: bool = False
    first: str = ""
    watch_seconds: int = 3_600

    def serves(self, model: str) -> bool:
        """Tell whether a model is served there."""
        return model in self.models or _ALL in self.models


@dataclass(frozen=True, slots=True)
class Due:
    """A version is to be brought to a target now."""

    model: str
    number: int
    target: str


@dataclass(frozen=True, slots=True)
class Waits:
    """A version is wanted at a target and waits; ``paused`` until a person resumes the model."""

    model: str
    number: int
    target: str
    why: str
    paused: bool = False


def decide(
    rules: Sequence[Rule], in_force: Mapping[str, int], rows: Sequence[Row], resumed: Mapping[str, int], now: int
) -> list[Due | Waits]:
    """Return what is due or waits, by target. ``in_force`` are numbers, ``resumed`` the newest times, both by model."""
    return [decision for rule in rules if rule.automatic for decision in _at(rule, in_force, rows, resumed, now)]


def paused_by(rows: Sequence[Row], model: str, target: str, number: int, resumed_at: int | None) -> Row | None:
    """Return the end of a deployment that keeps a version from being tried at a target by itself; None for none.

    ``rows`` are oldest first. What was returned anywhere pauses its model everywhere; what failed is not tried again
    where it did. Whatever served there since has ended the pause.
    """
    ours = [row for row in rows if row.model == model]
    for place, row in reversed(list(enumerate(ours))):
        if row.ended_at is None or row.state not in {"returned", "failed"}:
            continue
        here = row.target == target and row.number == number
        served_since = any(later.target == row.target and later.served_at is not None for later in ours[place + 1 :])
        asleep = resumed_at is None or resumed_at < row.ended_at
        if asleep and not served_since and (row.state == "returned" or here):
            return row
    return None


def _at(
    rule: Rule, in_force: Mapping[str, int], rows: Sequence[Row], resumed: Mapping[str, int], now: int
) -> Iterator[Due | Waits]:
    here = [row for row in rows if row.target == rule.name]
    serving = {row.model: row for row in here if row.state == "serving"}
    under_way = {row.model: row for row in here if row.state == "intended"}
    busy = next((f"{row.model}@{row.number}" for row in under_way.values()), "")
    for model in sorted(filter(rule.serves, in_force), key=lambda one: (one != rule.first, one)):
        number = in_force[model]
        now_there = serving.get(model)
        if model in under_way or (now_there is not None and now_there.number == number):
            continue
        cause = paused_by(rows, model, rule.name, number, resumed.get(model))
        if cause is not None:
            why = f"{cause.model}@{cause.number} was {cause.state} at {cause.target}: {cause.why}"
            yield Waits(model, number, rule.name, why, paused=True)
        elif why := _staged(rule, model, in_force, serving, now):
            yield Waits(model, number, rule.name, why)
        elif busy:
            yield Waits(model, number, rule.name, f"{model}@{number} waits for {busy}, which is on its way")
        else:
            busy = f"{model}@{number}"
            yield Due(model, number, rule.name)


def _staged(rule: Rule, model: str, in_force: Mapping[str, int], serving: Mapping[str, Row], now: int) -> str:
    """Return why a model has to wait for the one that goes first; empty when it need not."""
    first = rule.first
    if not first or model == first or first not in in_force:
        return ""
    ahead = serving.get(first)
    if ahead is None or ahead.number != in_force[first]:
        return f"{first}@{in_force[first]} goes first"
    left = (ahead.served_at or now) + rule.watch_seconds - now
    return f"{first}@{ahead.number} goes first and is watched for {left} s more" if left > 0 else ""
