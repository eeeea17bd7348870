"""Versions of models: their states, and the transitions between them. A version itself never changes.

``candidate`` was made from a checkpoint; ``evaluating`` is being scored; ``accepted``, ``rejected`` and
``inconclusive`` are results of the evaluation or a person's decision; ``retired`` was promoted until a newer version
replaced it. Which version is promoted is not a state: the newest promotion decides.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

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
    allowed, following = _ARROWS[arrow]
    if state not in allowed:
        raise IllegalArrow(arrow, state)
    return following


def version_name(model: str, number: int) -> str:
    """Return the name of a version in texts and events: ``ufm@3``."""
    return f"{model}@{number}"


def split_version(name: str) -> tuple[str, int] | None:
    """Return model and number of a name such as ``ufm@3``; None if it is not the name of a version."""
    model, at, number = name.rpartition("@")
    plain = digits(number, 10**9 - 1)
    return (model, plain) if at and model and plain else None


# Deployment: the versions that are due at deployment targets now, and why others wait. Pure: rows in, decisions out.
#
# The promoted version of a model is deployed to every automatic target, one version per target at a time. Where a
# target names a first model, the other models follow after its newest version has served for ``watch_seconds``. After a
# rollback no version of the model is deployed automatically until a person resumes it.
_ALL = "*"
DeploymentState = Literal["intended", "serving", "returned", "failed", "replaced"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """The deployment of one version to a target, past or present; ``served_at`` is when its health was proven."""

    id: int
    model: str
    number: int
    target: str
    state: DeploymentState
    by: str
    why: str
    evidence: Mapping[str, Any]
    intended_at: int
    served_at: int | None
    ended_at: int | None

    @property
    def version(self) -> str:
        """The name of the deployed version: ``ufm@3``."""
        return version_name(self.model, self.number)


@dataclass(frozen=True, slots=True)
class DeploymentRule:
    """The settings of a target that decide when a version is deployed to it."""

    name: str
    models: tuple[str, ...] = (_ALL,)
    automatic: bool = False
    first: str = ""
    watch_seconds: int = 3_600

    def serves(self, model: str) -> bool:
        """Return whether the target serves ``model``."""
        return model in self.models or _ALL in self.models


@dataclass(frozen=True, slots=True)
class Due:
    """A version is to be deployed to a target now."""

    model: str
    number: int
    target: str


@dataclass(frozen=True, slots=True)
class Waits:
    """A version waits for its deployment; if ``paused``, until a person resumes the model."""

    model: str
    number: int
    target: str
    why: str
    paused: bool = False


def decide(
    rules: Sequence[DeploymentRule],
    in_force: Mapping[str, int],
    rows: Sequence[Deployment],
    resumed: Mapping[str, int],
    now: int,
) -> list[Due | Waits]:
    """Return what is due or waits at each target; ``in_force`` and ``resumed`` are keyed by model."""
    automatic = [rule for rule in rules if rule.automatic]
    return [decision for rule in automatic for decision in _at_target(rule, in_force, rows, resumed, now)]


def paused_by(
    rows: Sequence[Deployment], model: str, target: str, number: int, resumed_at: int | None
) -> Deployment | None:
    """Return the deployment whose end blocks an automatic deployment of a version to a target, None if there is none.

    ``rows`` are oldest first. A rollback at any target pauses the model at all targets. A failed version is not tried
    again at the same target. A version that served at the target since then ends the pause.
    """
    of_model = [row for row in rows if row.model == model]
    for index, row in reversed(list(enumerate(of_model))):
        if row.ended_at is None or row.state not in {"returned", "failed"}:
            continue
        same_version = row.target == target and row.number == number
        served_since = any(each.target == row.target and each.served_at is not None for each in of_model[index + 1 :])
        not_resumed = resumed_at is None or resumed_at < row.ended_at
        if not_resumed and not served_since and (row.state == "returned" or same_version):
            return row
    return None


def _at_target(
    rule: DeploymentRule, in_force: Mapping[str, int], rows: Sequence[Deployment], resumed: Mapping[str, int], now: int
) -> Iterator[Due | Waits]:
    at_target = [row for row in rows if row.target == rule.name]
    serving = {row.model: row for row in at_target if row.state == "serving"}
    under_way = {row.model: row for row in at_target if row.state == "intended"}
    busy = next((f"{row.model}@{row.number}" for row in under_way.values()), "")
    for model in sorted(filter(rule.serves, in_force), key=lambda name: (name != rule.first, name)):
        number = in_force[model]
        deployed = serving.get(model)
        if model in under_way or (deployed is not None and deployed.number == number):
            continue
        cause = paused_by(rows, model, rule.name, number, resumed.get(model))
        if cause is not None:
            why = f"{cause.model}@{cause.number} was {cause.state} at {cause.target}: {cause.why}"
            yield Waits(model, number, rule.name, why, paused=True)
        elif why := _staged(rule, model, in_force, serving, now):
            yield Waits(model, number, rule.name, why)
        elif busy:
            yield Waits(model, number, rule.name, f"{model}@{number} waits for {busy}, which is being deployed")
        else:
            busy = f"{model}@{number}"
            yield Due(model, number, rule.name)


def _staged(
    rule: DeploymentRule, model: str, in_force: Mapping[str, int], serving: Mapping[str, Deployment], now: int
) -> str:
    """Return why a model waits for the target's first model; empty if it does not wait."""
    first = rule.first
    if not first or model == first or first not in in_force:
        return ""
    ahead = serving.get(first)
    if ahead is None or ahead.number != in_force[first]:
        return f"{first}@{in_force[first]} goes first"
    remaining = (ahead.served_at or now) + rule.watch_seconds - now
    return f"{first}@{ahead.number} goes first and is watched for {remaining} s more" if remaining > 0 else ""
