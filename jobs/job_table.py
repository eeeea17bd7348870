"""A job's definition as the table that people write, and as TOML: the way back from a JobSpec."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from jobs.duration import show_duration
from jobs.nouns.keys import keys_of
from jobs.spec import Evaluation, JobSpec, Needs, StartFrom

_IN_FULL = (JobSpec, Needs, Evaluation, StartFrom)  # people want to see their values by default as well


def table_of(spec: JobSpec) -> dict[str, Any]:
    """Return the table that :func:`jobs.catalogue.job_from_table` makes ``spec`` of; what is not set is left out."""
    table = written_table(spec)
    if spec.gate is not None and spec.gate.step is None:
        table["after"]["fraction"] = spec.gate.fraction
    if spec.mixture is not None and spec.mixture.domain is not None:
        table["mixture"]["extra_share"] = spec.mixture.extra_share
    if spec.evaluation is not None and not spec.evaluation.votes:
        del table["evaluation"]["usual"]
    if spec.start_from is not None:
        table.pop("after", None)
    if spec.whole:
        del table["target_step"], table["steps_per_hour"]
        table["whole"] = whole_of(spec)
    return table


def whole_of(spec: JobSpec) -> str:
    """Return the longest that a job which is run whole takes on the reference device: ``3h``."""
    return show_duration(round(3_600 / spec.steps_per_hour))


def written_table(record: Any) -> dict[str, Any]:
    """Return a dataclass with rules as the table that people write."""
    kind: Any = type(record)
    empty: tuple[Any, ...] = ("", [], {}) if isinstance(record, JobSpec) else ("", {})
    table = {}
    for one in keys_of(kind):
        value = one.of(record)
        if value == one.default and not isinstance(record, _IN_FULL):
            continue
        if one.rule is not None:
            value = one.rule.show(value)
        elif value is not None:
            value = list(map(written_table, value)) if one.many else written_table(value)
        if value is not None and (one.default is None or value not in empty):
            table[one.key] = value
    return table


def toml_of(table: Mapping[str, Any]) -> str:
    """Return a table of a job as a TOML document."""
    return "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _value(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            # TOML's basic strings are JSON's, but for the one control character that JSON leaves as it is.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case dict():
            return f"{{ {', '.join(f'{_key(key)} = {_value(inner)}' for key, inner in value.items())} }}"
        case _:
            return repr(value)
