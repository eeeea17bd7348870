"""Reasons: why a job waits, as data for CLI, logs, reports and pages. Of the classes that apply, the first counts."""

from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from math import floor, log10
from typing import Any, ClassVar, Self
from zoneinfo import ZoneInfo

from jobs.size import counted

_SHOWN_SHARE = 0.005  # a smaller share is displayed as 0 %


@dataclass(frozen=True, slots=True)
class Reason:
    """Base of all reasons: ``code`` is stable for machines, :meth:`sentence` is for people.

    ``words`` is the format string of a sentence without instants; its argument ``0`` is the reason. ``planned_start``
    and ``planned_pool`` are the job's first session in the plan. For a job without one, ``unplanned_until`` is the end
    of the plan's horizon. Neither is set for a reason that only a person can resolve.
    """

    code: ClassVar[str] = ""
    words: ClassVar[str]
    planned_pool: str = field(default="", kw_only=True)
    planned_start: int | None = field(default=None, kw_only=True)
    unplanned_until: int | None = field(default=None, kw_only=True)

    def sentence(self, zone: str = "UTC") -> str:
        """Return one sentence with instants in ``zone``; it ends with where and when the job is planned."""
        where = f"; planned on {self.planned_pool} at" if self.planned_pool else "; planned"
        later = _when("; cannot be planned before", self.unplanned_until, zone)
        return self.text(zone) + (_when(where, self.planned_start, zone) or later)

    def text(self, zone: str = "UTC") -> str:
        """Return why the job does not start now, and until when."""
        del zone
        return self.words.format(self)

    def to_json(self) -> dict[str, Any]:
        """Return the code, the fields and the sentence in UTC; empty optional fields are left out."""
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in ("planned_pool", "planned_start", "unplanned_until", "no_weight"):
            if name in values and not values[name]:
                del values[name]
        return {"code": self.code, **values, "sentence": self.sentence()}


@dataclass(frozen=True, slots=True)
class HeldByPerson(Reason):
    """The job is on hold, by a person or because a platform refuses it permanently."""

    code: ClassVar[str] = "held"
    by: str
    why: str

    def text(self, _zone: str = "UTC") -> str:
        return f"held by {self.by}: {self.why}" if self.why else f"held by {self.by}"


@dataclass(frozen=True, slots=True)
class BadDefinition(Reason):
    """Numbers in the job's definition are invalid; an older version accepted them, and a person has to correct them."""

    code: ClassVar[str] = "definition"
    words: ClassVar[str] = "its definition cannot be used: {0.why}. Correct it: schedctl queue edit {0.job}"
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class SecretMissing(Reason):
    """Secrets that the job needs are not available on any pool that it may use.

    ``pool`` is one of these pools, if its sessions receive no secrets; it is empty if the daemon lacks the secrets.
    """

    code: ClassVar[str] = "secret"
    names: str
    pool: str
    why: str
    remedy: str

    def text(self, _zone: str = "UTC") -> str:
        where = f" on {self.pool}" if self.pool else ""
        return f"cannot be given {self.names}{where}: {self.why}. {self.remedy}"


@dataclass(frozen=True, slots=True)
class ParentUnusable(Reason):
    """The job starts from a checkpoint of ``parent`` at ``step`` or later, and no such checkpoint is usable."""

    code: ClassVar[str] = "parent"
    words: ClassVar[str] = "waits for another checkpoint of {0.parent} at step {0.step} or later: {0.why}"
    parent: str
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class BudgetSpent(Reason):
    """The budget of the job or its sweep has too few device hours left for a session; reserved hours count as used."""

    code: ClassVar[str] = "budget"
    words: ClassVar[str] = (
        "{0.whose} leaves {0.left_hours:.2f} device hours, less than a session needs. To allow more: schedctl queue "
        "edit {0.job} --set {0.key}=TIME"
    )
    job: str
    sweep: str  # "" for a budget of its own
    left_hours: float

    @property
    def whose(self) -> str:
        """The budget."""
        return f"the budget of its sweep {self.sweep}" if self.sweep else "its budget"

    @property
    def key(self) -> str:
        """The key of the job that sets the budget."""
        return "halving.budget" if self.sweep else "budget"


@dataclass(frozen=True, slots=True)
class CannotLaunch(Reason):
    """The job was planned but could not be launched; plans leave it out until ``until``, and then it is tried again."""

    code: ClassVar[str] = "cannot_launch"
    precondition: "Precondition"
    pool: str
    until: int

    def text(self, zone: str = "UTC") -> str:
        return f"cannot be launched on {self.pool}: {self.precondition.words}{_when('; tried again', self.until, zone)}"


@dataclass(frozen=True, slots=True)
class NotReleased(Reason):
    """The job's earliest start, or the end of its retry delay, is in the future."""

    code: ClassVar[str] = "not_released"
    until: int
    why: str

    def text(self, zone: str = "UTC") -> str:
        return f"{self.why} until {show(self.until, zone)}"


