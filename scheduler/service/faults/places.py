"""Health of platforms: pools that need a person are closed, and platforms that do not answer are reported.

A pool that needs a person is closed with the reason. It opens by itself when its adapter can be created and
the platform accepts our credentials. After a refused launch it is tried again when its credentials change, when a
person opens the pool, and after a while.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from jobs.nouns.window import DAY, HOUR
from platforms.base import Misconfigured, PlatformError
from scheduler.core.blame import rest_seconds
from scheduler.core.reasons import CannotLaunch, Cause, Precondition
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.service.outside.border import AdapterCrashed
from scheduler.service.outside.ports import Opening, Ports
from scheduler.store import conditions, events, limits

SILENT, ANSWERS = conditions.SILENT, "pool.answers"
SILENT_SECONDS = conditions.SILENT_SECONDS
_SILENT_WALL_SECONDS = 60.0  # in a rehearsal half an hour passes in seconds
_AGAIN_SECONDS = 3_600  # a refused launch is repeated then, since a repair on the platform is not visible here
_WHY_CHARACTERS = 500
_FIRST_SECONDS, _LONGEST_SECONDS = 120, 3_600


def wait_for_person(tx: Connection, pool: str, error: PlatformError, now: int, until: int | None) -> None:
    """Close a pool that a person must repair; it is tried again at ``until``, or None: when its platform answers."""
    why = f"waits for a person: {error}"[:_WHY_CHARACTERS]
    limits.close_pool(tx, pool, until, why, now, cause=Cause.CREDENTIALS)


def refused_by(tx: Connection, pool: str, error: Misconfigured, now: int) -> None:
    """Close a pool whose platform refused a launch for a reason that only a person can change."""
    wait_for_person(tx, pool, error, now, now + _AGAIN_SECONDS)


def let_in(tx: Connection, pool: str, now: int) -> None:
    """Open a pool that waited for a person, because its platform accepted a launch."""
    closure = limits.standing(tx).get(pool)
    if closure is not None and closure.cause.waits_for_person:
        limits.open_pool(tx, pool, now)


def _opened(opening: Opening, *, reload: bool) -> str | PlatformError:
    try:
        return opening(reload=reload)
    except PlatformError as error:
        return error


class Places:
    """Watches the pools of one daemon. Its state may be lost: a new daemon tries all pools again."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self.unopened = set(ports.openings)  # pools whose platforms were not tried yet
        self._sources: dict[str, str] = {}
        self._seen_event: int | None = None
        self._silent_since: dict[str, int] = {}
        self._pauses = Pauses()
        self._reported_silent: set[str] | None = None

    def open(self, now: int) -> None:
        """Create each platform that is missing or whose credentials changed; close and open pools accordingly."""
        openings = self._ports.openings
        if not openings:
            return
        opened = self._opened_by_people()
        broken: dict[str, PlatformError] = {}
        fresh = set()
        names = {pool: f"{pool} again" if pool in opened else pool for pool in sorted(openings)}
        work = {name: partial(_opened, openings[pool], reload=pool in opened) for pool, name in names.items()}
        answers = self._ports.calls.gather("open", work)
        for pool, name in names.items():
            source = answers.get(name)
            if source is None:
                continue
            self.unopened.discard(pool)
            if isinstance(source, PlatformError):
                self._sources.pop(pool, None)
                broken[pool] = source
            else:
                if self._sources.get(pool) != source:
                    fresh.add(pool)
                self._sources[pool] = source
        if broken or fresh:
            self._write(broken, fresh, now)

    def note(self, answered: Collection[str], troubles: Mapping[str, PlatformError], now: int) -> None:
        """Record which platforms answered the query for sessions, and which did not."""
        if self._reported_silent is None:
            with self._ports.database.read() as tx:
                self._reported_silent = set(conditions.reasons(tx, SILENT))
        refused = {pool: error for pool, error in troubles.items() if isinstance(error, Misconfigured | AdapterCrashed)}
        back = [
            pool for pool in answered if self._silent_since.pop(pool, None) is not None or pool in self._reported_silent
        ]
        if refused or back:
            self._write(refused, set(), now, back)
        self._pauses.keep(troubles)
        for pool, error in troubles.items():
            if self._pauses.is_due(pool, now):
                self._ports.log.warning("platform.unknown", pool=pool, why=str(error))
            since = self._silent_since.setdefault(pool, now)
            silent = self._ports.clock.wall_seconds(now - since) >= _SILENT_WALL_SECONDS
            if pool not in self._reported_silent | set(refused) and silent and now - since >= SILENT_SECONDS:
                self._reported_silent.add(pool)
                self._ports.log.error(SILENT, pool=pool, since=since, why=str(error), next="schedctl doctor")
                with self._ports.write() as tx:
                    events.append(tx, SILENT, pool, now, since=since, why=str(error)[:_WHY_CHARACTERS])

    def _write(
        self, broken: Mapping[str, PlatformError], fresh: Collection[str], now: int, back: Collection[str] = ()
    ) -> None:
        """Close ``broken`` pools; open closed pools with ``fresh`` credentials or a platform that is ``back``."""
        with self._ports.database.read() as tx:
            closures = limits.standing(tx)

        def is_closed(pool: str) -> bool:
            current = closures.get(pool)
            if current is None or current.until is None:
                return current is not None
            return current.until > now and not current.cause.waits_for_person

        def may_open(pool: str) -> bool:
            current = closures.get(pool)
            # After a refused launch only new credentials count: other calls may work without the permission.
            return current is not None and current.cause.waits_for_person and (pool in fresh or current.until is None)

        closing = [pool for pool in broken if not is_closed(pool)]
        opening = [pool for pool in (*fresh, *back) if may_open(pool)]
        silent = self._reported_silent or set()
        answering = [pool for pool in back if pool in silent]
        if not (closing or opening or answering):
            return
        with self._ports.write() as tx:
            for pool in closing:
                wait_for_person(tx, pool, broken[pool], now, None)
            for pool in opening:
                limits.open_pool(tx, pool, now)
            for pool in answering:
                events.append(tx, ANSWERS, pool, now)
        silent.difference_update(answering)
        for pool in closing:
            next_ = "it opens by itself after the repair; to try at once: schedctl pools open " + pool
            self._ports.log.error("pool.waits", pool=pool, why=str(broken[pool]), next=next_)
        for pool in opening:
            self._ports.log.info("pool.opened", pool=pool, why="the reason for which it was closed may be gone")

    def _opened_by_people(self) -> set[str]:
        """Return the pools that people opened since the last cycle."""
        with self._ports.database.read() as tx:
            newest = events.newest_id(tx)
            last_event, self._seen_event = self._seen_event, newest
            if last_event is None or last_event == newest:
                return set()
            opened = events.tail(tx, last_event, kinds=("pool.opened",))
        return {event.subject for event in opened if event.by != "daemon"}


