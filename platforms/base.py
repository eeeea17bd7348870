"""The interface of a platform adapter, whose docstrings are the contract, and the errors that adapters raise.

Errors::

    PlatformError            base; carries platform, action and what to do next
      Refused                nothing was started; ``wait_until`` or ``permanent`` says whether a retry can help
      Unreachable            no reliable answer; a launch may have started a session
      Misconfigured          credentials, names or versions are wrong; a person must act
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from jobs.problem import UserError

if TYPE_CHECKING:
    from jobs.payload.store.tree import Entry
    from platforms.artifacts.base import BlobStore

_SKEW_SECONDS = 60  # largest difference of two clocks at which their times are comparable


class PlatformError(UserError):
    """Base of all platform errors. ``remedy`` is the next thing to try, in one sentence."""

    def __init__(self, platform: str, action: str, why: str, remedy: str = "") -> None:
        super().__init__(f"{platform}: {action} failed", why, remedy)
        self.platform = platform
        self.action = action


class Refused(PlatformError):
    """The platform refused, and nothing was started.

    ``wait_until`` (UTC seconds) closes the pool until then; ``permanent`` means that a retry cannot succeed.
    ``used_up``: the platform reports a quota as used up, until ``wait_until`` unless its usage records say otherwise.
    """

    def __init__(
        self,
        platform: str,
        action: str,
        why: str,
        remedy: str = "",
        *,
        wait_until: int | None = None,
        permanent: bool = False,
        used_up: bool = False,
    ) -> None:
        super().__init__(platform, action, why, remedy)
        self.wait_until = wait_until
        self.permanent = permanent
        self.used_up = used_up


class Unreachable(PlatformError):
    """No reliable answer: timeout, broken connection, server error. A launch may or may not have happened."""


class Unfinished(Unreachable):
    """The action is in progress: call again. No retry limit applies while it makes progress."""


class Misconfigured(PlatformError):
    """A person must act: credentials, a missing program, a wrong name."""


class BadOption(Misconfigured):
    """The value of a pool's option is not valid, wherever the option was read."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of an adapter as data. Callers check these, never the type or name of an adapter."""

    reports_quota: bool = False  # read_quota returns the usage that the platform reports
    tails_logs: bool = False  # logs can be read while the session runs
    sees_stop_flag: bool = True  # every session reads the store's stop flag; if False, see Observed.stop_channel
    takes_orders: bool = False  # a session whose job ended can get another job through the artifact store
    needs_person: bool = False  # a session runs only after a person starts it
    finds_orphans: bool = False  # orphans() finds sessions of ours that are not in our ledger
    tells_price: bool = False  # read_quota may also return the price of an hour
    bills_late: bool = False  # the times of an ended session may still change for a while
    device_counts: bool = False  # a launch may choose the number of its devices
    internet: bool = True  # sessions reach the internet by themselves
    mounts: frozenset[str] = frozenset()  # kinds of inputs that the platform stores and mounts into sessions
    visibility_seconds: int = 0  # a launched key may be missing from find() for this long


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch.

    ``key`` is the name on the platform. ``launch`` is the document for the runner (the launch contract, plain JSON
    types, without ``work_dir``). ``deadline`` (UTC seconds) is when the platform itself must end the session, the
    second of three independent stops. ``bundle`` is the folder that contains the payload package. ``secrets`` maps
    names to values, empty if sessions fetch them: they go only into the session's environment, never into a file of
    this machine, an argument, a log or an error.
    """

    key: str
    pool: str
    devices: int
    deadline: int
    launch: Mapping[str, Any]
    bundle: str
    options: Mapping[str, str]
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class SessionState(StrEnum):
    """The state of one session on a platform. A missing answer is not a state: the adapter raises Unreachable."""

    QUEUED = "queued"  # accepted, not billed yet
    RUNNING = "running"
    ENDED = "ended"  # terminal, with proof
    ABSENT = "absent"  # the platform proves that the key was never started and never will be
    UNCLEAR = "unclear"  # unknown for this session only (``detail`` says why); the other sessions' states are valid


class StopChannel(StrEnum):
    """How a session can be asked to save and exit."""

    STORE = "store"  # it polls the stop flag in the artifact store
    PLATFORM = "platform"  # stop(force=False) reaches it
    NONE = "none"  # it cannot be asked: ending it by force loses what it has not uploaded


@dataclass(frozen=True, slots=True)
class InQueue:
    """A session in the platform's queue: why it waits, and the expected start (UTC seconds; None: not reported).

    ``place`` is its position in the queue, 1 for the next to start. If extend() can change the deadline, ``deadline``
    is the current deadline and ``length_seconds`` the longest run. Both are None if the launch's deadline is final.
    """

    why: str
    starts_at: int | None = None
    place: int | None = None
    length_seconds: int | None = None
    deadline: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """One session as the platform reports it. Times are UTC seconds; None means "not reported".

    ``started`` and ``ended`` bound the billed time. ``detail`` is the platform's text for the state. ``told`` is False
    if the platform does not report when a session ended: ``ended`` is then the latest possible time. ``waits`` is set
    for sessions QUEUED behind those of others; the planner uses it. ``price_microdollars_per_hour`` is the price of an
    hour of an ended session, as the platform reports it. ``deadline`` is set for a RUNNING session whose deadline may
    have changed while it waited. ``taken`` is True for an ENDED session that the platform itself interrupted (a failed
    node, a preemption), so its end says nothing about its job. ``contradicts`` names the facts of the pool
    (:mod:`platforms.facts`) that the session shows to be wrong, each with what happened.
    """

    key: str
    state: SessionState
    remote_id: str
    started: int | None = None
    ended: int | None = None
    detail: str = ""
    stop_channel: StopChannel = StopChannel.STORE
    told: bool = True
    waits: InQueue | None = None
    price_microdollars_per_hour: int | None = None
    deadline: int | None = None
    taken: bool = False
    contradicts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """One quota window as the platform reports it, in seconds.

    ``shared``: other users consume the budget too, and only the current remainder is known. Plans never use more than
    that, whatever window the pool declares.
    """

    quota: str
    start: int
    end: int
    limit_seconds: int
    used_seconds: int
    reserved_seconds: int = 0
    shared: bool = False

    @property
    def left_seconds(self) -> int:
        """The limit less used and reserved seconds; negative if the limit is exceeded."""
        return self.limit_seconds - self.used_seconds - self.reserved_seconds


@dataclass(frozen=True, slots=True)
class HourPrice:
    """The highest price of a session hour, in microdollars, and the source of that price."""

    microdollars: int
    source: str


@dataclass(frozen=True, slots=True)
class SecretWay:
    """How sessions of a pool get secrets: ``given`` by the launch, ``asked`` for by the session, or ``none`` at all.

    ``why`` and ``remedy`` explain ``none``; they are empty otherwise.
    """

    kind: Literal["given", "asked", "none"]
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of one check of a platform; ``remedy`` is empty if there is nothing to do."""

    grade: Literal["ok", "warning", "bad"]
    found: str
    remedy: str = ""


