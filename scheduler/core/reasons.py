"""Reasons: why a job waits, as data for the CLI, logs, reports and pages.

A job has one reason: the first that applies, in the order of the classes below.
"""

from __future__ import annotations

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

    ``words`` is the format string of a sentence without instants; ``0`` is the reason. ``planned_start`` and
    ``planned_pool`` are the job's first session in the plan. If it has none, ``unplanned_until`` is the end of its
    horizon. Neither is set for a reason that only a person can resolve.
    """

    code: ClassVar[str] = ""
    words: ClassVar[str]
    planned_pool: str = field(default="", kw_only=True)
    planned_start: int | None = field(default=None, kw_only=True)
    unplanned_until: int | None = field(default=None, kw_only=True)

    def sentence(self, zone: str = "UTC") -> str:
        """Return one sentence; instants are shown in ``zone``. It ends with where and when the job is planned."""
        where = f"; planned on {self.planned_pool} at" if self.planned_pool else "; planned"
        later = _when("; cannot be planned before", self.unplanned_until, zone)
        return self.text(zone) + (_when(where, self.planned_start, zone) or later)

    def text(self, zone: str = "UTC") -> str:
        """Return what keeps the job from starting now, and when that changes."""
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
    """A person, or a platform that refuses it for good, holds the job."""

    code: ClassVar[str] = "held"
    by: str
    why: str

    def text(self, _zone: str = "UTC") -> str:
        return f"held by {self.by}: {self.why}" if self.why else f"held by {self.by}"


@dataclass(frozen=True, slots=True)
class BadDefinition(Reason):
    """Numbers of the definition make no sense; an older version let them in, and a person has to correct them."""

    code: ClassVar[str] = "definition"
    words: ClassVar[str] = "its definition cannot be used: {0.why}. Correct it: schedctl queue edit {0.job}"
    job: str
    why: str


@dataclass(frozen=True, slots=True)
class SecretMissing(Reason):
    """Secrets that the job names cannot be given to it on any pool that it may use.

    ``pool`` is one of these, whose sessions get none; empty when it is the daemon that does not have them.
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
    """The job starts from a checkpoint of ``parent`` at ``step`` or later, and none is left that it can start from."""

    code: ClassVar[str] = "parent"
    words: ClassVar[str] = "waits for another checkpoint of {0.parent} at step {0.step} or later: {0.why}"
    parent: str
    step: int
    why: str


@dataclass(frozen=True, slots=True)
class BudgetSpent(Reason):
    """The budget of the job or its sweep, in device hours, leaves no useful session; what sessions hold counts."""

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
    """Plans placed the job, and it could not be launched; they leave it out until ``until``, then it is tried again."""

    code: ClassVar[str] = "cannot_launch"
    precondition: Precondition
    pool: str
    until: int

    def text(self, zone: str = "UTC") -> str:
        return f"cannot be launched on {self.pool}: {self.precondition.words}{_when('; tried again', self.until, zone)}"


@dataclass(frozen=True, slots=True)
class NotReleased(Reason):
    """The job's earliest start, or its retry delay, lies ahead."""

    code: ClassVar[str] = "not_released"
    until: int
    why: str

    def text(self, zone: str = "UTC") -> str:
        return f"{self.why} until {show(self.until, zone)}"


@dataclass(frozen=True, slots=True)
class GateClosed(Reason):
    """The parent's checkpointed progress is below the gate; ``passes_at`` is the plan's estimate, if any."""

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
    """The job starts from an accepted version of ``parent``, which has none.

    ``version`` is the newest there is, in ``state``; both are empty while there is none at all.
    """

    code: ClassVar[str] = "verdict"
    parent: str
    version: str
    state: str

    def text(self, _zone: str = "UTC") -> str:
        waits = f"waits for an accepted version of {self.parent}"
        if not self.version:
            return (
                f"{waits}; it has none yet, one is made when it is done, or now: schedctl models evaluate {self.parent}"
            )
        return f"{waits}; {self.version} is {self.state}: schedctl models show {self.version}"


@dataclass(frozen=True, slots=True)
class NoAllowedPool(Reason):
    """No configured pool is in the job's list of allowed pools."""

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
    """The best pool has no room in a quota window; ``resets_at`` is when it has again, if known."""

    code: ClassVar[str] = "quota_empty"
    pool: str
    quota: str
    resets_at: int | None

    def text(self, zone: str = "UTC") -> str:
        return f"{self.pool}: no {self.quota} left{_when(', room again', self.resets_at, zone)}"


@dataclass(frozen=True, slots=True)
class PoolClosed(Reason):
    """The pool is outside its hours, switched off, or backs off after refusals."""

    code: ClassVar[str] = "pool_closed"
    pool: str
    why: str
    until: int | None

    def text(self, zone: str = "UTC") -> str:
        return f"{self.pool}: {self.why}{_when(' until', self.until, zone)}"


