"""Common parts of the settings model: the base class, field types, and functions that walk through tables."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Annotated, Any, Self, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, model_validator

from jobs.duration import parse_instant
from jobs.nouns.values import NUMBER, Before, Bounds, Rule, key_of, refuse

YEAR_3000 = 32_503_680_000


class Section(BaseModel):
    """One table of a file. Unknown keys are refused; a key is the field's name without ``_seconds``.

    ``contradictions`` yields the rules between its fields; a rule that applies is an error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=key_of, hide_input_in_errors=True)

    def contradictions(self) -> Iterable[Rule]:
        """Yield the rules between fields; by default there are none."""
        return ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        refuse(*self.contradictions())
        return self


def keys_of(table: Any) -> dict[str, tuple[str, Any]]:
    """Return the keys of a table type, each with the name of its field and its annotation."""
    if issubclass(table, BaseModel):
        return {field.alias or name: (name, field.annotation) for name, field in table.model_fields.items()}
    hints = get_type_hints(table, include_extras=True)
    return {key_of(each.name): (each.name, hints[each.name]) for each in fields(table)}


def table_in(annotation: Any) -> Any:
    """Return the table type that an annotation such as ``tuple[Pool, ...]`` contains, or None."""
    kind = getattr(annotation, "form", annotation)
    if isinstance(kind, type) and (issubclass(kind, BaseModel) or hasattr(kind, "__pydantic_config__")):
        return kind
    return next((table for part in get_args(annotation) if (table := table_in(part))), None)


Instant = Annotated[int, Before(parse_instant)]
ClockScale = Annotated[float, Bounds(ge=1e-9, le=1_000_000, allow_inf_nan=False), NUMBER]
UnixSeconds = Annotated[float, Bounds(ge=0, lt=YEAR_3000, allow_inf_nan=False), NUMBER]
Fraction = Annotated[float, Bounds(ge=0, lt=1), NUMBER]
