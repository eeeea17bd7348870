"""Values to columns and back: canonical JSON, states, job definitions.

Equal values give equal text, so a guarded write may compare text. Decoders of small frozen values are cached:
the daemon reads the same rows again every cycle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from jobs.payload.store.manifest import Component
from jobs.quality_gate import QualityGate
from jobs.ranges import bounded
from jobs.spec import (
    Code,
    Evaluation,
    Gate,
    Input,
    JobSpec,
    Mixture,
    Needs,
    Requirements,
    Share,
    Stall,
    StartFrom,
)
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, JobState, Queued
from scheduler.core.plan import KeptHours, Placement, PlannedLane
from scheduler.core.run import Ended, Outcome, Reserved, Running, RunState, Stopping, Submitting

if TYPE_CHECKING:
    from sqlalchemy import Row

T = TypeVar("T")

_JOB_STATES: dict[str, type[JobState]] = {
    kind.__name__.lower(): kind for kind in (Queued, Active, Held, Done, Failed, Cancelled)
}
_RUN_STATES: dict[str, type[RunState]] = {
    kind.__name__.lower(): kind for kind in (Reserved, Submitting, Running, Stopping, Ended)
}
JOB_STATES = tuple(_JOB_STATES)
RUN_STATES = tuple(_RUN_STATES)

_SPEC_COLUMNS = frozenset({"name", "role", "weight", "target_step", "not_before", "deadline"})


def dump(value: Any) -> str:
    """Return canonical JSON: ASCII only, keys sorted, no spaces. Dataclasses become objects."""
    return _ENCODER.encode(value)


def load(text: str) -> Any:
    """Read JSON from a column. Raises ValueError."""
    return json.loads(text)


def load_object(text: str) -> dict[str, Any]:
    """Read a JSON object from a column. Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError(f"a JSON object was written, not {type(found).__name__}")
    return found


def built(kind: type[T], document: Any) -> T:
    """Make a dataclass of what was stored of one, each value of its declared type; rows of older versions lack some.

    Raises KeyError, TypeError or ValueError.
    """
    values = dict(document)
    for name, declared, usual, fits, inner, many in _declared(kind):  # type: ignore[arg-type] # a class can be hashed
        if name in values:
            stored = values[name]
            if type(stored) is usual:
                continue
            if fits is not None and not fits(stored):
                raise ValueError(f"{name} is no {declared}")
            if many:
                values[name] = tuple(stored) if inner is None else tuple(built(inner, one) for one in stored)
            elif inner is not None and stored is not None:
                values[name] = built(inner, stored)
    return kind(**values)


