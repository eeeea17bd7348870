"""A place without machines: sessions live in memory and do what a script says. Drives tests and simulations.

``FakeCloud`` is the place and holds the truth; ``FakePlatform`` is an adapter that talks to it. A new
adapter on the same cloud is what a daemon sees after a restart. Nothing here reads a clock: every state
follows from ``now``.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from platforms.base import Capabilities, InQueue, Observed, QuotaReading, Refused, SessionState, Unreachable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)


class Fault(StrEnum):
    """What can go wrong with a launch."""

    REFUSED = "refused"  # nothing starts, and the caller is told
    LOST_REQUEST = "lost request"  # nothing starts, and the caller cannot know
    LOST_ANSWER = "lost answer"  # it starts, and the caller cannot know


@dataclass(frozen=True, slots=True)
class Script:
    """The fate of one launch. All times in seconds."""

    fault: Fault | None = None
    refused_until: int | None = None  # UTC; goes with Fault.REFUSED
    hidden_seconds: int = 0  # how long find() does not know the session yet
    queued_seconds: int = 0
    queue_why: str = ""  # told of a session in the queue, with when it is to start
    runs_seconds: int | None = None  # None: until something else ends it
    preempted_after_seconds: int | None = None
    stop_seconds: int | None = 0  # from being asked to stop to the end; None: it does not listen
    output: bytes = b""


@dataclass(frozen=True, slots=True)
class FakeSession:
    """One session as it truly is. ``cut`` is an end from outside: when (UTC seconds) and why."""

    request: LaunchRequest
    script: Script
    launched_at: int
    cap_seconds: int
    cut: tuple[int, str] | None = None

    @property
    def starts_at(self) -> int:
        """When the meter begins (UTC seconds), unless the session is cancelled before."""
        return self.launched_at + self.script.queued_seconds

    @property
    def end(self) -> tuple[int, str]:
        """When the session ends (UTC seconds) if nothing more happens to it, and why."""
        ends = [(self.request.deadline, "deadline"), (self.starts_at + self.cap_seconds, "session cap")]
        if self.script.runs_seconds is not None:
            ends.append((self.starts_at + self.script.runs_seconds, "exit code 0"))
        if self.script.preempted_after_seconds is not None:
            ends.append((self.starts_at + self.script.preempted_after_seconds, "preempted"))
        if self.cut is not None:
            ends.append(self.cut)
        return min(ends)

    def observe(self, now: int) -> Observed:
        """Return the session as the place would report it at ``now``."""
        key, (ends_at, why) = self.request.key, self.end
        if ends_at < self.starts_at and now >= ends_at:
            return Observed(key, SessionState.ABSENT, "", detail=f"never started: {why}")
        if now < self.starts_at:
            waits = InQueue(self.script.queue_why, self.starts_at) if self.script.queue_why else None
            return Observed(key, SessionState.QUEUED, f"fake {key}", detail="queued", waits=waits)
        if now < ends_at:
            return Observed(key, SessionState.RUNNING, f"fake {key}", self.starts_at, detail="running")
        return Observed(key, SessionState.ENDED, f"fake {key}", self.starts_at, ends_at, why)

    def billed_seconds(self, now: int) -> int:
        """Return what the place bills until ``now``."""
        return max(0, min(now, self.end[0]) - self.starts_at)


@dataclass(slots=True)
class FakeCloud:
    """The place: its limits, what it will do next, and every session it ever had.

    ``scripts`` are used up by launches, one each; then ``usual`` applies. Actions named in ``outage``
    ("launch", "find", "stop", "logs", "read_quota", "orphans", "sweep") get no answer. ``quota`` is what read_quota
    tells.
    """

    sessions_max: int = 1
    session_cap_seconds: int = 43_200
    usual: Script = Script()
    scripts: deque[Script] = field(default_factory=deque)
    outage: set[str] = field(default_factory=set)
    quota: list[QuotaReading] = field(default_factory=list)
    sessions: dict[str, FakeSession] = field(default_factory=dict)
    swept: dict[str, FakeSession] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def cut(self, key: str, at: int, why: str) -> None:
        """End a session at ``at`` (UTC seconds), unless it ends before."""
        session = self.sessions[key]
        if at < session.end[0]:
            self.sessions[key] = replace(session, cut=(at, why))

    def billed_seconds(self, now: int) -> int:
        """Return what all sessions cost until ``now``, the swept ones too."""
        return sum(session.billed_seconds(now) for session in (*self.sessions.values(), *self.swept.values()))


class FakePlatform:
    """The adapter of the fake place. Keeps nothing of its own."""

    def __init__(self, cloud: FakeCloud) -> None:
        self._cloud = cloud
        self.capabilities = Capabilities(
            reports_quota=bool(cloud.quota),
            tails_logs=True,
            finds_orphans=True,
            visibility_seconds=max(script.hidden_seconds for script in (cloud.usual, *cloud.scripts)),
        )

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Start a session; see Platform.launch."""
        if not _KEY.fullmatch(request.key):
            raise Refused("fake", "launch", f"{request.key!r} is no name", permanent=True)
        with self._cloud.lock:
            self._answer("launch")
            known = self._cloud.sessions.get(request.key)
            if known is not None:
                return known.observe(now)
            if request.deadline <= now:
                raise Refused("fake", "launch", f"the deadline {request.deadline} is not after {now}")
            self._admit(now)
            script = self._cloud.scripts.popleft() if self._cloud.scripts else self._cloud.usual
            if script.fault is Fault.REFUSED:
                raise Refused("fake", "launch", "as scripted", wait_until=script.refused_until)
            if script.fault is Fault.LOST_REQUEST:
                raise Unreachable("fake", "launch", "the request was lost")
            session = FakeSession(request, script, now, self._cloud.session_cap_seconds)
            self._cloud.sessions[request.key] = session
            if script.fault is Fault.LOST_ANSWER:
                raise Unreachable("fake", "launch", "the answer was lost")
            return session.observe(now)

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key; see Platform.find."""
        with self._cloud.lock:
            self._answer("find")
            return {
                key: session.observe(now)
                for key in keys
                if (session := self._cloud.sessions.get(key)) is not None
                and now >= session.launched_at + session.script.hidden_seconds
            }

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """End a session, now or after the time that its script takes to leave."""
        with self._cloud.lock:
            self._answer("stop")
            session = self._cloud.sessions.get(key)
            if session is None:
                return
            if force or now < session.starts_at:
                self._cloud.cut(key, now, "killed")
            elif session.script.stop_seconds is not None:
                self._cloud.cut(key, now + session.script.stop_seconds, "stopped")

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield the scripted output; see Platform.logs."""
        with self._cloud.lock:
            self._answer("logs")
            session = self._cloud.sessions.get(key)
        if session is not None and limit_bytes > 0:
            yield session.script.output[max(offset, 0) :][:limit_bytes]

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Return the scripted readings of windows that contain ``now``."""
        with self._cloud.lock:
            self._answer("read_quota")
            return [reading for reading in self._cloud.quota if reading.start <= now < reading.end]

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Bring nothing home: scripted sessions leave nothing. See Platform.collect."""

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return live sessions that ``our_keys`` does not name."""
        live = {SessionState.QUEUED, SessionState.RUNNING}
        with self._cloud.lock:
            self._answer("orphans")
            seen = [
                session.observe(now) for key, session in sorted(self._cloud.sessions.items()) if key not in our_keys
            ]
            return [observed for observed in seen if observed.state in live]

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Forget the sessions in ``over`` that are; the cloud still bills them."""
        final = {SessionState.ENDED, SessionState.ABSENT}
        with self._cloud.lock:
            self._answer("sweep")
            removed = sorted(
                key
                for key, session in self._cloud.sessions.items()
                if key in over and session.observe(now).state in final
            )
            for key in removed:
                self._cloud.swept[key] = self._cloud.sessions.pop(key)
            return removed

    def _admit(self, now: int) -> None:
        live = sum(
            session.observe(now).state in {SessionState.QUEUED, SessionState.RUNNING}
            for session in self._cloud.sessions.values()
        )
        if live >= self._cloud.sessions_max:
            raise Refused("fake", "launch", f"{live} of at most {self._cloud.sessions_max} sessions are live")

    def _answer(self, action: str) -> None:
        if action in self._cloud.outage:
            raise Unreachable("fake", action, "no answer, as scripted")
