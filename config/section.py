"""What all parts of the settings model share: the base class and the field types."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from config.values import BadValue, one_line, zone
from jobs.duration import parse_duration
from jobs.instant import parse_instant

YEAR_3000 = 32_503_680_000


class Section(BaseModel):
    """One table of a file. Unknown keys are refused; a key is the field's name without ``_seconds``."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=lambda name: name.removesuffix("_seconds"),
        hide_input_in_errors=True,
    )


def _positive(seconds: int) -> int:
    if seconds <= 0:
        raise BadValue("this must be longer than zero", 'write it like "30s", "90m" or "12h"')
    return seconds


def _no_truth_value(value: Any) -> Any:
    if isinstance(value, bool):
        raise BadValue("this is a truth value, not a number", "write a number")
    return value


def at_most(longest: str) -> AfterValidator:
    """Bound a duration: a longer one is a mistake, and no timer, date or plan could hold it."""
    seconds = parse_duration(longest)

    def check(value: int) -> int:
        if value > seconds:
            raise BadValue("this is too long", f"write at most {longest}")
        return value

    return AfterValidator(check)


Seconds = Annotated[int, BeforeValidator(parse_duration)]
PositiveSeconds = Annotated[Seconds, AfterValidator(_positive)]
Instant = Annotated[int, BeforeValidator(parse_instant)]
PositiveInt = Annotated[int, BeforeValidator(_no_truth_value), Field(ge=1, le=1_000_000)]
PositiveFloat = Annotated[float, BeforeValidator(_no_truth_value), Field(ge=0.001, le=1_000_000, allow_inf_nan=False)]
ClockScale = Annotated[float, BeforeValidator(_no_truth_value), Field(ge=1e-9, le=1_000_000, allow_inf_nan=False)]
UnixSeconds = Annotated[float, BeforeValidator(_no_truth_value), Field(ge=0, lt=YEAR_3000, allow_inf_nan=False)]
Fraction = Annotated[float, BeforeValidator(_no_truth_value), Field(ge=0, lt=1)]
ZoneName = Annotated[str, AfterValidator(zone)]
Line = Annotated[str, AfterValidator(one_line)]
