"""A place: one pool's platform, with its own rules, moods and books; and the adapter through which it is seen."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from jobs.nouns.quota import CalendarQuota
from jobs.nouns.window import HOUR, WEEK
from platforms.artifacts.base import StoreUnreachable
from platforms.base import Capabilities, Observed, QuotaReading, Refused, SessionState, Unreachable
from tests.lab.simulation.bills import calendar_windows, within
from tests.lab.simulation.faults import Fate, Violation
from tests.lab.simulation.mood import GOOD
from tests.lab.simulation.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from jobs.nouns.pool import Pool
    from platforms.artifacts.base import BlobStore
    from platforms.base import LaunchRequest
    from tests.lab.simulation.faults import Faults
    from tests.lab.simulation.world import World

_KEEP_BOOKS = 0.7  # of the places that could
_RELAYS = 0.25
_DAMAGES, _MUMBLES, _BILLS_WAIT = 0.5, 0.3, 0.4  # of the places that relay, of all, of those that keep books
_EXTENDS, _NAMES_THIEVES = 0.2, 0.5  # of the places
TAKES_ORDERS = 0.7  # of the places, too; a benchmark changes it
_MUMBLED = 0.02  # of what such a place says


class Place:
    """The platform behind one pool. Knows every session it ever had."""

    def __init__(self, world: World, pool: Pool, *, tells_times: bool, cancels: bool) -> None:
        self.world = world
        self.pool = pool
        self.name = pool.name
        self.tells_times = tells_times
        self.cancels = cancels
        self.counted = _counted(world, pool) if tells_times else None  # the quota of which it tells what is used
        self.relays = _relays(world, pool)  # it keeps what sessions publish until it is asked for it
        # These come from streams of their own: what a seed did before they were there it does still.
        odd = Random(f"oddities of {pool.name} in {world.scenario.seed}")
        troubled = world.mood != GOOD
        self.damages = self.relays and odd.random() < _DAMAGES  # it hands out in part before it hands out the whole
        self.mumbles = troubled and odd.random() < _MUMBLES  # some of its answers have no meaning
        self.bills_wait = self.counted is not None and troubled and odd.random() < _BILLS_WAIT
        # The deadline of what waits can be moved, as that of a job in a cluster's queue.
        queue = Random(f"queue of {pool.name} in {world.scenario.seed}")
        extends = world.mood.endless_queue > 0 or (troubled and queue.random() < _EXTENDS)
        self.extends = tells_times and extends
        self.names_thieves = queue.random() < _NAMES_THIEVES
        self.takes_orders = not self.relays and queue.random() < TAKES_ORDERS
        self.waits = Random(f"waits of {pool.name} in {world.scenario.seed}")
        self.words = Random(f"words of {pool.name} in {world.scenario.seed}")
        self.sessions: dict[str, Session] = {}
        self.down = False
        self.exhausted_until = 0  # somebody else used up the account
        self.wrong_until = 0  # every session gets another accelerator
        self.claims_used_up_until = 0  # it calls a quota used up that is not
        self.hangs_until = 0  # calls get no answer, whatever they do
        self.fails_to_read = False  # the next look fails
        self.read_at: list[int] = []  # when its books were read
        self.waiting_at: dict[str, int] = {}  # when a look that was answered at once last showed each key in the queue
        self.launches: list[str] = []
        self.claimed: list[int] = []  # when it called a quota used up that was not
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
        self.world.go_down_over_the_end_of(session)

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
            raise Refused(
                self.name, "launch", "the weekly quota is used up", wait_until=self.exhausted_until, used_up=True
            )
        if self.claims_used_up_until > now:
            world.sometimes("refused: false quota")
            if self._has_room():
                self.claimed.append(now)
            raise Refused(self.name, "launch", "the weekly quota is used up", wait_until=now + WEEK, used_up=True)
        live = [session for session in self.sessions.values() if session.live]
        if sum(one.places for one in live) + self.pool.places_of(request.devices) > self.pool.places:
            world.sometimes("refused: too many sessions")
            raise Refused(self.name, "launch", f"{len(live)} sessions are live")
        world.refuse_at_random(self)

    def _has_room(self) -> bool:
        """Whether hours are left without any doubt, whatever is set aside for sessions that run."""
        now = self.world.now
        taken = sum(s.places * (s.deadline - now) for s in self.sessions.values() if s.live)
        for quota in self.pool.quotas:
            if not isinstance(quota, CalendarQuota):
                return False
            start, end = next(calendar_windows(quota.calendar, now, now + 1))
            if end - now < HOUR or quota.limit_seconds - within(self.bills(), start, end) - taken < 2 * HOUR:
                return False
        return True

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
        """Return what was billed, one interval per session, or for each device where sessions differ in them."""
        billed = [(session.places, bill) for session in self.sessions.values() if (bill := session.bill()) is not None]
        return [bill for places, bill in billed for _ in range(places)]

    def reading(self) -> QuotaReading | None:
        """Return what the platform's own books say of the present window; None where it keeps none."""
        quota, now = self.counted, self.world.now
        if quota is None:
            return None
        start, end = next(calendar_windows(quota.calendar, now, now + 1))
        bills = self.bills()
        if self.bills_wait:
            bills += [wait for session in self.sessions.values() if (wait := session.wait()) is not None]
        return QuotaReading(quota.name, start, end, quota.limit_seconds, within(bills, start, end))

    def hand_over(self, key: str, each: Callable[[str], None]) -> None:
        """Put what an ended session left here into the store, components first; ``each`` may cut it short.

        What comes damaged is left, and comes whole another time.
        """
        session = self.sessions.get(key)
        if session is None or session.live:
            return
        damaged = set()
        if self.damages and session.bad_downloads > 0:
            session.bad_downloads -= 1
            damaged = {name for name in session.kept if "/manifests/" in name}
            if damaged and not any(name.endswith("/result.json") for name in session.kept):
                raise Unreachable(self.name, "collect", "what came is damaged")
            for _ in damaged:
                self.world.sometimes("download damaged")
        for name in [name for name in session.kept if name not in damaged]:
            each(name)
            self.world.shelves.put(name, session.kept.pop(name))
            self.world.sometimes("brought home")


