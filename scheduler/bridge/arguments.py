"""Arguments: what each verb takes, as the function that answers it declares it. All else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from jobs.problem import UserError
from jobs.ranges import RANGES
from scheduler.web.shapes import Name, Position

_SAID_MAX = 3  # of a request's mistakes
Words = Annotated[str, Field(max_length=500)]
Line = Annotated[str, Field(min_length=1, max_length=4_096)]
Week = Annotated[str, Field(pattern=r"^([0-9]{4}-W[0-9]{2}|this|last)$", description="2026-W47, this or last.")]


class BadRequest(UserError):
    """A request that cannot be understood; nothing was done."""

    def __init__(self, why: str, remedy: str = "The verbs and their arguments: schedctl port --describe") -> None:
        super().__init__(why, remedy=remedy)


class Busy(UserError):
    """Too much was asked at the same time; nothing was done."""

    def __init__(self, why: str) -> None:
        super().__init__(why, remedy="Ask again when earlier requests are answered")


class CommandFailed(Exception):
    """A command of ``schedctl`` refused; ``document`` is its error as ``--json`` has it."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__(str(document.get("message", "")))
        self.document = document


def _weight(value: float) -> float:
    if not RANGES["weight"].holds(value):
        raise ValueError(f"a weight is a number in the range {RANGES['weight']}")
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or "\0" in value:
        raise ValueError("give the whole path, from / on: where this program was started is not where you are")
    return value


Weight = Annotated[float, AfterValidator(_weight)]
Place = Annotated[str, Field(max_length=4_096), AfterValidator(_absolute)]


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
    """Base of all: unknown names and other types are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_nul(cls, value: Any) -> Any:
        if _has_nul(value):
            raise ValueError("a text holds the character NUL, which no name, path or reason has")
        return value


class Nothing(Arguments):
    """No arguments."""


class ReadLog(Arguments):
    """What a run printed from byte ``after`` on."""

    run: Name
    after: Position = 0


class SubscribeEvents(Arguments):
    """Events after the one numbered ``after``; null: from now on."""

    after: Position | None = None
    kinds: Annotated[list[Name], Field(max_length=50)] | None = None
    subject: Name | None = None


class Unsubscribe(Arguments):
    """A subscription by its number."""

    subscription: Position


class Echo(Arguments):
    """Anything; it comes back."""

    data: Any = None


Definition = Annotated[
    dict[str, Any], Field(description="Keys of a job file (docs/cli.md); paths in it from / on.", max_length=100)
]


Fingerprint = Annotated[
    str, Field(pattern=r"^([0-9a-f]{12,64})?$", description="Add only what a dry run with this fingerprint showed.")
]


class AddJob(Arguments):
    """A job as a definition or the whole path of a job file, or all models of the settings that are not queued yet."""

    definition: Definition | None = None
    file: Place | None = None
    models: bool = False
    go_on: Annotated[bool, Field(description="Go on from what a removed job of this name saved.")] = False
    dry_run: bool = False
    expect: Fingerprint = ""


class Submit(Arguments):
    """A script that becomes a job; its speed is never tried here, so say ``steps_per_hour`` if you know it."""

    script: Place
    arguments: Annotated[list[Annotated[str, Field(max_length=4_096)]], Field(max_length=500)] = []
    target_step: Annotated[int, Field(ge=1, le=2**53)] | None = None
    whole: Line | None = None
    name: Name | None = None
    role: Name | None = None
    pools: Annotated[list[Name], Field(max_length=100)] = []
    weight: Weight | None = None
    vram_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None
    steps_per_hour: Annotated[float, Field(gt=0, le=1e12)] | None = None
    sweep: Annotated[list[Line], Field(max_length=20)] = []
    inputs: Annotated[dict[Name, Line], Field(max_length=50)] = {}
    requirements: Place | None = None
    secrets: Annotated[list[Name], Field(max_length=50)] = []
    dry_run: bool = False
    expect: Fingerprint = ""


class Preview(Arguments):
    """What would change: hours of pools (or "down"), weights of jobs, jobs added, a simpler rule. Nothing is stored."""

    pools: Annotated[dict[Name, float | Literal["down"]], Field(max_length=100)] = {}
    weights: Annotated[dict[Name, Weight], Field(max_length=500)] = {}
    add: Annotated[list[Definition], Field(max_length=50)] = []
    policy: Name | None = None


def arguments_of(verb: str, answer: Callable[..., Any]) -> type[Arguments]:
    """Return what a verb takes: the parameters of its ``answer`` behind the first, or the arguments that it names."""
    _, *parameters = signature(answer, eval_str=True).parameters.values()
    for one in parameters:
        if isinstance(one.annotation, type) and issubclass(one.annotation, Arguments):
            return one.annotation
    fields: dict[str, Any] = {
        one.name: (one.annotation, ... if one.default is Parameter.empty else one.default) for one in parameters
    }
    return create_model(verb.title().replace(".", ""), __base__=Arguments, **fields)


def checked(takes: type[Arguments], args: Mapping[str, Any]) -> Any:
    """Return what was given as ``takes``. Raises BadRequest, which says what is wrong, and shows no value."""
    try:
        return takes.model_validate(args)
    except ValidationError as error:
        mistakes = [
            f"{'.'.join(map(str, one['loc'])) or 'args'}: {one['msg']}" for one in error.errors(include_url=False)
        ]
        raise BadRequest("; ".join(mistakes[:_SAID_MAX])) from None
