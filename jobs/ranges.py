"""Ranges: what each number of a job may be, with its unit, as its field declares it.

What an older version let in is bounded when it is read, and its job waits for a person.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jobs.nouns.keys import keys_of, paths
from jobs.problem import as_toml
from jobs.spec import JobSpec

RANGES = {key: one.rule.range for key, one in paths(JobSpec).items() if one.rule and one.rule.range}
"""By the key that people write; a file may write a duration or an instant as text as well."""


def bounded(spec: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """Return ``spec`` with every number in its range, and in words what was not; the same one when all are."""
    words: list[str] = []
    spec = _bounded(spec, "", words)
    if words and spec.needs.devices_min > spec.needs.devices_max:
        spec = replace(spec, needs=replace(spec.needs, devices_max=spec.needs.devices_min))
    return spec, tuple(words)


def _bounded(record: Any, prefix: str, words: list[str]) -> Any:
    """Return a record with its numbers, and those of its tables, in their ranges."""
    kind: Any = type(record)
    changed = {}
    for one in keys_of(kind):
        rule, off = (one.rule.range, one.rule.off) if one.rule else (None, None)
        for name in one.names:
            value: Any = getattr(record, name)
            if value is None or value == off or one.many:
                continue
            values = value if isinstance(value, tuple) else (value,)
            if rule is not None and not all(map(rule.holds, values)):
                key = f"{prefix}{one.key}"
                words += [f"{key} = {as_toml(v, 20)} is not in the range {rule}" for v in values if not rule.holds(v)]
                near = tuple(map(rule.nearest, values))
                changed[name] = near if isinstance(value, tuple) else near[0]
            elif one.inner is not None and (inner := _bounded(value, f"{prefix}{one.key}.", words)) is not value:
                changed[name] = inner
    return replace(record, **changed) if changed else record
