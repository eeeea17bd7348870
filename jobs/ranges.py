"""Ranges: what each number of a job may be, with its unit. One table for all code that reads, edits or stores a job.

A number outside its range is a mistake in any unit (a step an hour, a billion of them a second), and one that a plan
or a database could not hold. What an older version let in is bounded when it is read, and its job waits for a person.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jobs.duration import show_duration
from jobs.problem import as_toml
from jobs.spec import JobSpec

_WEEK = 604_800
_YEAR_3000 = 32_503_680_000


@dataclass(frozen=True, slots=True)
class Range:
    """From ``least`` to ``most``, both included, in ``unit``; ``whole`` numbers only, if said so."""

    least: float
    most: float
    unit: str
    whole: bool = False

    def holds(self, value: object) -> bool:
        """Return whether ``value`` is a number in the range; no truth value is, and neither is NaN."""
        number = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        return number and self.least <= value <= self.most  # type: ignore[operator] # compared exactly, however large

    def nearest(self, value: Any) -> Any:
        """Return the number in the range that is nearest to ``value``, the least one for NaN."""
        if self.holds(value):
            return value
        return self.most if value > self.most else self.least

    def __str__(self) -> str:
        if self.unit == "seconds":
            return f"{show_duration(round(self.least))} to {show_duration(round(self.most))}"
        return f"{self.least:,} to {self.most:,} {self.unit}".rstrip()


RANGES = {
    "target_step": Range(1, 10**12 - 1, "steps", whole=True),  # a manifest's name has twelve digits
    "steps_per_hour": Range(0.01, 10**9, "steps an hour"),
    "weight": Range(0.001, 10**6, ""),
    "seed": Range(0, 2**63 - 1, "", whole=True),
    "setup": Range(0, _WEEK, "seconds", whole=True),
    "checkpoint": Range(0, _WEEK, "seconds", whole=True),
    "device_speedup": Range(0.01, 1_024, "times one device"),
    "needs.devices": Range(1, 1_024, "devices", whole=True),
    "needs.vram_gib": Range(0, 10**5, "GiB"),
    "mixture.extra_share": Range(0, 1, "of the domain's data"),
    "after.fraction": Range(0, 1, "of the parent's target"),
    "after.step": Range(1, 10**12 - 1, "steps of the parent", whole=True),
    "share.percent": Range(1, 99, "% of the hours of both"),
    "stop.least": Range(0, 10**9, ""),
    "stop.value": Range(-(10**9), 10**9, ""),
    "not_before": Range(0, _YEAR_3000 - 1, "UTC seconds", whole=True),
    "deadline": Range(0, _YEAR_3000 - 1, "UTC seconds", whole=True),
}
"""By the key that people write; a file may write a duration or an instant as text as well."""

_PLACES = (
    *((key, key) for key in ("target_step", "steps_per_hour", "weight", "seed", "device_speedup")),
    *(("setup", "setup_seconds"), ("checkpoint", "checkpoint_seconds")),
    *(("needs.devices", "needs.devices_min"), ("needs.devices", "needs.devices_max")),
    *((key, key) for key in ("needs.vram_gib", "mixture.extra_share", "share.percent")),
    ("after.fraction", "gate.fraction"),
    *(("not_before", "not_before"), ("deadline", "deadline")),
)
"""Where each number stands in a JobSpec."""


def bounded(spec: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """Return ``spec`` with every number in its range, and in words what was not; the same one when all are."""
    words: list[str] = []
    for key, place in _PLACES:
        rule, (outer, _, name) = RANGES[key], place.rpartition(".")
        holder = getattr(spec, outer) if outer else spec
        value = getattr(holder, name, None)
        values = value if isinstance(value, tuple) else (value,)
        if value is None or all(map(rule.holds, values)):
            continue
        words += [f"{key} = {as_toml(one, 20)} is not in the range {rule}" for one in values if not rule.holds(one)]
        near = tuple(map(rule.nearest, values))
        changed: Any = replace(holder, **{name: near if isinstance(value, tuple) else near[0]})
        spec = replace(spec, **{outer: changed}) if outer else changed
    if words and spec.needs.devices_min > spec.needs.devices_max:
        spec = replace(spec, needs=replace(spec.needs, devices_max=spec.needs.devices_min))
    return spec, tuple(words)
