"""Late sessions: runs that have ended in our ledger while their sessions may still run.

Two kinds are watched. Some runs were given up because time passed: a platform may show a session later than it
promised, or start it for a daemon that stood still between its intent and its launch. Others were called ended by their
platform and left no last word: a platform that lost sight of a node calls its sessions ended, and they train on.

Such a session gets its stop flag. One that the platform shows is also ended from outside, and what it is billed is
booked as adjustments with evidence. What it published is recorded for the next session of its jobs. The watch ends with
the platform's word and the session's own, or when neither came for long enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from jobs.lane_report import LaneReport
from jobs.nouns.window import HOUR
from platforms.artifacts.base import StoreError
from platforms.base import Observed, PlatformError, Refused, SessionState
from scheduler.core.run import Run
from scheduler.service.facts.apply import LINGERS_SECONDS
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.observe import read_report, record_late
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.launch.lanes import put_stop_flag, stop_flag_key
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import conditions, events, jobs, ledger, prices, runs, watched
from scheduler.store.conditions import LIVES
from scheduler.store.watched import Watched

LATE = "session.late"
_LIVES_WHY = "its run is over, and it goes on: its stop flag tells it to leave, and its platform is asked to end it"
_EVERY_SECONDS = 600  # one whose run has just ended is looked for in each cycle


class _Signs(NamedTuple):
    """The reports of a session: whether all lanes wrote a final one (``left``), and ``until`` when it is polled."""

    left: bool
    until: int


class LateSessions:
    """Polls the watched runs of one daemon. Its state may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._again_at = 0
        self.faults: dict[str, str] = {}  # by launch key, why a watched run could not be handled

    def look(self, records: Sequence[Watched], now: int) -> None:
        """Poll the watched runs that are due; a run that has just ended is always due."""
        keys = {one.run.key for one in records}
        self.faults = {key: why for key, why in self.faults.items() if key in keys}
        due = [one for one in records if now >= self._again_at or one.over_since + LINGERS_SECONDS > now]
        if now >= self._again_at:
            self._again_at = now + _EVERY_SECONDS
        if due:
            handled, faults = observe_late(self._ports, due, now)
            self.faults = {key: why for key, why in self.faults.items() if key not in handled} | faults


def observe_late(ports: Ports, records: Sequence[Watched], now: int) -> tuple[set[str], dict[str, str]]:
    """Poll each watched run once; return the handled runs, and the errors of the others.

    No answer changes nothing, however long it takes.
    """
    by_pool: dict[str, list[Watched]] = {}
    for one in records:
        if one.run.pool in ports.platforms:  # else it waits until the pool is configured again
            by_pool.setdefault(one.run.pool, []).append(one)
    answers = ports.calls.gather(
        "late sessions",
        {pool: partial(_observe_pool, ports, pool, mine, now) for pool, mine in sorted(by_pool.items())},
    )
    handled = {one.run.key for pool in answers for one in by_pool[pool]}
    return handled, {key: why for faults in answers.values() for key, why in faults.items()}


def _observe_pool(ports: Ports, pool: str, mine: Sequence[Watched], now: int) -> Mapping[str, str]:
    """Poll the watched runs of a pool; return the errors by run."""
    faults: dict[str, str] = {}
    signs: dict[str, _Signs] = {}
    for one in mine:
        with isolated_run(faults, one.run.key):
            try:  # its stop flag, if it is missing
                if ports.artifacts.size(stop_flag_key(one.run.key)) is None:
                    put_stop_flag(ports.artifacts, one.run.key, "the run is over in the books of the scheduler")
            except StoreError as error:
                ports.log.warning("stop.flag_failed", run=one.run.key, why=str(error))
            signs[one.run.key] = _listen(ports, one, now)
    try:
        sightings, refused = border.find(ports, pool, {one.run.key: one.run.planned_start for one in mine})
    except PlatformError as error:
        ports.log.debug("late_session.unknown", pool=pool, why=str(error))
        return faults
    unclear = {each.subject for each in refused}
    answered = ports.clock.now()  # what is over may have ended after the question
    for one in mine:
        with isolated_run(faults, one.run.key):
            if one.run.key in sightings and one.run.key in signs:
                _settle(ports, one, sightings[one.run.key], signs[one.run.key], answered)
            elif one.run.key in unclear:
                ports.log.warning("late_session.unclear", run=one.run.key, pool=pool)
            elif one.run.key in signs and now > signs[one.run.key].until:
                with ports.write() as tx:
                    watched.remove(tx, one.run.key)
    return faults


