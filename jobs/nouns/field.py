"""Fields of declarations: types that say how a value is written, and markers for what a type cannot say.

pydantic reads the markers where files are read (config/section.py); nothing of it is imported here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from jobs.duration import parse_duration
from jobs.nouns.values import BadValue, one_line, zone


def key_of(name: str) -> str:
    """Return the key by which a file sets a field: its name without the unit, which is written with the value."""
    return name.replace("_seconds", "").replace("_microdollars", "")


TABLE: dict[str, Any] = {"extra": "forbid", "alias_generator": key_of}
"""What pydantic does with a dataclass that is a table of a file: unknown keys are refused."""


@dataclass(frozen=True, slots=True)
class Before:
    """``parse`` returns the value of what was written, for the type to hold against its own rules."""

    parse: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """See pydantic."""
        function = {"type": "no-info", "function": self.parse}
        return {"type": "function-before", "function": function, "schema": handler(source)}


@dataclass(frozen=True, slots=True)
class After:
    """``check`` returns the value that counts. Where the type is never written, ``form`` is what is."""

    check: Callable[[Any], Any]
    form: type | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """See pydantic."""
        function = {"type": "no-info", "function": self.check}
        schema = handler(source) if self.form is None else handler.generate_schema(self.form)
        return {"type": "function-after", "function": function, "schema": schema}


class Bounds:
    """Limits of a number or a text, by pydantic's names for them."""

    def __init__(self, **limits: Any) -> None:
        self.limits = limits

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """See pydantic."""
        return {**handler(source), **self.limits}


def _positive(seconds: int) -> int:
    if seconds <= 0:
        raise BadValue("this must be longer than zero", 'write it like "30s", "90m" or "12h"')
    return seconds


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise BadValue("this is a truth value, not a number", "write a number")
    return value


NUMBER = Before(_no_truth_value)
Seconds = Annotated[int, Before(parse_duration)]
PositiveSeconds = Annotated[Seconds, After(_positive)]
PositiveInt = Annotated[int, Bounds(ge=1, le=1_000_000), NUMBER]
PositiveFloat = Annotated[float, Bounds(ge=0.001, le=1_000_000, allow_inf_nan=False), NUMBER]
ZoneName = Annotated[str, After(zone)]
Line = Annotated[str, After(one_line)]
