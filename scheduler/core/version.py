"""Versions of models: their states, and the transitions between them. A version itself never changes.

``candidate`` was made from a checkpoint; ``evaluating`` is being scored; ``accepted``, ``rejected`` and
``inconclusive`` are results of the evaluation or a person's decision; ``retired`` was promoted until a newer version
replaced it. Which version is promoted is not a state: the newest promotion decides.
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
    "fail": (frozenset({"evaluating"}), "candidate"),  # without scores there is no result
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


def next_state(state: VersionState, arrow: str) -> VersionState:
    """Return the state after a transition. Raises IllegalArrow if the state does not allow it."""
    begins, ends = _ARROWS[arrow]
    if state not in begins:
        raise IllegalArrow(arrow, state)
    return ends


def version_name(model: str, number: int) -> str:
    """Return the name of a version in texts and events: ``ufm@3``."""
    return f"{model}@{number}"


def split_version(name: str) -> tuple[str, int] | None:
    """Return model and number of a name such as ``ufm@3``; None if it is not the name of a version."""
    model, at, number = name.rpartition("@")
    plain = digits(number, 10**9 - 1)
    return (model, plain) if at and model and plain else None
