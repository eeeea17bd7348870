"""The platform port: what an adapter must do, in prose that is the contract, and the errors it may raise.

Errors::

    PlatformError            base; carries platform, action and what to do next
      Refused                nothing was started; ``wait_until`` or ``permanent`` says what to make of it
      Unreachable            no answer that can be trusted; for a launch this means "perhaps started"
      Misconfigured          credentials, names or versions are wrong; a person must act
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from jobs.payload.store.tree import Entry
from jobs.problem import UserError

if TYPE_CHECKING:
    from platforms.artifacts.base import BlobStore

_SKEW_SECONDS = 60  # between two clocks, above which times of one mean too little to the other


class PlatformError(UserError):
    """Base of all platform errors. ``remedy`` is the next thing to try, in one sentence."""

    def __init__(self, platform: str, action: str, why: str, remedy: str = "") -> None:
        super().__init__(f"{platform}: {action} failed", why, remedy)
        self.platform = platform
        self.action = action


class Refused(PlatformError):
    """The platform said no, and nothing was started.

    ``wait_until`` (UTC seconds) closes the pool until then; ``permanent`` means that asking again cannot help.
    ``used_up`` says that it calls a quota used up, which lasts until ``wait_until`` unless its own books say otherwise.
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
    """No trustworthy answer: time-out, broken connection, server error. A launch may or may not have happened."""


class Unfinished(Unreachable):
    """It is being done, and gets on: ask again. No patience ends while it does."""


class Misconfigured(PlatformError):
    """A person must act: credentials, a missing program, a wrong name."""


class BadOption(Misconfigured):
    """An option of a pool that cannot be used as it is written, wherever it is read."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What adapters differ in, as data. Never ask an adapter for its type or name instead."""

    reports_quota: bool = False  # read_quota tells what the platform thinks is used
    tails_logs: bool = False  # logs can be read while the session runs
    sees_stop_flag: bool = (
        True  # every session sees the artifact store's stop flag; else Observed.stop_channel tells which
    )
    takes_orders: bool = False  # a session whose job is over finds the next one's order in the artifact store
    needs_person: bool = False  # nothing runs before a person takes the session in hand
    finds_orphans: bool = False  # orphans() finds sessions of ours that our books do not name
    tells_price: bool = False  # read_quota may tell what an hour costs as well
    bills_late: bool = False  # what find() says of an ended session's time may still change for a while
    device_counts: bool = False  # each launch may ask for another number of devices
    internet: bool = True  # sessions reach the internet by themselves
    mounts: frozenset[str] = frozenset()  # kinds of inputs that it holds itself and puts before its sessions
    visibility_seconds: int = 0  # a launched key may be missing from find() for this long


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One launch.

    ``key`` is the platform-side name. ``launch`` is the document for the agent (the launch contract, plain JSON
    types, without ``work_dir``). ``deadline`` (UTC seconds) is when the platform itself must end the session, as the
    second of three independent stops. ``bundle`` is the folder that holds the payload package. ``secrets`` are values
    by name, none where sessions ask for them: they go into the session's environment, and to no file of this machine,
    argument, log or error.
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
    """What a platform says about one session. Silence is not a state: it raises Unreachable."""

    QUEUED = "queued"  # accepted, meter not running
    RUNNING = "running"
    ENDED = "ended"  # terminal, with proof
    ABSENT = "absent"  # the platform proves that the key was never started and never will be
    UNCLEAR = "unclear"  # no answer about this one session, of which ``detail`` says why; the others' stand


class StopChannel(StrEnum):
    """How one session can be asked to save and leave."""

    STORE = "store"  # it looks for the stop flag in the artifact store
    PLATFORM = "platform"  # stop(force=False) reaches it
    NONE = "none"  # it cannot be asked: ending it by force loses what it has not brought home


@dataclass(frozen=True, slots=True)
class InQueue:
    """Why a session waits in the platform's queue, and when that expects to start it (UTC seconds; None: not told).

    ``place`` is its place in the queue, 1 for the next to start. ``deadline`` is when it must be over, where extend()
    can move that on, and ``length_seconds`` how long it may run at most. Both None: the deadline of its launch stands.
    """

    why: str
    starts_at: int | None = None
    place: int | None = None
    length_seconds: int | None = None
    deadline: int | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """One session as the platform reports it. Times are UTC seconds; None means "not reported".

    ``started`` and ``ended`` bound what the platform bills. ``detail`` is its own word for the state. ``told`` is False
    when the platform does not say when a session ended: ``ended`` is then the latest that it can have been. ``waits``
    is set for sessions that are QUEUED behind those of others: plans reckon with it. ``price_microdollars_per_hour`` is
    what an hour of an ended session cost, by the platform's own reckoning. ``deadline`` is set for a RUNNING session
    whose deadline may have moved while it waited: until when it may run. ``taken`` is True for an ENDED session that
    the platform itself interrupted (a failed node, a preemption), so its end says nothing about its job.
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


@dataclass(frozen=True, slots=True)
class QuotaReading:
    """What the platform says about one quota window, in seconds.

    ``shared`` is a budget that others use as well, of which the platform tells no more than what is left by now: in
    whichever window it is declared, or in none, plans take no more than that.
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
        """What is neither used nor reserved; below zero when more is."""
        return self.limit_seconds - self.used_seconds - self.reserved_seconds