def _settle(ports: Ports, one: Watched, sighting: Observed, signs: _Signs, now: int) -> None:
    """Bill the time that the platform reports for the run until ``now``, the instant of its answer."""
    run = one.run
    start = sighting.started if sighting.started is not None else one.booked[0] if one.booked else run.planned_start
    match sighting.state:
        case SessionState.ABSENT:
            _book(ports, one, None, sighting.detail or "the platform proves it never started", now, None)
        case SessionState.ENDED:
            over = signs.left or now > signs.until
            given_up = signs.until > now + LINGERS_SECONDS  # and now the platform gives its word
            if (over or given_up) and not (
                _collected(ports, one, now) and record_late(ports, {lane.job for lane in run.lanes}, now)
            ):
                return  # some of its outputs may still arrive
            billed = start, max(start, _end(one, sighting, start, now))
            until = now + LINGERS_SECONDS if given_up else signs.until
            _book(ports, one, billed, "seen after it had been given up", now, None if over else until)
        case SessionState.QUEUED | SessionState.RUNNING:
            # It may have started after all that was held for it. To the hour, so that one that stays costs few entries.
            until = run.held_until if now <= run.held_until else -(-now // HOUR) * HOUR
            if sighting.state is SessionState.RUNNING and one.booked != (start, until):
                _book(ports, one, (start, until), "runs after it had been given up", now, signs.until)
                _report(ports, run, now)
            try:
                border.call(run.pool, "stop", lambda: ports.platforms[run.pool].stop(run.key, now, force=True))
            except PlatformError as error:
                ports.log.error("stop.failed", run=run.key, why=str(error))


def _end(one: Watched, sighting: Observed, start: int, now: int) -> int:
    """Return the end of an ended session's charge: as reported by the platform, else the latest possible end."""
    if sighting.ended is not None and sighting.told:
        return sighting.ended
    held_until = one.run.held_until
    latest = one.booked[1] if one.booked else held_until if start < held_until else now
    return min(now, latest if sighting.ended is None else min(latest, sighting.ended))


def _listen(ports: Ports, one: Watched, now: int) -> _Signs:
    """Read the session's reports. A heartbeat that is newer than the recorded one proves that it runs."""
    run, observation = one.run, Observation()
    with ports.database.read() as tx:
        targets = {lane.job: record.furthest_step for lane in run.lanes if (record := jobs.find(tx, lane.job))}
        reports = runs.heartbeats(tx, [run.key])
    left = 0
    news: dict[int, LaneReport] = {}
    try:
        for lane in (lane for lane in run.lanes if lane.job in targets):
            report = read_report(ports, run, lane, "heartbeat", targets[lane.job], observation)
            last_word = read_report(ports, run, lane, "result", targets[lane.job], observation)
            left += last_word is not None or (report is not None and report.phase == "ended")
            before = reports.get((run.key, lane.index))
            if report is not None and (report.at or 0) > (before.at or 0 if before else 0):
                news[lane.index] = report
    except StoreError as error:
        ports.log.warning("report.unknown", run=run.key, why=str(error))
    if not news:
        return _Signs(left == len(targets), one.until)
    newest = min(now, max(report.at or 0 for report in news.values()))
    until = max(one.until, newest + LINGERS_SECONDS)
    record_late(ports, targets, now)
    with ports.write() as tx:
        for index, report in news.items():
            runs.note_heartbeat(tx, run.key, index, report.document())
        watched.prolong(tx, run.key, until)
    _report(ports, run, now)
    return _Signs(left == len(targets), until)


def _report(ports: Ports, run: Run, now: int) -> None:
    """Write one event that a session runs although its run has ended."""
    with ports.database.read() as tx:
        if run.key in conditions.reasons(tx, LIVES):
            return
    with ports.write() as tx:
        events.append(tx, LIVES, run.key, now, why=f"on {run.pool}: {_LIVES_WHY}")
    ports.log.error(LIVES, run=run.key, pool=run.pool, why=_LIVES_WHY, next=f"schedctl runs show {run.key}")


def _collected(ports: Ports, one: Watched, now: int) -> bool:
    """Collect the outputs of the session; return False if that may still succeed."""
    try:
        border.call(
            one.run.pool, "collect", lambda: ports.platforms[one.run.pool].collect(one.run.key, ports.artifacts, now)
        )
    except Refused as error:
        ports.log.error("collect.refused", run=one.run.key, why=str(error))
    except PlatformError as error:
        ports.log.warning("collect.failed", run=one.run.key, why=str(error))
        return False
    return True


def _book(ports: Ports, one: Watched, billed: tuple[int, int] | None, why: str, now: int, until: int | None) -> None:
    """Correct the ledger to ``billed``, event ``session.late``; watch the run ``until`` then, or no longer if None."""
    with ports.write() as tx:
        if billed != one.booked:
            pool = ports.pools.get(one.run.pool)
            price = prices.of(tx, pool) if pool else 0
            changes = [(*interval, credit) for interval, credit in ((one.booked, True), (billed, False)) if interval]
            ledger.adjust(tx, one.run.pool, one.run.key, changes, now, price, why)
            events.append(tx, LATE, one.run.key, now, booked=one.booked, billed=billed, why=why)
        if until is None:
            watched.remove(tx, one.run.key)
        else:
            watched.prolong(tx, one.run.key, until, billed)
