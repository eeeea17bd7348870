"""Versions of models: their states, and the arrows between these. A version itself never changes.

``candidate`` was made of a checkpoint; ``evaluating`` is being scored; ``accepted``, ``rejected`` and ``inconclusive``
are what the judge or a person said; ``retired`` was in force until a newer one took its place. Which one is in force is
no state: it is what the newest promotion says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from jobs.payload.bounds import digits
from scheduler.core.job import IllegalArrow

VersionState = Literal["candidate", "evaluating", "accepted", "rejected", "inconclusive", "retired"]
VERSION_STATES: tuple[VersionState, ...] = get_args(VersionState)

_ARROWS: Mapping[str, tuple[frozenset[VersionState], VersionState]] = {
    "evaluate": (frozenset({"candidate", "rejected", "inconclusive"}), "evaluating"),
    "fail": (frozenset({"evaluating"}), "candidate"),  # no scores, hence no verdict: as if it had not been evaluated
    "accept": (frozenset({"evaluating"}), "accepted"),
    "reject": (frozenset({"evaluating"}), "rejected"),
    "leave_open": (frozenset({"evaluating"}), "inconclusive"),
    "overrule_accept": (frozenset({"candidate", "rejected", "inconclusive"}), "accepted"),
    "overrule_reject": (frozenset({"candidate", "accepted", "inconclusive", "retired"}), "rejected"),
    "replace": (frozenset({"accepted"}), "retired"),
    "recall": (frozenset({"retired"}), "accepted"),
    "return": (frozenset({"accepted"}), "rejected"),
}
OF_VERDICT = {"accepted": "accept", "rejected": "reject", "inconclusive": "leave_open"}


class IllegalMove(IllegalArrow):
    """A version cannot go that way from where it is."""

    def __init__(self, arrow: str, state: VersionState) -> None:
        ValueError.__init__(self, f"{arrow} is not possible of a version that is {state}")


def moved(state: VersionState, arrow: str) -> VersionState:
    """Return the state after an arrow. Raises IllegalMove where it does not begin there."""
    begins, ends = _ARROWS[arrow]
    if state not in begins:
        raise IllegalMove(arrow, state)
    return ends


def version_name(model: str, number: int) -> str:
    """Return what people and events call a version: ``ufm@3``."""
    return f"{model}@{number}"


def split_version(name: str) -> tuple[str, int] | None:
    """Return model and number of ``ufm@3``; None when it is no version's name."""
    model, at, number = name.rpartition("@")
    plain = digits(number, 10**9 - 1)
    return (model, plain) if at and model and plain else None
