"""Remote sessions: what adapters share that remember each launch in a folder and look the rest up by its key.

What this side must remember lies in the pool's state folder, a folder for each key, as files that appear whole: that a
session was ordered, written before anything is asked for; since when it runs; how it ended, as first reported.
"""

from __future__ import annotations

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
    """What was ordered, in scheduled UTC seconds.

    ``start_by``, where it counts, is in real ones: what starts later leaves. ``length`` is how long it may run at
    most; 0 where nothing but the deadline bounds it.
    """

    at: int
    deadline: int
    start_by: int = 0
    length: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """When a session was first seen to run, by the clock of its adapter, and as which job there, if it tells."""

    at: int
    job: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, in scheduled UTC seconds; ``started`` is None when it never did.

    ``price`` is what an hour of it cost in microdollars; None if it is unknown. ``taken``: the platform took it away.
    """

    started: int | None
    ended: int
    detail: str
    told: bool
    price: int | None = None
    taken: bool = False


_Record = TypeVar("_Record", Ordered, Started, Ended)


class Records:
    """The records in the folders of one pool. All raise OSError, reading also DamagedRecord."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._record_of: dict[tuple[str, str], Ordered | Started | Ended] = {}  # no record changes once it is there

    def order(self, key: str, order: Ordered) -> None:
        """Make the folder of a session. The caller holds the lock."""

        def fill(folder: Path) -> None:
            (folder / ORDER).write_text(json.dumps(asdict(order)))

        self._folders.make(key, fill)

    def ordered(self, key: str) -> Ordered:
        """Return what was ordered."""
        return self._read(key, ORDER, Ordered)

    def start(self, key: str, at: int, job: int = 0) -> Started:
        """Write down since when a session runs, unless that is known; return what is."""
        publish(str(self._folders.root / key), STARTED, json.dumps(asdict(Started(at, job))))
        return self.started(key)

    def started(self, key: str) -> Started:
        """Return since when a session runs."""
        return self._read(key, STARTED, Started)

    def end(self, key: str, end: Ended) -> Observed:
        """Write down how a session ended, unless that is known; return how it was first told."""
        publish(str(self._folders.root / key), END, json.dumps(asdict(end)))
        return self.ended(key)

    def ended(self, key: str) -> Observed:
        """Return how a session ended."""
        end = self._read(key, END, Ended)
        if end.started is None:
            return Observed(key, SessionState.ABSENT, "", detail=end.detail)
        return Observed(
            key, SessionState.ENDED, "", end.started, end.ended, end.detail, told=end.told,
            price_microdollars_per_hour=end.price, taken=end.taken,
        )  # fmt: skip

    def keep_output(self, key: str, output: bytes) -> None:
        """Keep what a session has printed so far; it only grows."""
        kept = self._folders.root / key / OUTPUT
        if output and not (kept.exists() and kept.stat().st_size > len(output)):
            write_whole(kept, output)

    def forget(self, keys: Collection[str]) -> None:
        """Let go of what is remembered of sessions whose folders are gone."""
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
        """Return the session of a launch when it is among those that were ``sessions``.

        Raises Refused when it is not, and there is no room for it; Unreachable when it cannot be known.
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
    """Return the folder of the payload that a launch runs. Raises Misconfigured when it is none."""
    payload = Path(request.bundle or context.bundle).absolute() / "payload"
    if not (payload / "agent.py").is_file():
        raise Misconfigured(platform, "launch", f"there is no agent in {payload}", "Check the bundle folder")
    return payload
