"""Postponements: jobs that a plan placed and that could not be launched, left out of the next plans for a while.

A plan cannot know everything that a launch needs. Without this, the same plan would be made again and again, and a pool
would stay empty for a job that cannot be launched.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from scheduler.core.precondition import Precondition
from scheduler.core.reasons import CannotLaunch
from scheduler.core.snapshot import JobView, Snapshot
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, events

POSTPONED = conditions.LAUNCH_POSTPONED
AGAIN_SECONDS = 60  # after the first time, when most preparations are through
_FIRST_SECONDS, _LONGEST_SECONDS = 300, 6 * 3_600
_EARLY_TIMES = 4  # until then a finished preparation ends the pause at once


class Obstacle(NamedTuple):
    """Why a job that was planned on a pool for now could not be launched there."""

    job: str
    pool: str
    precondition: Precondition


@dataclass(slots=True)
class LaunchNews:
    """What came of launches, perhaps in threads: what kept jobs back, and which jobs' sessions were accepted."""

    obstacles: list[Obstacle] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    def drain(self) -> tuple[list[Obstacle], list[str]]:
        """Return what came since the last call."""
        obstacles, self.obstacles = self.obstacles, []
        accepted, self.accepted = self.accepted, []
        return obstacles, accepted


@dataclass(frozen=True, slots=True)
class _Pause:
    precondition: Precondition
    times: int
    until: int


class Postponements:
    """The pauses of jobs by pool. They are lost with the daemon: the next one tries each job once more."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._pauses: dict[tuple[str, str], _Pause] = {}

    def record(self, obstacles: Collection[Obstacle], accepted: Collection[str], now: int) -> bool:
        """Record what could not be launched and whose sessions began; return whether another plan is wanted now.

        The second time in a row it is an action for a person (event ``launch.postponed``), until the job is launched.
        """
        self._pauses = {key: pause for key, pause in self._pauses.items() if key[0] not in set(accepted)}
        standing = []
        for job, pool, precondition in sorted(set(obstacles)):
            before = self._pauses.get((job, pool))
            times = 1 + (before.times if before else 0)
            pause = AGAIN_SECONDS if times == 1 else min(_LONGEST_SECONDS, _FIRST_SECONDS << (times - 2))
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
                    else:  # a reservation had closed it
                        conditions.put(tx, POSTPONED, job, at=now, why=precondition.words)
        return any(self._pauses[job, pool].times > 1 for job, pool, _ in obstacles)

    def end_early(self, now: int) -> None:
        """End the pauses of what is prepared, since one preparation came to its end."""
        for key, pause in self._pauses.items():
            if pause.precondition.comes_by_itself and pause.times < _EARLY_TIMES:
                self._pauses[key] = replace(pause, until=min(pause.until, now))

    def next_end(self, now: int) -> int | None:
        """Return when the next pause ends."""
        return min((pause.until for pause in self._pauses.values() if pause.until > now), default=None)

    def applied(self, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which paused jobs wait: for a minute at first, then without the pools concerned."""
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
