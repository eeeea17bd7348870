"""Arguments: what each verb takes. Whatever is not named here is refused, and nothing is guessed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from jobs.ranges import RANGES

Name = Annotated[str, Field(min_length=1, max_length=200)]
Words = Annotated[str, Field(max_length=500)]
Line = Annotated[str, Field(min_length=1, max_length=4_096)]
Page = Annotated[int, Field(ge=1, le=1_000_000)]
Rows = Annotated[int, Field(ge=1, le=500)]
Position = Annotated[int, Field(ge=0, le=2**53)]
Week = Annotated[str, Field(pattern=r"^([0-9]{4}-W[0-9]{2}|this|last)$", description="2026-W47, this or last.")]
State = Literal["queued", "active", "held", "done", "failed", "cancelled"]


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
    def _refuse_nul(cls, given: Any) -> Any:
        if _has_nul(given):
            raise ValueError("a text holds the character NUL, which no name, path or reason has")
        return given


class Nothing(Arguments):
    """No arguments."""


class QueueList(Arguments):
    """A page of the queue."""

    page: Page = 1
    rows: Rows = 50
    state: State | None = None
    name: Annotated[str, Field(max_length=200, description="A part of the names.")] = ""


class OneJob(Arguments):
    """A job by its name."""

    job: Name


class Hold(OneJob):
    """A job, and why it is held."""

    why: Words = ""


class Priority(OneJob):
    """A job, and what one hour of it is worth; others have 1."""

    weight: Weight


class RunsList(Arguments):
    """A page of the runs, newest first."""

    page: Page = 1
    rows: Rows = 50
    pool: Name | None = None
    job: Name | None = None


class OneRun(Arguments):
    """A run by its launch key."""

    run: Name


class StopRun(OneRun):
    """A run, and why it is stopped."""

    why: Words = ""


class ReadLog(OneRun):
    """What a run printed from byte ``after`` on."""

    after: Position = 0


class OneVersion(Arguments):
    """A version, such as ``ufm@3``."""

    version: Name


class Since(Arguments):
    """The plan before the newest, or that in force at ``since`` (UTC seconds)."""

    since: Annotated[int, Field(ge=0, le=253_402_300_799)] | None = None


class ReportWeek(Arguments):
    """A week; the last one that is over unless another is named."""

    week: Week = "last"


class EventsList(Arguments):
    """Events after the one numbered ``after``, oldest first; of some kinds or of one subject if asked."""

    after: Position = 0
    limit: Annotated[int, Field(ge=1, le=500)] = 200
    kinds: Annotated[list[Name], Field(max_length=50)] | None = None
    subject: Name | None = None


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


class Promote(OneVersion):
    """An accepted version to put in force, and why."""

    reason: Words = ""


class Deploy(Promote):
    """A version or a model to bring to a target."""

    target: Name
    dry_run: bool = False


class SyncTarget(Arguments):
    """A target to bring to what is in force."""

    target: Name
    dry_run: bool = False
