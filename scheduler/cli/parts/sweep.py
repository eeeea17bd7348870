"""Sweeps: a family of jobs from lists of values, one job for each combination."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from scheduler.cli.shell.exits import UsageFault

JOBS_MAX = 200  # of one sweep; more is a slip of the hand
_NAME_MAX = 40
_KEY = re.compile(r"[A-Za-z_][\w.-]*", re.ASCII)
_SPAN = re.compile(r"(-?\d+)\.\.(-?\d+)", re.ASCII)


def combinations(sweeps: Sequence[str]) -> list[dict[str, str]]:
    """Return each combination of ``KEY=A,B,C`` and ``KEY=FIRST..LAST``, the last key changing fastest.

    One empty combination when nothing is swept. Raises UsageFault.
    """
    axes: dict[str, list[str]] = {}
    for words in sweeps:
        key, _, text = words.partition("=")
        if not _KEY.fullmatch(key) or key in axes:
            why = "it is given twice" if key in axes else "it has a name and values"
            raise UsageFault(f"--sweep {words} cannot be read", why, "Write it like lr=1e-5,3e-5 or seed=0..2")
        axes[key] = _values(words, text)
    if prod(map(len, axes.values())) > JOBS_MAX:
        raise UsageFault(
            "so large a sweep", f"it would be more than {JOBS_MAX} jobs", "Give fewer values, or several sweeps"
        )
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*axes.values())]


def name_of(prefix: str, chosen: dict[str, str], number: int) -> str:
    """Return the name of one job of a family: what it was given, or its number where that is too long."""
    told = "-".join(re.sub(r"[^a-z0-9.]+", "-", f"{key}{value}".lower()).strip("-.") for key, value in chosen.items())
    name = f"{prefix}-{told}"
    return name if told and len(name) <= _NAME_MAX else f"{prefix[: _NAME_MAX - 4]}-{number:03d}"


def _values(words: str, text: str) -> list[str]:
    if span := _SPAN.fullmatch(text):
        first, last = int(span[1]), int(span[2])
        if 0 <= last - first < JOBS_MAX:
            return [str(value) for value in range(first, last + 1)]
        raise UsageFault(f"--sweep {words} cannot be read", "its numbers do not go up, or too far", "Write seed=0..2")
    values = text.split(",")
    if not all(value.strip() for value in values) or len(set(values)) < len(values):
        raise UsageFault(f"--sweep {words} cannot be read", "a value is empty, or given twice", "Write lr=1e-5,3e-5")
    return values
