"""Validation of a verb's arguments. The rules come from the signature of the function that answers the verb."""

from collections.abc import Mapping
from inspect import Parameter
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from jobs.definition import RANGES
from jobs.problem import UserError

_MISTAKES_SHOWN = 3  # of a request
PAGE_ROWS = 50  # of a list, unless the request sets a number


class BadRequest(UserError):
    """The request is invalid; nothing was done."""

    def __init__(self, why: str, remedy: str = "The verbs and their arguments: schedctl port --describe") -> None:
        super().__init__(why, remedy=remedy)


class Busy(UserError):
    """Too many requests at the same time; nothing was done."""

    def __init__(self, why: str) -> None:
        super().__init__(why, remedy="Ask again when earlier requests are answered")


class CommandFailed(Exception):
    """A command of ``schedctl`` failed; ``document`` is its error as ``--json`` prints it."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("message", "")))
        self.document = document


def _weight(value: float) -> float:
    if not RANGES["priority"].holds(value):
        raise ValueError(f"a weight is a number in the range {RANGES['priority']}")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("the path must be absolute and start with /, since this program may run in another folder")
    return value


Page = Annotated[int, Field(ge=1, le=1_000_000, description="From 1.")]
Rows = Annotated[int, Field(ge=1, le=500, description="How many entries a page holds.")]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Names = Annotated[list[Name], Field(max_length=50)]
Text = Annotated[str, Field(max_length=200)]
Words = Annotated[str, Field(max_length=500)]
Line = Annotated[str, Field(min_length=1, max_length=4_096)]
Position = Annotated[int, Field(ge=0, le=2**53)]
Instant = Annotated[int, Field(ge=0, le=253_402_300_799)]  # to the end of the year 9999
JobState = Literal["queued", "active", "held", "done", "failed", "cancelled"]
Week = Annotated[str, Field(pattern=r"^([0-9]{4}-W[0-9]{2}|this|last)$", description="2026-W47, this or last.")]
Day = Annotated[str, Field(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="First of seven days, 2026-11-16.")]
Channel = Annotated[str, Field(min_length=1, max_length=100, description="As `/reports` names it: email, slack ...")]
Weight = Annotated[float, AfterValidator(_weight)]
Hours = Annotated[float, Field(gt=0, le=10_000, allow_inf_nan=False, description="Of training, at the job's speed.")]
Place = Annotated[str, Field(max_length=4_096), AfterValidator(_absolute)]
Definition = Annotated[
    dict[str, Any], Field(description="Keys of a job file (docs/cli.md); paths in it from / on.", max_length=100)
]
Fingerprint = Annotated[
    str, Field(pattern=r"^([0-9a-f]{12,64})?$", description="Add only what a dry run with this fingerprint showed.")
]


def _has_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case dict():
            return any(_has_nul(part) for item in value.items() for part in item)
        case list():
            return any(map(_has_nul, value))
    return False


class Arguments(BaseModel):
    """Base class of all argument models. Arguments with an unknown name or a wrong type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_nul(cls, value: Any) -> Any:
        if _has_nul(value):
            raise ValueError("a text has the character NUL, which is not allowed in names, paths and reasons")
        return value


def alias_of(parameter: str) -> str:
    """Return the public name of a parameter: ``from`` for ``from_``, which has ``_`` because of the Python keyword."""
    return parameter.removesuffix("_")


def arguments_of(verb: str, parameters: Mapping[str, Parameter]) -> type[Arguments]:
    """Return the argument model of a verb, from the parameters of the function that answers."""
    fields: dict[str, Any] = {
        name: (one.annotation, Field(... if one.default is Parameter.empty else one.default, alias=alias_of(name)))
        for name, one in parameters.items()
    }
    return create_model(verb.title().replace(".", ""), __base__=Arguments, **fields)


def checked(takes: type[Arguments], args: Mapping[str, Any], *, texts: bool = False) -> Any:
    """Return validated arguments; with ``texts`` all values are texts, as a form sends them.

    Raises BadRequest, whose message never contains the values.
    """
    try:
        return takes.model_validate_strings(args, strict=False) if texts else takes.model_validate(args)
    except ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, one['loc'])) or 'args'}: {one['msg']}" for one in error.errors(include_url=False)
        ]
        raise BadRequest("; ".join(mistakes[:_MISTAKES_SHOWN])) from None
