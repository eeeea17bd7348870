"""Loads all settings: reads the layers, validates them together, and reports each problem in one line."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from config.database_address import hidden, shown_address
from config.errors import ConfigError, Problem
from config.layers import Layers, read_layers, shipped
from config.secret import is_secret
from config.section import keys_of, table_in
from config.settings import Settings
from jobs.duration import show_duration
from jobs.nouns.values import BadTable, BadValue
from jobs.payload.redact import MARK
from jobs.problem import as_toml, did_you_mean
from jobs.toml_file import placed

_ONE_BY_ONE = "write its keys one by one"
_TABLE_WANTED = {"model_type", "dict_type", "model_attributes_type", "dataclass_type", "mapping_type"}
_UNKNOWN = {"extra_forbidden", "unexpected_keyword_argument"}
_DEFAULTS = str(shipped("defaults.toml"))


def load(
    path: Path | None = None, environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None
) -> Settings:
    """Return the settings.

    ``path`` is the file to read instead of the file that ``SCHEDCTL_CONFIG`` or the system provides. ``environ`` is the
    environment, None for the process's own. ``overrides`` has the highest priority and the form of a file. Raises
    ConfigError with all problems.
    """
    layers = read_layers(path, environ, overrides)
    try:
        return Settings.of(layers)
    except ValidationError as error:
        raise ConfigError([one for details in error.errors() for one in _problems(details, layers)]) from None


def _problems(details: ErrorDetails, layers: Layers) -> Iterator[Problem]:
    location = [part for part in details["loc"] if part != "[key]"]
    error = details.get("ctx", {}).get("error")
    if isinstance(error, BadTable):
        for one in error.values:
            yield _problem(details, [*location, one.key], one, layers)
    else:
        yield _problem(details, location, error, layers)


def _problem(details: ErrorDetails, location: list[int | str], error: object, layers: Layers) -> Problem:
    if isinstance(error, BadValue) and error.beside and not _set_by_person(location, layers):
        location[-1] = error.beside
    key, written = _key(location, layers.values), _written(location, layers.values)
    why, remedy = (error.why, error.remedy) if isinstance(error, BadValue) else _why(details, location)
    if error is not None and (bare := _bare_seconds(location, written)):
        why, remedy = f"it has no unit and means {show_duration(bare)}, and {why}", f'write "{bare}h" or "{bare}m"'
    kind = details["type"]
    value = "" if kind in {"missing", *_UNKNOWN} else _value_text(key, kind, written)
    dotted = ".".join(str(part) for part in location)
    return placed(Problem(layers.origin(dotted), key, value, why, remedy))


def _value_text(key: str, kind: str, value: Any) -> str:
    """Return a wrong value for its message. Possible secrets are redacted before the text is cut."""
    if is_secret(key):
        return as_toml(hidden(key, value)) if isinstance(value, str) else MARK
    if isinstance(value, str) and kind in _TABLE_WANTED:
        return MARK  # in place of a section that may contain secrets
    text = shown_address(value) if isinstance(value, str) and "://" in value else value
    return as_toml(text)


def _set_by_person(location: Sequence[int | str], layers: Layers) -> bool:
    dotted = ".".join(str(part) for part in location)
    return layers.origins.get(dotted, _DEFAULTS) != _DEFAULTS


def _why(details: ErrorDetails, location: Sequence[int | str]) -> tuple[str, str]:
    context = details.get("ctx", {})
    match details["type"]:
        case "value_error":
            return str(context.get("error")), ""
        case "missing":
            return "is missing", "add it"
        case "extra_forbidden" | "unexpected_keyword_argument" if (
            len(location) > 1 and str(location[-1]) in Settings.model_fields
        ):
            why = f"there is no such key in {_table(location[:-1])}, to which TOML counts all that stands below it"
            return why, f"move {location[-1]} up, above the first line in square brackets"
        case kind if kind in _UNKNOWN:
            return "there is no such key", did_you_mean(str(location[-1]), list(_keys_beside(location)))
        case "literal_error":
            return "there is no such choice", f"use {context['expected'].replace(chr(39), '')}"
        case "string_pattern_mismatch":
            return "this is no usable name", "use a-z, 0-9 and hyphens, beginning with one of a-z"
        case "greater_than_equal" | "greater_than" | "less_than_equal" | "less_than":
            return f"this must be {details['msg'].removeprefix('Input should be ')}", "correct the number"
        case kind if kind in _TABLE_WANTED:
            section = _table(location) if isinstance(details["input"], list) else ""
            return "this must be a table", f"write {section}, in one pair of brackets" if section else _ONE_BY_ONE
        case "tuple_type" | "list_type" | "frozen_set_type" | "set_type":
            if isinstance(details["input"], dict):
                inner = [name for name, value in details["input"].items() if isinstance(value, dict)]
                named, before = (f' and name = "{inner[0]}"', [*location, inner[0]]) if inner else ("", location)
                remedy = f"write [{_table(location)}]{named} in place of {_table(before)}"
                return "this must be a list of tables", remedy
            return "this must be a list", "put it in square brackets"
    return details["msg"].replace("Input should be", "this must be").rstrip("."), "correct the value"


def _table(location: Sequence[int | str]) -> str:
    """Return the header of a table in a file: ``[daemon]``, or ``[[pools]]`` if the last part is a number."""
    header = f"[{'.'.join(part for part in location if isinstance(part, str))}]"
    return f"[{header}]" if isinstance(location[-1], int) else header


def _bare_seconds(location: Sequence[int | str], value: Any) -> int:
    """Return the seconds of a duration without a unit; 0 for anything else."""
    is_bare = isinstance(value, int) and not isinstance(value, bool) and value > 0
    name, _ = _keys_beside(location).get(str(location[-1]), ("", None))
    return int(value) if is_bare and "_seconds" in name else 0


def _keys_beside(location: Sequence[int | str]) -> dict[str, tuple[str, Any]]:
    """Return the valid keys of the table that contains the last part of ``location``."""
    table: Any = Settings
    for part in location[:-1]:
        if isinstance(part, str):
            _, annotation = keys_of(table).get(part, ("", None))
            if (table := table_in(annotation)) is None:
                return {}
    return keys_of(table)


def _key(location: Sequence[int | str], values: Any) -> str:
    """Return the dotted key, with names for entries of lists that have one: ``pools.kaggle.session_cap``."""
    parts: list[str] = []
    for part in location:
        values = _inside(values, part)
        if isinstance(part, int):
            name = values.get("name") if isinstance(values, dict) else None
            parts.append(name if isinstance(name, str) and name else str(part))
        else:
            parts.append(part)
    return ".".join(parts)


def _written(location: Sequence[int | str], values: Any) -> Any:
    for part in location:
        values = _inside(values, part)
    return values


def _inside(values: Any, part: int | str) -> Any:
    if isinstance(values, list) and isinstance(part, int) and part < len(values):
        return values[part]
    return values.get(part) if isinstance(values, dict) else None