@dataclass(frozen=True, slots=True)
class GateClosed(Reason):
    """The parent has not reached the required progress; ``passes_at`` is when it will by the plan, if known."""

    code: ClassVar[str] = "gate"
    parent: str
    reached: float
    needed: float
    passes_at: int | None = None

    def text(self, zone: str = "UTC") -> str:
        point = f"at {self.needed:.0%}" if self.needed > _SHOWN_SHARE else "to have its first checkpoint"
        return f"waits for {self.parent} {point} (now {self.reached:.1%}{_when(', expected', self.passes_at, zone)})"


@dataclass(frozen=True, slots=True)
class AwaitsVerdict(Reason):
    """The job starts from an accepted version of ``parent``, and no version is accepted.

    ``version`` is the newest version, and ``state`` its state; both are empty if there is no version.
    """

    code: ClassVar[str] = "verdict"
    parent: str
    version: str
    state: str

    def text(self, _zone: str = "UTC") -> str:
        waits = f"waits for an accepted version of {self.parent}"
        if not self.version:
            return f"{waits}; its first version is made when it is done, or now: schedctl models evaluate {self.parent}"
        return f"{waits}; {self.version} is {self.state}: schedctl models show {self.version}"


@dataclass(frozen=True, slots=True)
class NoAllowedPool(Reason):
    """None of the job's allowed pools is configured."""

    code: ClassVar[str] = "no_allowed_pool"
    allowed: tuple[str, ...]

    def text(self, _zone: str = "UTC") -> str:
        return f"none of its allowed pools is configured: {', '.join(self.allowed)}"


@dataclass(frozen=True, slots=True)
class DoesNotFit(Reason):
    """No allowed pool has the memory, devices or number format the job needs."""

    code: ClassVar[str] = "does_not_fit"
    needs: str
    best_offer: str
    advice: str = ""  # what is too large, and the nearest setting that fits

    def text(self, _zone: str = "UTC") -> str:
        text = f"needs {self.needs}; the best pool offers {self.best_offer}"
        return f"{text} ({self.advice})" if self.advice else text


@dataclass(frozen=True, slots=True)
class DeadlineUnreachable(Reason):
    """Even with every hour before the deadline the job cannot finish in time."""

    code: ClassVar[str] = "deadline_unreachable"
    deadline: int
    hours_needed: float
    hours_possible: float

    def text(self, zone: str = "UTC") -> str:
        return (
            f"deadline {show(self.deadline, zone)} is out of reach: needs {self.hours_needed:.1f} h, "
            f"at most {self.hours_possible:.1f} h are possible"
        )


@dataclass(frozen=True, slots=True)
class QuotaEmpty(Reason):
    """A quota of the best pool is used up; ``resets_at`` is when it has hours again, if known."""

    code: ClassVar[str] = "quota_empty"
    pool: str
    quota: str
    resets_at: int | None

    def text(self, zone: str = "UTC") -> str:
        return f"{self.pool}: no {self.quota} left{_when(', room again', self.resets_at, zone)}"


@dataclass(frozen=True, slots=True)
class PoolClosed(Reason):
    """The pool is outside its opening hours, switched off, or paused after its platform refused launches."""

    code: ClassVar[str] = "pool_closed"
    pool: str
    why: str
    until: int | None

    def text(self, zone: str = "UTC") -> str:
        return f"{self.pool}: {self.why}{_when(' until', self.until, zone)}"


@dataclass(frozen=True, slots=True)
class ConcurrencyFull(Reason):
    """The pool runs as many sessions as it allows at once."""

    code: ClassVar[str] = "concurrency"
    pool: str
    sessions: int
    until: int | None

    def text(self, zone: str = "UTC") -> str:
        busy = "its one session is" if self.sessions == 1 else f"all {self.sessions} sessions are"
        return f"{self.pool}: {busy} busy{_when(' until', self.until, zone)}"


@dataclass(frozen=True, slots=True)
class DevicesTaken(Reason):
    """Fewer of the pool's ``devices`` are free than the job needs."""

    code: ClassVar[str] = "devices"
    pool: str
    needed: int
    devices: int
    until: int | None

    def text(self, zone: str = "UTC") -> str:
        some, state = ("all", "busy") if self.needed == 1 else (f"fewer than {self.needed}", "free")
        until = _when(" until", self.until, zone)
        return f"{self.pool}: {some} of its {counted(self.devices, 'device')} {state}{until}"


@dataclass(frozen=True, slots=True)
class LeftoverTooShort(Reason):
    """The remaining time on the pool is too short for set-up, training and the final checkpoint."""

    code: ClassVar[str] = "leftover_too_short"
    pool: str
    seconds: int
    needed: int

    def text(self, _zone: str = "UTC") -> str:
        return f"{self.pool}: {self.seconds / 60:.0f} min left, a useful session needs {self.needed / 60:.0f} min"