def check_clock(theirs: float | None, now: float, whose: str) -> Checked:
    """Return whether this machine's clock (``now``) agrees with a platform's, both in real UTC seconds."""
    if theirs is None:
        return Checked("warning", f"{whose} reports no time", "Nothing, if this machine's clock is synchronised")
    skew = round(now - theirs)
    if abs(skew) > _SKEW_SECONDS:
        return Checked("bad", f"this machine's clock is {skew:+d} s off {whose}'s", "Synchronise it with NTP")
    return Checked("ok", f"agrees with {whose}'s to {max(1, abs(skew))} s")


class Published(Protocol):
    """Models and datasets published on a platform, as far as an account has access."""

    def pin(self, source: str) -> "tuple[str, list[Entry]]":
        """Return ``source`` with its version added, and its files without digests. Raises TreeError, PlatformError."""

    def fetch(self, source: str, entry: "Entry", place: Path) -> None:
        """Download one file of a pinned source to ``place``. Raises BadListing, PlatformError, OSError."""


class Extends(Protocol):
    """The additional method of a platform that reports ``InQueue.deadline`` of waiting sessions."""

    def extend(self, key: str, deadline: int, now: int) -> None:
        """Set a new ``deadline`` of a waiting session; do nothing if it runs or has ended.

        The session never runs longer than its launch requested. Idempotent. Raises Unreachable.
        """


class Platform(Protocol):
    """One platform. Every call has a timeout and may come from any thread.

    Adapters inherit from this class: the default of three methods is to do nothing, which is right for most platforms.
    """

    @property
    def capabilities(self) -> Capabilities:
        """The features of this platform."""

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Start a session named ``request.key``.

        Idempotent by key: if the key exists already, nothing is started and the existing session is returned.
        Raises Refused if nothing was started, Unreachable if that is unknown, Misconfigured if a person must act.
        """

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return the sessions by key. Keys that the platform does not know are absent.

        ABSENT requires proof that the key can never start. Raises Unreachable if no state is known; an adapter must
        never turn a failed read into a state. A problem of one session, such as a damaged record, makes only that
        session UNCLEAR. No other method returns UNCLEAR: they raise Unreachable.
        """

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Ask a session to save and exit; with ``force``, end it. Idempotent; unknown keys are ignored.

        Stopping is confirmed by find(), never by this call. Raises Unreachable.
        """

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the output of a session from byte ``offset`` on, at most ``limit_bytes``; nothing for unknown keys."""

    def read_quota(self, now: int) -> Sequence[QuotaReading | HourPrice]:
        """Return the quota usage that the platform reports; empty if ``capabilities.reports_quota`` is False.

        With ``capabilities.tells_price`` it includes the current price of an hour, if that is known.
        """
        del now
        return ()

    def collect(self, key: str, into: "BlobStore", now: int) -> None:
        """Import the output of an ended session from the platform: checkpoints and reports become objects of ``into``.

        Called before the end of a session is processed, so that all its output is available then. Idempotent; does
        nothing for unknown keys, for sessions that have not ended, and if payloads write to the store directly.
        Raises Unreachable if a retry may succeed (also for damaged output), Unfinished while it makes progress, Refused
        if the output can never be accepted. It may be called again after a success if output that a session reported is
        missing: the caller decides when to give up, not the adapter.
        """
        del key, into, now

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return live sessions that are provably ours and not among ``our_keys``: no cycle will reconcile them.

        Changes nothing; a person decides what to do. Empty unless ``capabilities.finds_orphans``. Raises Unreachable.
        """
        del our_keys, now
        return ()

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove the remains of the sessions in ``over`` that have ended; return the keys removed.

        Never touches a key that is not in ``over`` or whose session waits or runs. Idempotent.
        """


Adapter = Platform  # plugins that were written for 0.2.0 inherit from it by this name
