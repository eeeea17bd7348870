"""Encodes values as columns and decodes them: canonical JSON, states, job definitions.

Equal values give equal text, so that a guarded write can compare text. Decoders of small frozen values are cached,
because the daemon reads the same rows in every cycle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import EnumType
from functools import cache, lru_cache, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from jobs.definition import bounded
from jobs.spec import JobSpec
from scheduler.core.job import JobState
from scheduler.core.run import RunState

if TYPE_CHECKING:
    from sqlalchemy import Result, Row

T = TypeVar("T")

JOB_STATES: dict[str, type[JobState]] = {kind.__name__.lower(): kind for kind in get_args(JobState)}
RUN_STATES: dict[str, type[RunState]] = {kind.__name__.lower(): kind for kind in get_args(RunState)}

_SPEC_COLUMNS = ("name", "role", "weight", "target_step", "not_before", "deadline")


def dump(value: Any) -> str:
    """Return canonical JSON: ASCII only, keys sorted, no spaces. Dataclasses become objects."""
    return _ENCODER.encode(value)


def load(text: str) -> Any:
    """Read JSON from a column. Raises ValueError."""
    return json.loads(text)


def load_object(text: str) -> dict[str, Any]:
    """Read a JSON object from a column. Raises ValueError."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def built(kind: type[T], document: Any) -> T:
    """Build a dataclass from its stored fields and check their types; fields missing in older rows get their defaults.

    Raises KeyError, TypeError or ValueError.
    """
    values = dict(document)
    for name, declared, plain, read in _declared(kind):  # type: ignore[arg-type] # a class is hashable
        if name in values and type(values[name]) is not plain:
            try:
                values[name] = read(values[name])
            except _OtherType:
                raise ValueError(f"{name} is not of type {declared}") from None
    return kind(**values)


_UNIONS = (Union, UnionType)
_PLAIN_TYPES = {int: (int,), float: (int, float), str: (str,), bool: (bool,)}


class _OtherType(Exception):
    """A stored value does not have the declared type."""


@cache
def _declared(kind: type) -> list[tuple[str, str, object, Callable[[Any], Any]]]:
    """Return (name, type as text, plain type, reader of stored values) for each field of a dataclass.

    Cached, because thousands of rows have the same type. A value of the plain type needs no reader.
    """
    hints = get_type_hints(kind)
    plain = {name: get_args(hint)[0] if get_origin(hint) in _UNIONS else hint for name, hint in hints.items()}
    type_names = {name: hint.__name__ if isinstance(hint, type) else str(hint) for name, hint in hints.items()}
    return [(name, type_names[name], plain[name], _reader(hint)) for name, hint in hints.items()]


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return a function that converts a stored value to a type or raises _OtherType. Unknown types accept any value."""
    kind: Any = get_origin(hint) or hint
    inner = get_args(hint)
    if kind in _UNIONS:
        return partial(_read_union, type(None) in inner, [_reader(one) for one in inner if one is not type(None)])
    if kind is tuple:
        return partial(_read_many, _reader(inner[0]))
    if kind is Mapping:
        return partial(_read_by_name, _reader(inner[1]))
    if is_dataclass(kind):
        return lambda value: value if isinstance(value, hint) else built(hint, value)
    if kind is Literal or kind in _PLAIN_TYPES:
        fits = inner.__contains__ if inner else lambda value: type(value) in _PLAIN_TYPES[kind]
        return partial(_read_if, fits)
    return kind if isinstance(kind, EnumType) else lambda value: value


def _read_if(fits: Callable[[Any], bool], value: Any) -> Any:
    if not fits(value):
        raise _OtherType
    return value


def _read_union(may_be_none: bool, readers: Collection[Callable[[Any], Any]], value: Any) -> Any:  # noqa: FBT001 - bound
    if value is None and may_be_none:
        return None
    for read in readers:
        with suppress(_OtherType):
            return read(value)
    raise _OtherType


def _read_many(read: Callable[[Any], Any], values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list | tuple):
        raise _OtherType
    return tuple(map(read, values))


def _read_by_name(read: Callable[[Any], Any], values: Any) -> Mapping[str, Any]:
    if not isinstance(values, dict):
        raise _OtherType
    return {name: read(value) for name, value in values.items()}


def columns(table: Any, kind: type) -> list[Any]:
    """Return the columns of a table that are named like the fields of a dataclass, in the order of the fields."""
    return [table.c[name] for name in _names(kind)]


def row_of(record: Any, *left_out: str, **columns: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a row, without ``left_out``; ``columns`` are added or replace fields."""
    return {name: value for name, value in _plain(record).items() if name not in left_out} | columns


def record_of(kind: type[T], row: Row[Any], **values: Any) -> T:
    """Build a dataclass from the columns named like its fields; ``values`` override columns.

    Mappings are decoded from JSON, enum members from their values. Raises ValueError.
    """
    for name, read in _columns(kind):  # type: ignore[arg-type] # a class is hashable
        if name not in values:
            values[name] = getattr(row, name) if read is None else read(getattr(row, name))
    return kind(**values)


