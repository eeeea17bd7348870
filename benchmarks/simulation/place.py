"""A place: one pool's platform, with its own rules, moods and books; and the adapter through which it is seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.simulation.session import Session
from platforms.base import Capabilities, Observed, Refused, SessionState, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from benchmarks.simulation.faults import Faults
    from benchmarks.simulation.world import World
    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest, QuotaReading
    from scheduler.core.pool import Pool


class Place:
    """The platform behind one pool. Knows every session it ever had."""

    def __init__(self, world: World, pool: Pool, *, tells_times: bool, cancels: bool) -> None:
        self.world = world
        self.pool = pool
        self.name = pool.name
        self.tells_times = tells_times
        self.cancels = cancels
        self.sessions: dict[str, Session] = {}
        self.down = False
        self.exhausted_until = 0  # somebody else used up the account
        self.launches: list[str] = []
        self.refused: set[str] = set()  # launches to which the daemon got a no

    def start(self, request: LaunchRequest) -> Observed:
        """Answer a launch that reached the platform; idempotent by key."""
        world, now = self.world, self.world.now
        known = self.sessions.get(request.key)
        if known is not None:
            world.sometimes("key launched again")
            return known.observe(max(now, known.visible_at)) or Observed(request.key, SessionState.QUEUED, "")
        self._refuse_if_need_be(request)
        self._create(request, now)
        return Observed(request.key, SessionState.QUEUED, f"remote-{request.key}", detail="queued")

    def _create(self, request: LaunchRequest, asked_at: int) -> None:
        if request.key in self.sessions:
            return
        session = Session(self, request, self.world.session_fate(self, request), asked_at)
        self.sessions[request.key] = session
        self.launches.append(request.key)
        self.world.noticed()

    def start_late(self, request: LaunchRequest, delay: int) -> None:
        """Take a request in whose answer nobody waited for."""
        asked_at = self.world.now
        self.world.agenda.add(asked_at + delay, lambda: self._create(request, asked_at))

    def _refuse_if_need_be(self, request: LaunchRequest) -> None:
        world, now = self.world, self.world.now
        if request.deadline <= now:
            raise Refused(self.name, "launch", "the deadline is past")
        if self.exhausted_until > now:
            world.sometimes("refused: quota surprise")
            raise Refused(self.name, "launch", "the weekly quota is used up", wait_until=self.exhausted_until)
        live = [session for session in self.sessions.values() if session.live]
        if len(live) >= self.pool.sessions_max:
            world.sometimes("refused: too many sessions")
            raise Refused(self.name, "launch", f"{len(live)} sessions are live")
        world.refuse_at_random(self)

    def find(self, keys: Sequence[str], as_of: int) -> dict[str, Observed]:
        """Return what the platform's list shows."""
        found = {}
        for key in keys:
            session = self.sessions.get(key)
            seen = session.observe(as_of) if session is not None else None
            if seen is not None:
                found[key] = seen
        return found

    def kill(self, key: str) -> None:
        """End a session from outside."""
        session = self.sessions.get(key)
        if session is None or not session.live:
            return
        self.world.sometimes("killed from outside")
        if session.began:
            session.end("killed")
        else:
            session.cancel("cancelled")

    def exhaust(self, until: int, *, kills: bool) -> None:
        """Somebody else used up the account's hours: nothing starts before ``until``."""
        self.world.sometimes("quota surprise")
        self.exhausted_until = until
        if kills:
            for session in self.sessions.values():
                if session.live and session.began:
                    session.end("quota used up")

    def bills(self) -> list[tuple[int, int]]:
        """Return what was billed, one interval per session."""
        return [bill for session in self.sessions.values() if (bill := session.bill()) is not None]


class SimulatedPlatform:
    """The adapter: a Platform each call of which is a fault point."""

    def __init__(self, place: Place, faults: Faults) -> None:
        self._place = place
        self._faults = faults
        self.capabilities = Capabilities(cancels=place.cancels, visibility_seconds=place.pool.visibility_seconds)

    def launch(self, request: LaunchRequest, now: int) -> Observed:
        """Start a session; see Platform.launch."""
        del now
        place, world = self._place, self._place.world

        def effect() -> Observed:
            self._reach("launch")
            late = world.answer_lost(place)
            if late is not None:
                place.start_late(request, late)
                raise Unreachable(place.name, "launch", "the answer was lost")
            return place.start(request)

        try:
            return self._faults.call(f"launch {request.key}", effect, self._failure("launch"))
        except Refused:
            place.refused.add(request.key)
            raise

    def find(self, keys: Sequence[str], now: int) -> Mapping[str, Observed]:
        """Return what is known of each key; see Platform.find."""
        del now

        def effect() -> Mapping[str, Observed]:
            self._reach("find")
            return self._place.find(keys, self._place.world.list_as_of(self._place))

        return self._faults.call(f"find {self._place.name}", effect, self._failure("find"))

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """End a session; see Platform.stop."""
        del now

        def effect() -> None:
            self._reach("stop")
            if force and self._place.cancels:
                self._place.kill(key)

        self._faults.call(f"stop {key}", effect, self._failure("stop"))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield nothing; see Platform.logs."""
        del key, offset, limit_bytes
        yield from ()

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Tell nothing; see Platform.read_quota."""
        del now
        return ()

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Bring nothing home, because sessions write to the store themselves; see Platform.collect."""
        del into, now
        self._faults.call(f"collect {key}", lambda: self._reach("collect"), self._failure("collect"))

    def strays(self, known: Collection[str], now: int) -> Sequence[Observed]:
        """Return nothing; see Platform.strays."""
        del known, now
        return ()

    def sweep(self, keep: Sequence[str], now: int) -> Sequence[str]:
        """Forget sessions that are over; see Platform.sweep."""
        del now

        def effect() -> Sequence[str]:
            self._reach("sweep")
            removed = [
                key
                for key, session in self._place.sessions.items()
                if not session.live and not session.swept and key not in keep
            ]
            for key in removed:
                self._place.sessions[key].swept = True
            return removed

        return self._faults.call(f"sweep {self._place.name}", effect, self._failure("sweep"))

    def _reach(self, action: str) -> None:
        if self._place.down:
            self._place.world.sometimes("platform outage met")
            raise Unreachable(self._place.name, action, "no answer")

    def _failure(self, action: str) -> Callable[[str], Unreachable]:
        return lambda why: Unreachable(self._place.name, action, why)
