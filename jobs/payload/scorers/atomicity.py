"""Component atomicity: how far a piece of code is one small thing. A static measure, from 0 to 1; docs/gates.md has it.

The score is a weighted mean of five parts, each 1 up to what is fine and falling evenly to 0 at what is too much.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .given import ScorerInput
from .items import Item, ScoreLine, code_in

METRIC = "component_atomicity"
CODE_BYTES_MAX = 1 << 20


class Unparsed(ValueError):
    """Code that cannot be read: worth 0, never a part of it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What is counted of a component, whatever its language.

    ``entries`` are public functions and classes (in Elixir, functions of the public API), ``lines`` of code without
    comments, ``complexity`` that of its most complex function, ``effects`` the calls by which it touches the outside.
    """

    entries: int
    lines: int
    complexity: int
    effects: int
    imports: int


# Part: weight, and from where to where it falls.
PARTS = {
    "entries": (0.30, 1, 5),
    "lines": (0.20, 80, 400),
    "complexity": (0.20, 10, 30),
    "effects": (0.20, 0, 5),
    "imports": (0.10, 6, 18),
}


def atomicity(measured: Measured) -> float:
    """Return the score of a component; one without any public entry is nothing that could be used."""
    if not measured.entries:
        return 0.0
    total = 0.0
    for part, (weight, fine, too_much) in PARTS.items():
        excess = (getattr(measured, part) - fine) / (too_much - fine)
        total += weight * (1 - min(1.0, max(0.0, excess)))
    return round(total, 9)


def measure(code: str, language: str) -> Measured:
    """Return what is counted of code. Raises Unparsed, and NotGiven when the parser of its language is missing."""
    if len(code.encode(errors="replace")) > CODE_BYTES_MAX:
        raise Unparsed(f"more than {CODE_BYTES_MAX:,} bytes")
    if language == "elixir":
        from .elixir_code import measure_elixir

        return measure_elixir(code)
    from .python_code import measure_python

    return measure_python(code)


def score(items: Sequence[Item], candidate: ScorerInput, metric: str) -> Iterator[ScoreLine]:
    """Score each item's first output; ``language`` of the item is python or elixir."""
    for item in items:
        try:
            measured = measure(code_in(candidate.texts(item.id)[0]), str(item.task.get("language", "python")))
        except Unparsed as error:
            yield ScoreLine(item.id, item.cluster, metric, 0.0, str(error))
            continue
        listing = ", ".join(f"{part} {getattr(measured, part)}" for part in PARTS)
        yield ScoreLine(item.id, item.cluster, metric, atomicity(measured), listing)