# Repeated failures are logged once, and then after increasing pauses.
class Pauses:
    """Decides when a repeated failure is logged again. Its state may be lost."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[int, int]] = {}  # by name: the pause after the next log entry, and when that is due

    def is_due(self, name: str, now: int) -> bool:
        """Return whether the failure ``name`` must be logged now; if so, the pause until its next log entry doubles."""
        pause, at = self._next.get(name, (_FIRST_SECONDS, now))
        if now < at:
            return False
        self._next[name] = min(2 * pause, _LONGEST_SECONDS), now + pause
        return True

    def keep(self, names: Collection[str]) -> None:
        """Forget all failures except ``names``."""
        self._next = {name: at for name, at in self._next.items() if name in names}


# Cooldowns: pools that are closed for a while because of a failure, longer each time that it repeats.
WRONG_DEVICE = "pool.wrong_device"
QUOTA_DENIED = "pool.quota_denied"
NEVER_BEGAN = "pool.never_began"  # a session ended by itself before its job's command began
# By kind of event: the first cooldown, the longest, and the cause. A wrong accelerator costs minutes of quota.
_RESTS = {
    WRONG_DEVICE: (6 * HOUR, DAY, Cause.WRONG_DEVICE),
    QUOTA_DENIED: (600, 6 * HOUR, Cause.QUOTA_DENIED),
    NEVER_BEGAN: (60, 6 * HOUR, Cause.NEVER_BEGAN),
}


def rest(tx: Connection, pool: str, kind: str, why: str, now: int, at_most_until: int | None = None) -> int:
    """Close a pool temporarily, with an event of ``kind`` that has the reason; return when it opens, in UTC seconds.

    It opens at ``at_most_until`` if that is earlier. A person may open it before.
    """
    first, longest, cause = _RESTS[kind]
    last = events.tail(tx, limit=1, kinds=[kind], subject=pool)
    before = (last[-1].at, int(last[-1].data["rest_seconds"])) if last else None
    seconds = rest_seconds(before, now, first, longest)
    # A launch that was in progress when the pool was closed, and fails too, extends the closure only if its end is
    # near: a session that waited for hours in the platform's queue has just shown that the fault still exists.
    until = now + seconds
    if last and now < last[-1].data["until"]:
        until = max(last[-1].data["until"], now + first // 6)
    if at_most_until is not None:
        until = min(until, at_most_until)
    limits.close_pool(tx, pool, until, why, now, cause=cause)
    events.append(tx, kind, pool, now, why=why, rest_seconds=seconds, until=until)
    return until


# Postponements: jobs that a plan placed and that could not be launched are left out of the next plans for a while.
#
# A plan cannot know everything that a launch needs. Without this, the same plan would be repeated, and a pool would
# stay empty because of a job that cannot be launched.
POSTPONED = conditions.LAUNCH_POSTPONED
AGAIN_SECONDS = 60  # after the first time, when most preparations are finished
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 300, 6 * 3_600
_EARLY_TIMES = 4  # with fewer failures than this, a finished preparation ends the pause at once


class Obstacle(NamedTuple):
    """A precondition that kept a planned job from being launched on a pool."""

    job: str
    pool: str
    precondition: Precondition


@dataclass(slots=True)
class LaunchNews:
    """The results of launches, perhaps from threads: obstacles, and the jobs whose sessions were accepted."""

    obstacles: list[Obstacle] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    def drain(self) -> tuple[list[Obstacle], list[str]]:
        """Return the results since the last call, and clear them."""
        obstacles, self.obstacles = self.obstacles, []
        accepted, self.accepted = self.accepted, []
        return obstacles, accepted


@dataclass(frozen=True, slots=True)
class _Pause:
    precondition: Precondition
    times: int
    until: int


class Postponements:
    """The pauses of jobs by pool. A restart loses them: the next daemon tries each job once more."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._pauses: dict[tuple[str, str], _Pause] = {}

    def record(self, obstacles: Collection[Obstacle], accepted: Collection[str], now: int) -> bool:
        """Record obstacles, and end the pauses of accepted jobs; return whether another plan should be made now.

        From the second time in a row a person must act (event ``launch.postponed``), until the job is launched.
        """
        self._pauses = {key: pause for key, pause in self._pauses.items() if key[0] not in set(accepted)}
        standing = []
        for job, pool, precondition in sorted(set(obstacles)):
            before = self._pauses.get((job, pool))
            times = 1 + (before.times if before else 0)
            pause = AGAIN_SECONDS if times == 1 else min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS << (times - 2))
            self._pauses[job, pool] = _Pause(precondition, times, now + pause)
            if times > 1:
                standing.append((job, pool, precondition, times))
        if standing:
            with self._ports.write() as tx:
                for job, pool, precondition, times in standing:
                    if times == 2:
                        events.append(
                            tx, POSTPONED, job, now, pool=pool, precondition=precondition, why=precondition.words
                        )
                    else:  # the event job.activate of a reservation has closed the condition
                        conditions.put(tx, POSTPONED, job, at=now, why=precondition.words)
        return any(self._pauses[job, pool].times > 1 for job, pool, _ in obstacles)

    def end_early(self, now: int) -> None:
        """End the pauses of jobs that wait for a preparation. It is called after one has finished."""
        for key, pause in self._pauses.items():
            if pause.precondition.comes_by_itself and pause.times < _EARLY_TIMES:
                self._pauses[key] = replace(pause, until=min(pause.until, now))

    def next_end(self, now: int) -> int | None:
        """Return when the next pause ends, in UTC seconds; None without pauses."""
        return min((pause.until for pause in self._pauses.values() if pause.until > now), default=None)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which paused jobs wait: at first for a minute, later without the pools concerned."""
        paused: dict[str, dict[str, _Pause]] = {}
        for (job, pool), pause in self._pauses.items():
            if pause.until > snapshot.now:
                paused.setdefault(job, {})[pool] = pause
        if not paused:
            return snapshot
        every = [view.pool.name for view in snapshot.pools]
        views = [_waiting(view, paused[view.name], every) if view.name in paused else view for view in snapshot.jobs]
        return replace(snapshot, jobs=tuple(views))


def _waiting(view: JobView, pauses: dict[str, _Pause], pools: Sequence[str]) -> JobView:
    if view.running or view.blocked is not None:
        return view
    soon = [pause.until for pause in pauses.values() if pause.times == 1]
    without = {pool for pool, pause in pauses.items() if pause.times > 1}
    left = [pool for pool in view.allowed_pools or pools if pool not in without]
    if not left:
        pool, pause = min(pauses.items(), key=lambda item: item[1].until)
        return replace(view, blocked=CannotLaunch(pause.precondition, pool, pause.until))
    if soon:
        view = replace(view, retry_at=max(view.retry_at or 0, *soon))
    if without:
        rates = {pool: rate for pool, rate in view.rates.items() if pool not in without}
        view = replace(view, allowed_pools=tuple(left), rates=rates)
    return view