@dataclass(frozen=True, slots=True)
class Outbid(Reason):
    """Other jobs use the hours better. ``weight_to_start`` is the priority that would start the job now, if known.

    ``no_weight`` means that no priority would start it, because deadlines or dependencies of other jobs come first.
    ``price`` is the value of a pool hour to the plan; it is not shown to people, who cannot compare it with anything.
    """

    code: ClassVar[str] = "outbid"
    pool: str
    by: str
    price: float | None
    weight_to_start: float | None
    no_weight: bool = False

    def text(self, _zone: str = "UTC") -> str:
        parts = [f"{self.pool} goes to {self.by}"]
        if self.weight_to_start is not None:
            parts.append(f"would start now at priority {weight_rounded_up(self.weight_to_start):.6g}")
        if self.no_weight:
            parts.append("no priority would start it now, because the deadlines of other jobs come first")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NotItsTurn(Reason):
    """The job has had more than its share of the hours that it shares with other jobs; ``by`` goes first.

    ``part`` is its target share of these hours and ``so_far`` the share received so far; live sessions count in full.
    """

    code: ClassVar[str] = "share"
    by: str
    part: float
    so_far: float

    def text(self, _zone: str = "UTC") -> str:
        part, so_far = 100 * self.part, 100 * self.so_far
        return f"{self.by} goes first: {part:.0f} % of their hours are its own, {so_far:.0f} % so far"


def from_json(data: dict[str, Any]) -> Reason:
    """Return the reason of a :meth:`Reason.to_json` document; raises KeyError for a code of a newer version."""
    kind = _BY_CODE[data["code"]]
    values = {name: value for name, value in data.items() if name not in {"code", "sentence"}}
    if kind is NoAllowedPool:
        values["allowed"] = tuple(values["allowed"])
    if kind is CannotLaunch:
        values["precondition"] = Precondition(values["precondition"])
    return kind(**values)


def weight_rounded_up(weight: float) -> float:
    """Return ``weight`` rounded up to three digits: the displayed priority must be high enough to start the job."""
    if weight <= 0:
        return 0.0
    digits = 2 - floor(log10(weight))
    rounded = round(weight, digits)
    return rounded if rounded >= weight else round(rounded + 10.0**-digits, digits)


def _when(words: str, instant: int | None, zone: str) -> str:  # "" for an unknown instant
    return "" if instant is None else f"{words} {show(instant, zone)}"


def show(instant: int, zone: str = "UTC") -> str:
    """Return an instant in UTC seconds as text: ``Sat 21 Nov 14:05 UTC``."""
    return datetime.fromtimestamp(instant, UTC).astimezone(ZoneInfo(zone)).strftime("%a %d %b %H:%M %Z")


# dataclass(slots=True) creates each class twice, so a code has two subclasses; the later one is the complete one.
_BY_CODE: dict[str, type[Reason]] = {kind.code: kind for kind in Reason.__subclasses__()}


# Closure causes: why a pool is closed. Code decides by the cause; sentences are for people only.
class Cause(StrEnum):
    """Why a pool is closed. The values are stored, so they are never renamed."""

    PERSON = "person"
    CREDENTIALS = "credentials"  # the platform cannot be created, or rejects our credentials
    QUOTA_UNREADABLE = "quota_unreadable"
    QUOTA_REFUSED = "quota_refused"  # usage records are unreadable until a person corrects our access
    QUOTA_DENIED = "quota_denied"  # the platform refused a launch for lack of quota
    REFUSED = "refused"  # the platform refused a launch, temporarily
    WRONG_DEVICE = "wrong_device"
    NEVER_BEGAN = "never_began"  # a session ended before its job's command began
    PLANNING = "planning"  # the planner raises an error if the pool is included

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must correct something outside the scheduler; afterwards the pool opens by itself."""
        return self in {Cause.CREDENTIALS, Cause.QUOTA_REFUSED}

    @property
    def of_quota_reading(self) -> bool:
        """Whether the pool opens when its platform's usage records can be read."""
        return self in {Cause.QUOTA_UNREADABLE, Cause.QUOTA_REFUSED}


# Preconditions of a launch: what may be missing when a planned session is due.
class Precondition(StrEnum):
    """What a launch waits for. The values are stored in events and plans, so they are never renamed.

    ``words`` is the end of a sentence; ``comes_by_itself`` is true if the daemon is working on it.
    """

    words: str
    comes_by_itself: bool

    def __new__(cls, name: str, words: str = "", *by_itself: bool) -> Self:
        """Return the member with a stored name."""
        member = str.__new__(cls, name)
        member._value_, member.words, member.comes_by_itself = name, words, any(by_itself)
        return member

    DATA = "data", "its training data is not made yet", True
    INPUTS = "inputs", "its inputs are not in the artifact store yet", True
    PACKAGES = "packages", "its packages are not in the artifact store yet", True
    PLATFORM = "platform", "the platform of the pool is not opened yet", True
    QUOTA_READING = "quota_reading", "the quota of the pool has not been read", True
    PARENT = "parent", "no checkpoint is left that it can start from"
    ROOM = "room", "the pool has less room than was planned"
    BUDGET = "budget", "its budget, or that of its sweep, leaves less than a session needs"
    TIME = "time", "less than half of the planned session was left"
    CLEANING = "cleaning", "old checkpoints of it are being deleted", True
    REQUEST = "request", "a secret or the artifact store failed when the launch was prepared"