@dataclass(frozen=True, slots=True)
class HourPrice:
    """What an hour of a session costs at most, in microdollars, and where that stands."""

    microdollars: int
    source: str


@dataclass(frozen=True, slots=True)
class SecretWay:
    """How sessions of a pool get secrets: ``given`` with the launch, ``asked`` for by themselves, or ``none`` at all.

    ``why`` not, and the ``remedy``; both empty otherwise.
    """

    kind: Literal["given", "asked", "none"]
    why: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """What one check of a platform's own checkup found; ``remedy`` is empty when all is well."""

    grade: Literal["ok", "warning", "bad"]
    found: str
    remedy: str = ""


def check_clock(theirs: float | None, now: float, whose: str) -> Checked:
    """Return whether this machine's clock (``now``) agrees with a platform's, both in real UTC seconds."""
    if theirs is None:
        return Checked("warning", f"{whose} does not tell its time", "Nothing, if this machine's clock is synchronised")
    off = round(now - theirs)
    if abs(off) > _SKEW_SECONDS:
        return Checked("bad", f"this machine's clock is {off:+d} s off {whose}'s", "Synchronise it with NTP")
    return Checked("ok", f"agrees with {whose}'s to {max(1, abs(off))} s")


class Published(Protocol):
    """What a platform holds of anybody's models and datasets and hands out to an account."""

    def pin(self, source: str) -> tuple[str, list[Entry]]:
        """Return a source with its version, and that version's files, without digests.

        Raises TreeError, PlatformError.
        """

    def fetch(self, source: str, entry: Entry, place: Path) -> None:
        """Bring one file of a pinned source to ``place``. Raises BadListing, PlatformError, OSError."""


class Extends(Protocol):
    """What a platform can do besides that tells a deadline of sessions that wait in its queue."""

    def extend(self, key: str, deadline: int, now: int) -> None:
        """Let a session that waits run until ``deadline``, if it starts so late; what runs or is over is left alone.

        It never runs longer than it was launched for. May be called twice. Raises Unreachable.
        """


class Platform(Protocol):
    """One metered place. Every call has a deadline of its own and may be made from any thread.

    Adapters inherit from it: three of its methods do what most platforms do, which is nothing.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this platform can do."""

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Start a session named ``request.key``.

        Idempotent by key: when the key exists already, nothing is started and the existing session is returned.
        Raises Refused when nothing was started, Unreachable when that is unknown, Misconfigured when a person must act.
        """

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key. A key the platform has not heard of is left out.

        ABSENT is answered only with proof that the key can never start. Raises Unreachable when nothing can be told;
        an adapter must never turn a failed read into a state. What is wrong with one session alone, such as a damaged
        record, makes it UNCLEAR and leaves the others be. No other method answers UNCLEAR: it raises Unreachable.
        """

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """Ask a session to save and leave; with ``force``, end it. May be called twice; unknown keys are ignored.

        Stopping is confirmed by find(), never by this call. Raises Unreachable.
        """

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield what the session has printed from byte ``offset``, at most ``limit_bytes``; nothing when unknown."""

    def read_quota(self, now: int) -> Sequence[QuotaReading | HourPrice]:
        """Return the platform's own books, or nothing when ``capabilities.reports_quota`` is False.

        With ``capabilities.tells_price`` what an hour costs now is among them, if that can be told.
        """
        del now
        return ()

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Bring home what an ended session left on the platform: checkpoints and reports become objects of ``into``.

        Called before an end is believed, so that a session is judged by all that it left. Idempotent; does nothing for
        unknown keys, for sessions that have not ended, and where payloads write to the artifact store themselves.
        Raises Unreachable to be called again, Unfinished while it gets on, Refused when what was left is not taken and
        never will be. What comes damaged is Unreachable like what does not come. It is asked again, also after it has
        succeeded, when what a session claims is not there: the caller gives up at some point, not the adapter.
        """
        del key, into, now

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return live sessions that are provably ours and not among ``our_keys``: no cycle will reconcile them.

        Looks only; whose they are is for a person to say. Nothing unless ``capabilities.finds_orphans``.
        Raises Unreachable.
        """
        del our_keys, now
        return ()

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Remove what the sessions in ``over`` left behind that are over; return the keys removed.

        A key that is not in ``over`` is never touched, nor one whose session waits or runs. Idempotent.
        """


Adapter = Platform  # plugins that were written for 0.2.0 inherit from it by this name
