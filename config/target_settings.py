"""Targets as people declare them: where served models live, which ones, and who goes first."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from config.section import PositiveSeconds, Section, at_most
from config.values import BadValue
from jobs.problem import did_you_mean

_OPTION_MAX_CHARACTERS = 4_000
_ALL = "*"
# What each kind cannot be without; the adapter knows the rest and says more (platforms/targets).
_REQUIRED = {
    "directory": ("path",),
    "ssh": ("host", "path"),
    "s3": ("bucket", "region"),
    "vllm": ("url", "base", "path"),
}

ModelName = Annotated[str, Field(pattern=r"^(\*|[a-z0-9][a-z0-9._-]{0,39})$")]


class TargetSettings(Section):
    """One place that serves models. Adapters read ``options``; nothing else does.

    ``models`` are those that it serves, ``*`` for all. ``automatic`` deploys what is promoted. Where several wait,
    ``first`` goes before the others, which follow one by one once it has served for ``watch``.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$")
    kind: Literal["directory", "ssh", "s3", "vllm"]
    models: tuple[ModelName, ...] = Field(default=(_ALL,), min_length=1)
    automatic: bool = False
    first: str = ""
    watch_seconds: Annotated[PositiveSeconds, at_most("30d")] = 3_600
    options: dict[str, str] = Field(default_factory=dict, validate_default=True)

    @field_validator("first")
    @classmethod
    def _first_is_served(cls, first: str, info: ValidationInfo) -> str:
        models = info.data.get("models", (_ALL,))
        if first and first not in models and _ALL not in models:
            raise BadValue(f"{first} is none of the models of this target", did_you_mean(first, models))
        return first

    @field_validator("options")
    @classmethod
    def _what_it_cannot_be_without(cls, options: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        kind = info.data.get("kind", "")
        missing = [name for name in _REQUIRED.get(kind, ()) if not options.get(name)]
        if missing:
            raise BadValue(f"a target of kind {kind} needs the option {missing[0]}", "see docs/deployment.md")
        if long := [name for name, value in options.items() if len(value) > _OPTION_MAX_CHARACTERS]:
            raise BadValue(f"the option {long[0]} is too long", "put the command into a script there, and name that")
        return options

    def serves(self, model: str) -> bool:
        """Tell whether a model is served here."""
        return model in self.models or _ALL in self.models