def records(kind: type[T], rows: Iterable[Row[Any]]) -> list[T]:
    """Return one dataclass per row, built by :func:`record_of`."""
    return [record_of(kind, row) for row in rows]


def single(kind: type[T], rows: Result[Any]) -> T | None:
    """Return the dataclass of the only row, or None if there is no row."""
    row = rows.one_or_none()
    return None if row is None else record_of(kind, row)


@cache
def _columns(kind: type) -> list[tuple[str, Callable[[Any], Any] | None]]:
    """Return (field name, decoder) for each field of a dataclass; the decoder is None if the column is the value."""
    readers = {Mapping: load_object, dict: load_object}
    hints = get_type_hints(kind).items()
    return [(name, hint if isinstance(hint, EnumType) else readers.get(get_origin(hint))) for name, hint in hints]


def state_columns(state: JobState | RunState) -> dict[str, str]:
    """Return the columns that store the state of a job or run."""
    return {"state": state_name(state), "state_detail": state_detail(state)}


def is_in(table: Any, state: JobState | RunState) -> tuple[Any, Any]:
    """Return the SQL conditions that match a row whose stored state equals ``state``."""
    return table.c.state == state_name(state), table.c.state_detail == state_detail(state)


def state_name(state: JobState | RunState) -> str:
    """Return the stored name of a state: its class name in lower case."""
    return type(state).__name__.lower()


@lru_cache(maxsize=4_096)
def state_detail(state: JobState | RunState) -> str:
    """Return the fields of a state as canonical JSON."""
    return dump(state)


def state_json(state: JobState | RunState) -> dict[str, Any]:
    """Return a state as it is stored in events: its name as ``state``, and its fields."""
    return {"state": state_name(state), **_plain(state)}


@lru_cache(maxsize=4_096)
def job_state(name: str, detail: str) -> JobState:
    """Decode a job's state. Raises KeyError, TypeError or ValueError for invalid columns."""
    return built(JOB_STATES[name], load_object(detail))


@lru_cache(maxsize=4_096)
def run_state(name: str, detail: str) -> RunState:
    """Decode a run's state. Raises KeyError, TypeError or ValueError for invalid columns."""
    return built(RUN_STATES[name], load_object(detail))


def spec_columns(spec: JobSpec) -> dict[str, Any]:
    """Return the columns of a job's definition; fields without a column are JSON in ``spec``."""
    columns = {name: getattr(spec, name) for name in _SPEC_COLUMNS}
    rest = {entry.name: getattr(spec, entry.name) for entry in fields(spec) if entry.name not in _SPEC_COLUMNS}
    return {**columns, "spec": dump(rest)}


def changed_columns(stored: str, spec: JobSpec, names: Collection[str]) -> dict[str, Any]:
    """Return the columns to update if the fields ``names`` of ``spec`` changed; ``stored`` is the old ``spec`` column.

    Other fields keep their stored values, even if :func:`spec` reads them clamped to a valid range.
    """
    columns = {name: getattr(spec, name) for name in names if name in _SPEC_COLUMNS}
    rest = {name: getattr(spec, name) for name in names if name not in _SPEC_COLUMNS}
    return {**columns, "spec": dump({**load(stored), **rest})} if rest else columns


def spec(row: Row[Any]) -> tuple[JobSpec, tuple[str, ...]]:
    """Return a job's definition with numbers clamped to their ranges, and one sentence for each clamped number."""
    return _spec(tuple(getattr(row, name) for name in _SPEC_COLUMNS), row.spec)


@lru_cache(maxsize=4_096)
def _spec(own: tuple[Any, ...], rest: str) -> tuple[JobSpec, tuple[str, ...]]:
    return bounded(built(JobSpec, load_object(rest) | dict(zip(_SPEC_COLUMNS, own, strict=True))))


@lru_cache(maxsize=1_024)
def devices(text: str) -> tuple[int, ...]:
    """Decode the device indexes of a lane. Raises ValueError for anything else."""
    indexes: tuple[int, ...] = _decode_as(tuple[int, ...], text, "the devices of a lane must be a list of integers")
    return indexes


@lru_cache(maxsize=1_024)
def names(text: str) -> tuple[str, ...]:
    """Decode a list of strings. Raises ValueError for anything else."""
    values: tuple[str, ...] = _decode_as(tuple[str, ...], text, "the stored value is not a list of texts")
    return values


def texts(text: str | None) -> Mapping[str, str]:
    """Decode a mapping of strings to strings; empty for None. Raises ValueError for anything else."""
    values: Mapping[str, str] = _decode_as(Mapping[str, str], text or "{}", "the stored value is not a map of texts")
    return values


def _decode_as(hint: Any, text: str, fault: str) -> Any:
    try:
        return _reader(hint)(load(text))
    except _OtherType:
        raise ValueError(fault) from None


def _plain(value: Any) -> dict[str, Any]:
    # Only one level: the JSON encoder calls this again for nested values.
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@lru_cache(maxsize=256)
def _names(kind: Hashable) -> tuple[str, ...]:
    if not is_dataclass(kind):
        raise TypeError(f"{getattr(kind, '__name__', kind)} cannot be stored as JSON")
    return tuple(entry.name for entry in fields(kind))


_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_plain)
