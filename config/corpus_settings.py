"""What the models learn from, and what people know of their texts."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from config.section import Fraction, PositiveSeconds, Section, at_most
from config.values import BadValue


def _text(value: object) -> object:
    """Rows are compared as text, whatever type a key has there."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class RuleSettings(Section):
    """Texts that a rule fits get a stage, domains, or both; docs/corpus.md has what each key means."""

    path: str | None = Field(default=None, min_length=1)
    key: str | None = Field(default=None, min_length=1)
    equals: Annotated[str | None, BeforeValidator(_text)] = None
    command: tuple[str, ...] = ()
    stage: str | None = None
    domains: tuple[str, ...] | None = None
    limit_seconds: Annotated[PositiveSeconds, at_most("7d")] = 3_600

    @model_validator(mode="after")
    def _says_something(self) -> RuleSettings:
        from jobs.corpus.errors import BadParameter  # only where there are rules: it loads all that builds a corpus
        from jobs.corpus.options import Rule

        try:
            Rule(**dict(self))
        except BadParameter as error:
            name, allowed = ("this rule", error.allowed) if error.name == "rule" else (error.name, error.allowed)
            raise BadValue(f"{name} must be {allowed}", "docs/corpus.md has examples") from None
        return self


class CorpusSettings(Section):
    """What the models learn from, and how much of it is kept to measure them."""

    sources: tuple[str, ...] = ()
    max_bytes: Annotated[int, Field(ge=1, le=1 << 50)]
    held_out_fraction: Fraction
    held_out_clusters: Annotated[int, Field(ge=0, le=1_000_000)]
    rules: tuple[RuleSettings, ...] = ()
