"""Models and their versions: evaluation, promotion, deployment, cost and lineage."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection

from jobs.grouping import grouped
from jobs.payload.store.manifest import split_key
from scheduler.core.ledger import fold
from scheduler.core.version import Deployment, VersionState
from scheduler.store import deployments, evaluations, generations, jobs, ledger, runs, versions
from scheduler.store.evaluations import EvaluationJob, Overrule, StoredVerdict
from scheduler.store.versions import Promotion, Version
from scheduler.views.documents import picked


@dataclass(frozen=True, slots=True)
class ModelCost:
    """Billed seconds and micro-dollars; a session with two jobs counts half for each job."""

    seconds: int = 0
    microdollars: int = 0

    def __add__(self, other: "ModelCost") -> "ModelCost":
        """Return the sum of both."""
        return ModelCost(self.seconds + other.seconds, self.microdollars + other.microdollars)


@dataclass(frozen=True, slots=True)
class ListedVersion:
    """A version in a list; ``serving`` are the names of the targets that serve it."""

    name: str
    model: str
    number: int
    step: int
    state: VersionState
    why: str
    in_force: bool
    promoted: bool  # the same as in_force
    parent: str  # such as uff-main@2, or uff-main step 4000; empty: not initialised from another job
    serving: tuple[str, ...]
    created_at: int


@dataclass(frozen=True, slots=True)
class Model:
    """A model with its versions, newest last. ``paused``: no automatic promotion until a person promotes."""

    name: str
    in_force: str | None
    promoted: str | None  # the same as in_force
    paused: bool
    versions: tuple[ListedVersion, ...]
    promotions: tuple[Promotion, ...]


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """All details of a version. ``children`` are the versions and jobs that were initialised from it.

    ``returned_parent`` is true if its own parent version was later rolled back or overruled.
    """

    listed: ListedVersion
    version: Version
    returned_parent: bool
    children: tuple[str, ...]
    training: ModelCost
    evaluating: ModelCost
    evaluations: tuple[EvaluationJob, ...]
    verdicts: tuple[StoredVerdict, ...]
    overrules: tuple[Overrule, ...]
    deployments: tuple[Deployment, ...]

    def document(self) -> dict[str, Any]:
        """Return all fields as plain JSON types, those of ``listed`` and ``version`` on the top level."""
        whole = asdict(self)
        return {**asdict(self.version), **whole.pop("listed"), **{k: v for k, v in whole.items() if k != "version"}}


def models(tx: Connection) -> list[Model]:
    """Return all models with versions or quality gates, in queue order."""
    by_model = grouped((version.model, version) for version in versions.everything(tx))
    queue = [record.spec.name for record in jobs.everything(tx) if record.spec.evaluation is not None]
    names = [*queue, *(name for name in by_model if name not in queue)]
    return [_model(tx, name, by_model.get(name, [])) for name in names]


def model(tx: Connection, name: str) -> Model:
    """Return one model. Raises UnknownJob if no job ever had this name."""
    if jobs.find(tx, name) is None:
        jobs.get(tx, name)
    return _model(tx, name, versions.everything(tx, name))


def facts(tx: Connection, version: Version) -> VersionFacts:
    """Return all details of a version."""
    listed = next(one for one in model(tx, version.model).versions if one.number == version.number)
    parent = versions.of_checkpoint(tx, version.parent_key) if version.parent_key else None
    evaluation_rows, key = evaluations.of_version(tx, version), version.checkpoint
    child_versions = [one.name for one in versions.everything(tx) if one.parent_key == key]
    scoring = {one.job for one in evaluation_rows}
    child_jobs = [job for job, origin in generations.parents(tx).items() if origin == key and job not in scoring]
    return VersionFacts(
        listed=listed,
        version=version,
        returned_parent=parent is not None and parent.state == "rejected",
        children=(*child_versions, *child_jobs),
        training=_training_cost(tx, version),
        evaluating=_evaluating_cost(tx, version),
        evaluations=tuple(evaluation_rows),
        verdicts=tuple(evaluations.verdicts_of(tx, version)),
        overrules=tuple(evaluations.overrules_of(tx, version)),
        deployments=tuple(one for one in deployments.of_model(tx, version.model) if one.number == version.number),
    )


def cost(tx: Connection, version: ListedVersion) -> ModelCost:
    """Return the billed cost of the training and of all evaluations of a version."""
    whole = versions.get(tx, version.model, version.number)
    return _training_cost(tx, whole) + _evaluating_cost(tx, whole)


def tree(listed: Sequence[Model], marks: Mapping[str, str]) -> list[str]:
    """Return the lineage of versions as lines, children below their parents. ``marks`` replace the state by name."""
    everyone = [version for one in listed for version in one.versions]
    names = {version.name for version in everyone}
    below = grouped((version.parent if version.parent in names else "", version) for version in everyone)
    lines: list[str] = []

    def draw(name: str, indent: str) -> None:
        members = below.get(name, [])
        for place, version in enumerate(members, start=1):
            last = place == len(members)
            branch = "" if not name else "└─ " if last else "├─ "
            origin = f"  from {version.parent}" if not name and version.parent else ""
            lines.append(f"{indent}{branch}{version.name}  {marks.get(version.name, version.state)}{origin}")
            draw(version.name, indent + ("" if not name else "   " if last else "│  "))

    draw("", "")
    return lines


def _model(tx: Connection, name: str, versions_of_model: Sequence[Version]) -> Model:
    moves = versions.promotions_of(tx, name)
    promoted = next((one.number for one in moves[:1]), None)
    serving = grouped((one.number, one.target) for one in deployments.of_model(tx, name) if one.state == "serving")
    listed = tuple(
        ListedVersion(
            **picked(version, "name", "model", "number", "step", "state", "why", "created_at"),
            in_force=version.number == promoted,
            promoted=version.number == promoted,
            parent=_parent(tx, version),
            serving=tuple(serving.get(version.number, ())),
        )
        for version in versions_of_model
    )
    in_force = next((one.name for one in listed if one.in_force), None)
    return Model(name, in_force, in_force, bool(moves) and moves[0].kind == "rollback", listed, tuple(moves))


def _parent(tx: Connection, version: Version) -> str:
    if version.parent_key is None:
        return ""
    parent = versions.of_checkpoint(tx, version.parent_key)  # it may have become a version after its child
    if parent is not None:
        return parent.name
    named = split_key(version.parent_key)
    return f"{version.parent} step {named[1]}" if named else version.parent_key


def _training_cost(tx: Connection, version: Version) -> ModelCost:
    """Return the billed cost of the attempts of its generation, up to the attempt that saved its checkpoint."""
    named = split_key(version.checkpoint)
    if named is None:
        return ModelCost()
    began = generations.of_attempt(tx, version.model, named[2])
    return _cost(tx, version.model, began.first_attempt if began else 1, named[2])


def _evaluating_cost(tx: Connection, version: Version) -> ModelCost:
    return sum((_cost(tx, one.job, 1, None) for one in evaluations.of_version(tx, version)), ModelCost())


def _cost(tx: Connection, job: str, first: int, last: int | None) -> ModelCost:
    attempts = runs.attempts(tx, job)
    keys = [one.run for number, one in attempts.items() if number >= first and (last is None or number <= last)]
    shares = {key: len(runs.get(tx, key).lanes) for key in keys}
    charges = [
        charge for entries in fold(ledger.of_runs(tx, keys)).values() for charge in entries if charge.run in shares
    ]
    seconds = sum(charge.within(charge.start, charge.end) / shares[charge.run or ""] for charge in charges)
    money = sum(charge.cost_within(charge.start, charge.end) / shares[charge.run or ""] for charge in charges)
    return ModelCost(round(seconds), round(money))
