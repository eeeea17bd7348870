"""Base of adapters that record each launch in a folder of this machine and query its state from the platform by key.

The pool's state folder has a folder per key, with files that are written atomically: the order, before any request to
the platform; the start of the session; and its end, as first reported.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from jobs.payload.clock import Clock
from jobs.payload.whole_file import write_whole
from platforms.base import LaunchRequest, Misconfigured, Observed, Platform, Refused, SessionState, Unreachable
from platforms.folders import Folders, is_live
from platforms.local.records import publish
from platforms.record_file import DamagedRecord, read_record
from platforms.registry import PlatformContext

ORDER, STARTED, END, OUTPUT = "order.json", "started.json", "end.json", "output.log"


@dataclass(frozen=True, slots=True)
class Ordered:
    """A launch as requested, in scheduled UTC seconds.

    ``start_by`` is in real UTC seconds: a session that starts later exits; 0 if unused. ``length`` is the longest run
    in seconds; 0 if only the deadline limits it.
    """

    at: int
    deadline: int
    start_by: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """When a session was first seen running, by the clock of its adapter, and the ID of its job, 0 if unknown."""

    at: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, in scheduled UTC seconds; ``started`` is None if it never started.

    ``price`` is microdollars per hour, None if unknown. ``told`` and ``taken`` are those of Observed.
    """

    started: int | None
    ended: int
    detail: str
    told: bool
    price: int | None = None
    taken: bool = False


_Record = TypeVar("_Record", Ordered, Started, Ended)


class Records:
    """The records in the folders of one pool. All methods raise OSError; methods that read also DamagedRecord."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._record_of: dict[tuple[str, str], Ordered | Started | Ended] = {}  # cache: no record ever changes

    def order(self, key: str, order: Ordered) -> None:
        """Create the folder of a session with its order. The caller holds the lock."""

        def fill(folder: Path) -> None:
            (folder / ORDER).write_text(json.dumps(asdict(order)))

        self._folders.make(key, fill)

    def ordered(self, key: str) -> Ordered:
        """Return the order of a session."""
        return self._read(key, ORDER, Ordered)

    def start(self, key: str, at: int, job: int = 0) -> Started:
        """Record the start of a session unless there is a record; return the record."""
        publish(str(self._folders.root / key), STARTED, json.dumps(asdict(Started(at, job))))
        return self.started(key)

    def started(self, key: str) -> Started:
        """Return the recorded start of a session."""
        return self._read(key, STARTED, Started)

    def end(self, key: str, end: Ended) -> Observed:
        """Record the end of a session unless there is a record; return the session as recorded."""
        publish(str(self._folders.root / key), END, json.dumps(asdict(end)))
        return self.ended(key)

    def ended(self, key: str) -> Observed:
        """Return a session as the record of its end describes it: ENDED, or ABSENT if it never started."""
        end = self._read(key, END, Ended)
        if end.started is None:
            return Observed(key, SessionState.ABSENT, "", detail=end.detail)
        return Observed(
            key, SessionState.ENDED, "", end.started, end.ended, end.detail, told=end.told,
            price_microdollars_per_hour=end.price, taken=end.taken,
        )  # fmt: skip

    def keep_output(self, key: str, output: bytes) -> None:
        """Store the output of a session so far; shorter output never replaces longer."""
        kept = self._folders.root / key / OUTPUT
        if output and not (kept.exists() and kept.stat().st_size > len(output)):
            write_whole(kept, output)

    def forget(self, keys: Collection[str]) -> None:
        """Drop the cached records of sessions whose folders were removed."""
        self._record_of = {place: record for place, record in self._record_of.items() if place[0] not in keys}

    def _read(self, key: str, name: str, kind: type[_Record]) -> _Record:
        record = self._record_of.get((key, name))
        if not isinstance(record, kind):
            record = read_record(self._folders.root, f"{key}/{name}", kind)
            if record is None:
                raise DamagedRecord(f"{self._folders.root / key / name} is gone")
            self._record_of[key, name] = record
        return record


class RemoteSessions(Platform):
    """The sessions of one pool of the platform ``name``."""

    def __init__(self, name: str, context: PlatformContext) -> None:
        self._platform = name
        self._context = context
        self._folders = Folders(name, context.state_folder.absolute() / "sessions")
        self._records = Records(self._folders)
        self._clock = Clock(**context.clock)

    def _payload(self, request: LaunchRequest) -> Path:
        """Return the folder of the payload. Raises Misconfigured."""
        return payload_of(self._platform, request, self._context)

    def _standing(self, request: LaunchRequest, sessions: Mapping[str, Observed], now: int) -> Observed | None:
        """Return the session of a launch if it is among ``sessions``, None if the launch may start one.

        Raises Unreachable if its state is unclear, Refused if a start is too late or would exceed ``sessions_max``.
        """
        if (observed := sessions.get(request.key)) is not None:
            if observed.state is SessionState.UNCLEAR:
                raise Unreachable(self._platform, "launch", observed.detail)
            return observed
        if request.deadline <= now:
            raise Refused(self._platform, "launch", f"the deadline {request.deadline} is not after {now}")
        live = sum(map(is_live, sessions.values()))
        if live >= self._context.sessions_max:
            why = f"{live} of at most {self._context.sessions_max} sessions are live"
            raise Refused(self._platform, "launch", why, "Wait until one ends")
        return None

    def _scheduled(self, real: float) -> int:
        return int(self._clock.epoch + (real - self._clock.origin) * self._clock.scale)

    def _real(self, scheduled: int) -> float:
        return self._clock.origin + (scheduled - self._clock.epoch) / self._clock.scale


def payload_of(platform: str, request: LaunchRequest, context: PlatformContext) -> Path:
    """Return the folder of a launch's payload. Raises Misconfigured if it has no agent.py."""
    payload = Path(request.bundle or context.bundle).absolute() / "payload"
    if not (payload / "agent.py").is_file():
        raise Misconfigured(platform, "launch", f"there is no agent.py in {payload}", "Check the bundle folder")
    return payload