def _relays(world: World, pool: Pool) -> bool:
    """Draw whether what sessions publish stays with the platform. Who knows of a session too late lacks its work."""
    mood = world.scenario.mood
    rng = Random(f"files of {pool.name} in {world.scenario.seed}")
    return mood.honest and not mood.rates.stall and mood != GOOD and rng.random() < _RELAYS


def _counted(world: World, pool: Pool) -> CalendarQuota | None:
    """Draw of which quota the platform keeps books, None for most.

    Where clocks are wrong, daemons stand still or platforms lie, books and ledger may differ for good reasons.
    """
    mood = world.scenario.mood
    quotas = [quota for quota in pool.quotas if isinstance(quota, CalendarQuota) and not quota.by_device]
    if not quotas or not mood.honest or mood.clock_jumps_per_week or mood.rates.stall:
        return None
    rng = Random(f"books of {pool.name} in {world.scenario.seed}")
    return rng.choice(quotas) if rng.random() < _KEEP_BOOKS else None


class SimulatedPlatform:
    """The adapter: a Platform each call of which is a fault point."""

    def __init__(self, place: Place, faults: Faults) -> None:
        self._place = place
        self._faults = faults
        # What the last look of this daemon at each run showed; None: it failed. One that stood still believes its own.
        self._shown: dict[str, SessionState | None] = {}
        self.capabilities = Capabilities(
            reports_quota=place.counted is not None,
            visibility_seconds=place.pool.visibility_seconds,
            takes_orders=place.takes_orders,
        )

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
            if self._place.fails_to_read:
                self._place.fails_to_read = False
                self._place.world.sometimes("look failed after an outage")
                raise Unreachable(self._place.name, "find", "the connection was closed")
            return self._say(self._place.find(keys, self._place.world.list_as_of(self._place)))

        self._shown.update(dict.fromkeys(keys))
        answer = self._faults.call(f"find {self._place.name}", effect, self._failure("find"))
        self._shown.update({key: seen.state for key, seen in answer.items()})
        if not any(self._place.world.hanging):
            waiting = [key for key, seen in answer.items() if seen.state is SessionState.QUEUED]
            self._place.waiting_at.update(dict.fromkeys(waiting, self._place.world.now))
        return answer

    def stop(self, key: str, now: int, *, force: bool) -> None:
        """End a session; see Platform.stop."""
        del now

        def effect() -> None:
            shown = self._shown.get(key, SessionState.RUNNING)
            if force and shown not in {SessionState.QUEUED, SessionState.RUNNING}:
                raise Violation("force follows from an answer", f"{key} is ended by force, and no look showed it live")
            self._reach("stop")
            if force and self._place.cancels:
                self._place.kill(key)

        self._faults.call(f"stop {key}", effect, self._failure("stop"))

    def extend(self, key: str, deadline: int, now: int) -> None:
        """Move the deadline of a session that waits; see Extends.extend."""
        del now

        def effect() -> None:
            self._reach("extend")
            self._place.sessions[key].extend(deadline)

        self._faults.call(f"extend {key}", effect, self._failure("extend"))

    def logs(self, key: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield nothing; see Platform.logs."""
        del key, offset, limit_bytes
        yield from ()

    def read_quota(self, now: int) -> Sequence[QuotaReading]:
        """Return the books, where there are some; see Platform.read_quota."""
        del now

        def effect() -> Sequence[QuotaReading]:
            self._reach("read_quota")
            found = self._place.reading()
            self._place.read_at.append(self._place.world.now)
            self._place.world.sometimes("books read")
            return [] if found is None else [found]

        return self._faults.call(f"books {self._place.name}", effect, self._failure("read_quota"))

    def collect(self, key: str, into: BlobStore, now: int) -> None:
        """Bring home what the platform kept; see Platform.collect."""
        del into, now

        def each(name: str) -> None:
            if self._faults.point(f"carry {name} <") is Fate.ERROR:
                raise Unreachable(self._place.name, "collect", "injected on the way")

        def effect() -> None:
            self._reach("collect")
            if self._place.world.shelves.down:
                down = StoreUnreachable("create", key, "the store is down")
                raise Unreachable(self._place.name, "collect", "the store takes nothing") from down
            self._place.hand_over(key, each)

        self._faults.call(f"collect {key}", effect, self._failure("collect"))

    def orphans(self, our_keys: Collection[str], now: int) -> Sequence[Observed]:
        """Return nothing; see Platform.orphans."""
        del our_keys, now
        return ()

    def sweep(self, over: Collection[str], now: int) -> Sequence[str]:
        """Forget sessions; see Platform.sweep."""
        del now

        def effect() -> Sequence[str]:
            self._reach("sweep")
            removed = [
                key
                for key, session in self._place.sessions.items()
                if not session.live and not session.swept and key in over
            ]
            for key in removed:
                self._place.sessions[key].swept = True
            return removed

        return self._faults.call(f"sweep {self._place.name}", effect, self._failure("sweep"))

    def _reach(self, action: str) -> None:
        self._place.world.meet_hanging(self._place, action)
        if self._place.down:
            self._place.world.sometimes("platform outage met")
            raise Unreachable(self._place.name, action, "no answer")

    def _say(self, found: dict[str, Observed]) -> dict[str, Observed]:
        """Return what is told of what was found; a place that mumbles tells some of it in words without a meaning."""
        words = self._place.words
        for key, seen in found.items() if self._place.mumbles and not self._place.world.calm else ():
            if words.random() < _MUMBLED:
                self._place.world.sometimes("answer without its word")
                odd: dict[str, Any] = {"state": words.choice((None, "SLEEPING", 5))}
                found[key] = replace(seen, **odd)
        return found

    def _failure(self, action: str) -> Callable[[str], Unreachable]:
        return lambda why: Unreachable(self._place.name, action, why)
