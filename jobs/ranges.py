"""Ranges: what each number of a job may be, with its unit. One table for whoever reads, edits or stores a job.

A number outside its range is a mistake in any unit (a step an hour, a billion of them a second), and one that a plan
or a database could not hold. What an older version let in is bounded when it is read, and its job waits for a person.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jobs.duration import show_duration
from jobs.problem import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    "gate.fraction": Range(0, 1, "of the parent's target"),
    "share.percent": Range(1, 99, "% of the hours of both"),
    "not_before": Range(0, _YEAR_3000 - 1, "UTC seconds", whole=True),
    "deadline": Range(0, _YEAR_3000 - 1, "UTC seconds", whole=True),
}
"""By the key that people write; a file may write a duration or an instant as text as well."""


def bounded(spec: JobSpec) -> tuple[JobSpec, tuple[str, ...]]:
    """Return ``spec`` with every number in its range, and in words what was not; the same one when all are."""
    found = [(key, value) for key, value in _numbers(spec) if not RANGES[key].holds(value)]
    if not found:
        return spec, ()
    near = {key: rule.nearest for key, rule in RANGES.items()}
    needs, mixture, gate, share = spec.needs, spec.mixture, spec.gate, spec.share
    least = near["needs.devices"](needs.devices_min)
    changed = replace(
        spec,
        target_step=near["target_step"](spec.target_step),
        steps_per_hour=near["steps_per_hour"](spec.steps_per_hour),
        weight=near["weight"](spec.weight),
        seed=near["seed"](spec.seed),
        setup_seconds=near["setup"](spec.setup_seconds),
        checkpoint_seconds=near["checkpoint"](spec.checkpoint_seconds),
        device_speedup=tuple(near["device_speedup"](gain) for gain in spec.device_speedup),
        needs=replace(
            needs,
            devices_min=least,
            devices_max=max(least, near["needs.devices"](needs.devices_max)),
            vram_gib=near["needs.vram_gib"](needs.vram_gib),
        ),
        mixture=mixture and replace(mixture, extra_share=near["mixture.extra_share"](mixture.extra_share)),
        gate=None if gate is None else replace(gate, fraction=near["gate.fraction"](gate.fraction)),
        share=share and replace(share, percent=near["share.percent"](share.percent)),
        not_before=None if spec.not_before is None else near["not_before"](spec.not_before),
        deadline=None if spec.deadline is None else near["deadline"](spec.deadline),
    )
    return changed, tuple(f"{key} = {shown(value, 20)} is not in the range {RANGES[key]}" for key, value in found)


def _numbers(spec: JobSpec) -> Iterator[tuple[str, object]]:
    for key in ("target_step", "steps_per_hour", "weight", "seed"):
        yield key, getattr(spec, key)
    yield "setup", spec.setup_seconds
    yield "checkpoint", spec.checkpoint_seconds
    for gain in spec.device_speedup:
        yield "device_speedup", gain
    yield "needs.devices", spec.needs.devices_min
    yield "needs.devices", spec.needs.devices_max
    yield "needs.vram_gib", spec.needs.vram_gib
    if spec.mixture is not None:
        yield "mixture.extra_share", spec.mixture.extra_share
    if spec.gate is not None:
        yield "gate.fraction", spec.gate.fraction
    if spec.share is not None:
        yield "share.percent", spec.share.percent
    if spec.not_before is not None:
        yield "not_before", spec.not_before
    if spec.deadline is not None:
        yield "deadline", spec.deadline