@cache
def _declared(kind: type) -> list[tuple[str, str, type | None, Callable[[object], bool] | None, type | None, bool]]:
    """Return a dataclass's fields: name, type as declared, plain type, what tells a value, class within, if a tuple.

    Thousands of rows are of one kind. A value of the plain type always fits.
    """
    found = []
    for entry in fields(kind):
        declared = str(entry.type)
        many = declared.startswith("tuple[")
        within = declared.removeprefix("tuple[").removesuffix(", ...]") if many else declared.removesuffix(" | None")
        usual = _PLAIN_TYPES.get(declared.removesuffix(" | None"))
        found.append((entry.name, declared, usual, _FITS.get(declared), _KINDS.get(within), many))
    return found


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _all(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda values: isinstance(values, list | tuple) and all(map(kind, values))


def _mapping(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda values: isinstance(values, dict) and all(map(kind, values.values()))


def _or_none(kind: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or kind(value)


def _whole(value: object) -> bool:
    return type(value) is int


def _text(value: object) -> bool:
    return isinstance(value, str)


_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        *(Code, Component, Evaluation, Gate, Input, KeptHours, Mixture, Needs, Placement, PlannedLane, QualityGate),
        Requirements,
        *(Share, Stall, StartFrom),
    )
}
_PLAIN_TYPES: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
# By the annotation as it is written in jobs and core; one that is not here is not checked.
_FITS: dict[str, Callable[[object], bool]] = {
    "int": _whole,
    "int | None": _or_none(_whole),
    "float": _number,
    "float | None": _or_none(_number),
    "str": _text,
    "str | None": _or_none(_text),
    "float | str": lambda value: _number(value) or _text(value),
    "bool": lambda value: isinstance(value, bool),
    "Wish | None": lambda value: value in {None, "hold", "cancel"},
    "tuple[str, ...]": _all(_text),
    "tuple[int, ...]": _all(_whole),
    "tuple[float, ...]": _all(_number),
    "Mapping[str, str]": _mapping(_text),
    "Mapping[str, float]": _mapping(_number),
}


def state_name(state: JobState | RunState) -> str:
    """Return the name a state is stored under: its class in lower case."""
    return type(state).__name__.lower()


@lru_cache(maxsize=4_096)
def state_detail(state: JobState | RunState) -> str:
    """Return the fields of a state as canonical JSON."""
    return dump(state)


def state_json(state: JobState | RunState) -> dict[str, Any]:
    """Return a state as it stands in events: its name as ``state``, and its fields."""
    return {"state": state_name(state), **_plain(state)}


@lru_cache(maxsize=4_096)
def job_state(name: str, detail: str) -> JobState:
    """Rebuild a job's state; raises KeyError, TypeError or ValueError for columns no state gives."""
    return built(_JOB_STATES[name], load_object(detail))


@lru_cache(maxsize=4_096)
def run_state(name: str, detail: str) -> RunState:
    """Rebuild a run's state; raises KeyError, TypeError or ValueError for columns no state gives."""
    fields_of_state = load_object(detail)
    if name == "ended":
        fields_of_state["outcome"] = Outcome(fields_of_state["outcome"])
    return built(_RUN_STATES[name], fields_of_state)


def spec_columns(spec: JobSpec) -> dict[str, Any]:
    """Return the columns of a job's definition; what has no column of its own is in ``spec``."""
    columns = {name: getattr(spec, name) for name in _SPEC_COLUMNS}
    rest = {entry.name: getattr(spec, entry.name) for entry in fields(spec) if entry.name not in _SPEC_COLUMNS}
    return {**columns, "spec": dump(rest)}


def changed_columns(stored: str, spec: JobSpec, names: Collection[str]) -> dict[str, Any]:
    """Return the columns to write when the fields ``names`` are as in ``spec`` now; ``stored`` is the column so far.

    What is not named stays as it was stored, also where :func:`spec` reads it as another number.
    """
    columns = {name: getattr(spec, name) for name in names if name in _SPEC_COLUMNS}
    rest = {name: getattr(spec, name) for name in names if name not in _SPEC_COLUMNS}
    return {**columns, "spec": dump({**load(stored), **rest})} if rest else columns


def spec(row: Row[Any]) -> tuple[JobSpec, tuple[str, ...]]:
    """Rebuild a job's definition from its columns, its numbers in their ranges; and say which were not."""
    return _spec(row.name, row.role, row.weight, row.target_step, row.not_before, row.deadline, row.spec)


@lru_cache(maxsize=4_096)
def _spec(
    name: str,
    role: Any,
    weight: float,
    target_step: int,
    not_before: int | None,
    deadline: int | None,
    rest: str,
) -> tuple[JobSpec, tuple[str, ...]]:
    own = {
        "name": name,
        "role": role,
        "weight": weight,
        "target_step": target_step,
        "not_before": not_before,
        "deadline": deadline,
    }
    return bounded(built(JobSpec, load_object(rest) | own))


@lru_cache(maxsize=1_024)
def devices(text: str) -> tuple[int, ...]:
    """Read a lane's device numbers."""
    found = load(text)
    if not _FITS["tuple[int, ...]"](found):
        raise ValueError("the devices of a lane are a list of whole numbers")
    return tuple(found)


@lru_cache(maxsize=1_024)
def names(text: str) -> tuple[str, ...]:
    """Read a list of texts; raises ValueError for anything else."""
    found = load(text)
    if not _FITS["tuple[str, ...]"](found):
        raise ValueError("what is written is no list of texts")
    return tuple(found)


def texts(text: str | None) -> Mapping[str, str]:
    """Read texts by name; none at all where nothing is written."""
    found = {} if text is None else load_object(text)
    if not _FITS["Mapping[str, str]"](found):
        raise ValueError("what is written are no texts by name")
    return found


def _plain(value: Any) -> dict[str, Any]:
    # One level at a time: the encoder asks again for what is inside.
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@lru_cache(maxsize=256)
def _names(kind: Hashable) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise TypeError(f"{getattr(kind, '__name__', kind)} cannot be stored as JSON")
    return tuple(entry.name for entry in fields(kind))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)
