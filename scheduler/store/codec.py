"""Values to columns and back: canonical JSON, states, job definitions.

Equal values give equal text, so a guarded write may compare text. Decoders of small frozen values are cached:
the daemon reads the same rows again every cycle.
"""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jobs.spec import Gate, JobSpec, Mixture, Needs
from scheduler.core.job import Active, Cancelled, Done, Failed, Held, Queued
from scheduler.core.run import Ended, Outcome, Reserved, Running, Stopping, Submitting

if TYPE_CHECKING:
    from collections.abc import Hashable

    from sqlalchemy import Row

    from scheduler.core.job import JobState
    from scheduler.core.run import RunState

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
    """Read JSON from a column."""
    return json.loads(text)


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
    return _JOB_STATES[name](**load(detail))


@lru_cache(maxsize=4_096)
def run_state(name: str, detail: str) -> RunState:
    """Rebuild a run's state; raises KeyError, TypeError or ValueError for columns no state gives."""
    fields_of_state = load(detail)
    if name == "ended":
        fields_of_state["outcome"] = Outcome(fields_of_state["outcome"])
    return _RUN_STATES[name](**fields_of_state)


def spec_columns(spec: JobSpec) -> dict[str, Any]:
    """Return the columns of a job's definition; what has no column of its own is in ``spec``."""
    columns = {name: getattr(spec, name) for name in _SPEC_COLUMNS}
    rest = {entry.name: getattr(spec, entry.name) for entry in fields(spec) if entry.name not in _SPEC_COLUMNS}
    return {**columns, "spec": dump(rest)}


def spec(row: Row[Any]) -> JobSpec:
    """Rebuild a job's definition from its columns."""
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
) -> JobSpec:
    other = load(rest)
    for tuples in ("command", "pools", "device_speedup"):
        other[tuples] = tuple(other[tuples])
    other["needs"] = Needs(**other["needs"])
    other["mixture"] = Mixture(**other["mixture"])
    other["gate"] = Gate(**other["gate"]) if other["gate"] else None
    return JobSpec(
        name=name,
        role=role,
        weight=weight,
        target_step=target_step,
        not_before=not_before,
        deadline=deadline,
        **other,
    )


@lru_cache(maxsize=1_024)
def devices(text: str) -> tuple[int, ...]:
    """Read a lane's device numbers."""
    return tuple(load(text))


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