@dataclass(frozen=True, slots=True)
class ConcurrencyFull(Reason):
    """All sessions the pool allows at once are running."""

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
    """The rest of the window is too short for set-up, training and the final checkpoint."""

    code: ClassVar[str] = "leftover_too_short"
    pool: str
    seconds: int
    needed: int

    def text(self, _zone: str = "UTC") -> str:
        return f"{self.pool}: {self.seconds / 60:.0f} min left, a useful session needs {self.needed / 60:.0f} min"


@dataclass(frozen=True, slots=True)
class Outbid(Reason):
    """Other jobs make more of the hours. ``weight_to_start`` is the weight that would start the job now, if known.

    ``no_weight`` is set when it was sought and none does: deadlines or gates of others come first, whatever it weighs.
    ``price`` is what an hour of the pool is worth to the plan; people are not shown it, since they cannot compare it.
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
            parts.append(f"would start now at weight {weight_rounded_up(self.weight_to_start):.6g}")
        if self.no_weight:
            parts.append("no weight would start it now, others come first by their deadlines")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class NotItsTurn(Reason):
    """Of the hours that it shares with others the job has had more than its part; ``by`` goes first.

    ``part`` and ``so_far`` are parts of the hours of all of them, the live sessions' in full.
    """

    code: ClassVar[str] = "share"
    by: str
    part: float
    so_far: float

    def text(self, _zone: str = "UTC") -> str:
        part, so_far = 100 * self.part, 100 * self.so_far
        return f"{self.by} goes first: {part:.0f} % of their hours are its own, {so_far:.0f} % so far"


def from_json(data: dict[str, Any]) -> Reason:
    """Rebuild a reason from :meth:`Reason.to_json`; raises KeyError for a code of a newer version."""
    kind = _BY_CODE[data["code"]]
    fields = {name: value for name, value in data.items() if name not in {"code", "sentence"}}
    if kind is NoAllowedPool:
        fields["allowed"] = tuple(fields["allowed"])
    if kind is CannotLaunch:
        fields["precondition"] = Precondition(fields["precondition"])
    return kind(**fields)


def weight_rounded_up(weight: float) -> float:
    """Return ``weight`` in three digits, never lower than it was: a weight told to people must be enough."""
    if weight <= 0:
        return 0.0
    digits = 2 - floor(log10(weight))
    rounded = round(weight, digits)
    return rounded if rounded >= weight else round(rounded + 10.0**-digits, digits)


def _when(words: str, instant: int | None, zone: str) -> str:
    return "" if instant is None else f"{words} {show(instant, zone)}"


def show(instant: int, zone: str = "UTC") -> str:
    """Return an instant as people read it: ``Sat 21 Nov 14:05 UTC``."""
    return datetime.fromtimestamp(instant, UTC).astimezone(ZoneInfo(zone)).strftime("%a %d %b %H:%M %Z")


# Slots have each class made twice: the later one counts.
_BY_CODE: dict[str, type[Reason]] = {kind.code: kind for kind in Reason.__subclasses__()}


# Closure causes: why a pool is closed. Code decides by the cause; sentences are for people only.
class Cause(StrEnum):
    """Why a pool is closed. A stored value is never renamed."""

    PERSON = "person"
    CREDENTIALS = "credentials"  # the platform cannot be created, or rejects our credentials
    QUOTA_UNREADABLE = "quota_unreadable"
    QUOTA_REFUSED = "quota_refused"  # unreadable until a person corrects our access
    QUOTA_DENIED = "quota_denied"  # the platform refused a launch for lack of quota
    REFUSED = "refused"  # the platform refused a launch for now
    WRONG_DEVICE = "wrong_device"
    NEVER_BEGAN = "never_began"  # a session ended before its job's command began
    PLANNING = "planning"  # the planner fails with the pool

    @property
    def waits_for_person(self) -> bool:
        """Whether a person must correct something outside; the pool then opens by itself."""
        return self in {Cause.CREDENTIALS, Cause.QUOTA_REFUSED}

    @property
    def of_quota_reading(self) -> bool:
        """Whether the pool opens when its platform's usage records can be read."""
        return self in {Cause.QUOTA_UNREADABLE, Cause.QUOTA_REFUSED}


# Preconditions of a launch: what may be missing when a planned session is due.
class Precondition(StrEnum):
    """What a launch waits for. A value in an event or a plan is never renamed.

    ``words`` is the end of a sentence; ``comes_by_itself`` says whether the daemon's own work will meet it.
    """

    words: str
    comes_by_itself: bool

    def __new__(cls, name: str, words: str = "", *by_itself: bool) -> Self:
        """Return the member of a stored name."""
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
