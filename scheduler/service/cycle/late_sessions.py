"""Late sessions: runs that have ended in our ledger while their sessions may still run.

There are two kinds. Some runs were given up after a time limit: a platform may list a session later than it promised,
or a daemon may be suspended between its intent and its launch. Others were reported as ended without a
final report: a platform that lost contact with a node reports its sessions as ended, but they continue.

Such a session gets a stop flag. If the platform lists it, the platform is asked to stop it, and its bill is
booked as adjustments with evidence. Its checkpoints are recorded for the next sessions of its jobs. The watch ends with
the platform's proof and the session's final reports, or some time after the last sign of life.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from jobs.grouping import grouped
from jobs.lane_report import LaneReport
from jobs.nouns.window import HOUR
from jobs.payload.store.manifest import Manifest
from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.base import Observed, PlatformError, Refused, SessionState
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Queued
from scheduler.core.run import Lane, Reserved, Run, launch_key
from scheduler.service.facts.apply import LINGERS_SECONDS
from scheduler.service.facts.contradictions import contradict
from scheduler.service.facts.observation import Observation
from scheduler.service.facts.observe import read_report, record_late
from scheduler.service.faults.isolation import isolated_run
from scheduler.service.launch.launch_document import put_stop_flag, stop_flag_key, stored_lanes
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, conditions, due, events, jobs, ledger, prices, runs, watched
from scheduler.store.conditions import LIVES
from scheduler.store.jobs import JobRecord
from scheduler.store.watched import Watched

LATE = "session.late"
_LIVES_WHY = "its run has ended, but the session still runs; its stop flag is set, and its platform is asked to end it"
_EVERY_SECONDS = 600  # a run that has just ended is polled in each cycle


class _Signs(NamedTuple):
    """The reports of a session: ``left`` if all lanes wrote a final one; it is polled ``until`` then."""

    left: bool
    until: int


class LateSessions:
    """Polls the watched runs of one daemon. Its state may be lost in a restart."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._again_at = 0
        self.faults: dict[str, str] = {}  # by run ID, why a watched run could not be handled

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

    A platform that does not answer changes nothing.
    """
    # Runs of pools that are not in the settings wait until their pool is configured again.
    by_pool = grouped((one.run.pool, one) for one in records if one.run.pool in ports.platforms)
    answers = ports.calls.gather(
        "late sessions",
        {pool: partial(_observe_pool, ports, pool, mine, now) for pool, mine in sorted(by_pool.items())},
    )
    handled = {one.run.key for pool in answers for one in by_pool[pool]}
    return handled, {key: why for faults in answers.values() for key, why in faults.items()}


def _observe_pool(ports: Ports, pool: str, mine: Sequence[Watched], now: int) -> Mapping[str, str]:
    """Poll the watched runs of a pool; return the errors by run ID."""
    faults: dict[str, str] = {}
    signs: dict[str, _Signs] = {}
    for one in mine:
        with isolated_run(faults, one.run.key):
            try:  # write its stop flag if it is missing
                if ports.artifacts.size(stop_flag_key(one.run.key)) is None:
                    put_stop_flag(ports.artifacts, one.run.key, "the scheduler has ended this run")
            except StoreError as error:
                ports.log.warning("stop.flag_failed", run=one.run.key, why=str(error))
            signs[one.run.key] = _listen(ports, one, now)
    try:
        sightings, refused = border.find(ports, pool, {one.run.key: one.run.planned_start for one in mine})
    except PlatformError as error:
        ports.log.debug("late_session.unknown", pool=pool, why=str(error))
        return faults
    unclear = {each.subject for each in refused}
    answered = ports.clock.now()  # a session that is over may have ended after the query was sent
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
    """Bill the time of a run that the platform reports. ``now`` is the instant of the platform's answer."""
    run = one.run
    start = sighting.started if sighting.started is not None else one.booked[0] if one.booked else run.planned_start
    match sighting.state:
        case SessionState.ABSENT:
            _book(ports, one, None, sighting.detail or "the platform proves that it never started", now, None)
        case SessionState.ENDED:
            over = signs.left or now > signs.until
            given_up = signs.until > now + LINGERS_SECONDS  # the longer watch of a run that ended without proof
            if (over or given_up) and not (
                _collected(ports, one, now) and record_late(ports, {lane.job for lane in run.lanes}, now)
            ):
                return  # some of its outputs may still arrive
            billed = start, max(start, _end(one, sighting, start, now))
            until = now + LINGERS_SECONDS if given_up else signs.until
            _book(ports, one, billed, "its platform reported it after its run had ended", now, None if over else until)
        case SessionState.QUEUED | SessionState.RUNNING:
            # It may have started after the end of its hold. The end is rounded up to the hour, so that a session that
            # continues causes few ledger entries.
            until = run.held_until if now <= run.held_until else -(-now // HOUR) * HOUR
            if sighting.state is SessionState.RUNNING and one.booked != (start, until):
                _book(ports, one, (start, until), "it still runs after its run has ended", now, signs.until)
                _report(ports, run, now)
            try:
                border.call(run.pool, "stop", lambda: ports.platforms[run.pool].stop(run.key, now, force=True))
            except PlatformError as error:
                ports.log.error("stop.failed", run=run.key, why=str(error))


def _end(one: Watched, sighting: Observed, start: int, now: int) -> int:
    """Return until when an ended session is charged: the end by its platform, or else the latest possible one."""
    if sighting.ended is not None and sighting.told:
        return sighting.ended
    held_until = one.run.held_until
    latest = one.booked[1] if one.booked else held_until if start < held_until else now
    return min(now, latest if sighting.ended is None else min(latest, sighting.ended))


def _listen(ports: Ports, one: Watched, now: int) -> _Signs:
    """Read the session's reports and return what they show. A newer heartbeat proves that the session runs."""
    run, observation = one.run, Observation()
    with ports.database.read() as tx:
        targets = {lane.job: record.furthest_step for lane in run.lanes if (record := jobs.find(tx, lane.job))}
        reports = runs.heartbeats(tx, [run.key])
    left = 0
    news: dict[int, LaneReport] = {}
    try:
        for lane in (lane for lane in run.lanes if lane.job in targets):
            report = read_report(ports, run, lane, "heartbeat", targets[lane.job], observation)
            final = read_report(ports, run, lane, "result", targets[lane.job], observation)
            left += final is not None or (report is not None and report.phase == "ended")
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
    """Write the event that a session runs although its run has ended, once."""
    with ports.database.read() as tx:
        if run.key in conditions.reasons(tx, LIVES):
            return
    with ports.write() as tx:
        events.append(tx, LIVES, run.key, now, why=f"on {run.pool}: {_LIVES_WHY}")
    ports.log.error(LIVES, run=run.key, pool=run.pool, why=_LIVES_WHY, next=f"schedctl runs show {run.key}")


def _collected(ports: Ports, one: Watched, now: int) -> bool:
    """Collect the outputs of the session; return False if a later attempt may succeed."""
    pool, key = one.run.pool, one.run.key
    try:
        border.call(pool, "collect", lambda: ports.platforms[pool].collect(key, ports.artifacts, now))
    except Refused as error:
        ports.log.error("collect.refused", run=key, why=str(error))
    except PlatformError as error:
        ports.log.warning("collect.failed", run=one.run.key, why=str(error))
        return False
    return True


def _book(ports: Ports, one: Watched, billed: tuple[int, int] | None, why: str, now: int, until: int | None) -> None:
    """Correct the ledger to ``billed``, with the event ``session.late``; watch the run ``until`` then, None: end it."""
    with ports.write() as tx:
        if billed != one.booked:
            pool = ports.pools.get(one.run.pool)
            price = prices.of(tx, pool) if pool else 0
            changes = [(*interval, credit) for interval, credit in ((one.booked, True), (billed, False)) if interval]
            ledger.adjust(tx, one.run.pool, one.run.key, changes, now, price, why)
            events.append(tx, LATE, one.run.key, now, booked=one.booked, billed=billed, why=why)
            if one.booked is None:  # its run ended because the platform did not list it
                late = now - one.run.planned_start
                evidence = f"it ran {late} s after its launch, although its platform had not listed it"
                contradict(ports, tx, one.run.pool, "visible", one.run.key, evidence, now)
        if until is None:
            watched.remove(tx, one.run.key)
        else:
            watched.prolong(tx, one.run.key, until, billed)


# Search after the restore of an old backup: sessions and checkpoints that are newer than the backup are recorded.
#
# Run IDs are made of job and attempt, so the sessions that the restored database would launch next can be searched by
# name. Each one that a platform knows becomes a run with a hold; the usual cycle then adopts or bills it. No plan is
# made before every platform and the artifact store have answered, because a job might run on one that has not.
AHEAD = 50  # launches of one job that may be missing in the backup, beyond the newest one found
_PoolSession = tuple[str, "Observed"]  # pool and session
_StoredLanes = dict[int, tuple[str, int]]  # job and attempt by lane


def catch_up(ports: Ports, now: int) -> bool:
    """Record runs that are missing in the database; return whether the search is complete.

    It is incomplete if a platform or the store did not answer. It is also incomplete if a run was added, because the
    sessions of each job are added one at a time, oldest first. Raises Fenced and other StoreFailures.
    """
    with ports.database.read() as tx:
        records = {record.spec.name: record for record in jobs.everything(tx)}
        busy = {lane.job for run in runs.live(tx) for lane in run.lanes if lane.outcome is None}
    recorded = record_late(ports, records, now, AHEAD)
    sessions = _sessions(ports, records)
    if not recorded or sessions is None:
        ports.log.warning("restore.waits", next="nothing is launched until all platforms and the store have answered")
        return False
    lanes_by_key = _read_lanes(ports, [session for _, session in sessions.values()])
    if lanes_by_key is None:
        ports.log.warning("restore.waits", next="nothing is launched until the lanes of each session are known")
        return False
    with ports.database.read() as tx:
        manifests = [record.manifest for record in checkpoints.unexpired(tx)] if sessions else []
    lanes = {
        named: _lanes(named, session.key, lanes_by_key, manifests, records) for named, (_, session) in sessions.items()
    }
    for named in _next(lanes, busy):
        pool, session = sessions[named]
        with ports.write() as tx:
            _enter(ports, tx, pool, session, lanes[named], now)
        ports.log.warning("restore.session_found", run=session.key, pool=pool, state=str(session.state))
    if sessions:
        return False
    with ports.write() as tx:
        due.forget(tx, due.RESTORED)
        events.append(tx, "restore.looked_back", "daemon", now)
    ports.log.info("restore.looked_back")
    return True


def _sessions(ports: Ports, records: Mapping[str, JobRecord]) -> dict[tuple[str, int], _PoolSession] | None:
    """Return known sessions of each job's next run IDs, by (job, attempt); None if a platform did not answer."""
    wanted = {
        launch_key(ports.policy.launch_prefix, name, attempt): (name, attempt)
        for name, record in records.items()
        for attempt in range(record.attempts + 1, record.attempts + AHEAD + 1)
    }

    def ask(pool: str) -> Mapping[str, Observed] | None:
        try:
            answer, refused = border.find(ports, pool, dict.fromkeys(sorted(wanted)))
        except PlatformError as error:
            ports.log.warning("platform.unknown", pool=pool, why=str(error))
            return None
        if refused:
            ports.log.warning("platform.unclear", pool=pool, runs=[one.subject for one in refused])
            return None
        return answer

    # The digest ties a late answer to exactly this query.
    question = hashlib.sha256("\n".join(sorted(wanted)).encode()).hexdigest()[:16]
    names = {pool: f"{pool} {question}" for pool in sorted(ports.platforms)}
    answers = ports.calls.gather("catch up", {name: partial(ask, pool) for pool, name in names.items()})
    sessions: dict[tuple[str, int], _PoolSession] = {}
    for pool, name in names.items():
        answer = answers.get(name)
        if answer is None:
            return None
        for key, session in answer.items():
            if session.state is not SessionState.ABSENT:
                sessions[wanted[key]] = (pool, session)
    return sessions


def _read_lanes(ports: Ports, sessions: Sequence[Observed]) -> dict[str, _StoredLanes] | None:
    """Return the stored lanes of each session by run ID; None if they are unknown for a session that may still run."""
    lanes_by_key: dict[str, _StoredLanes] = {}
    for session in sessions:
        try:
            lanes_by_key[session.key] = stored_lanes(ports.artifacts, session.key)
        except StoreUnreachable as error:
            ports.log.warning("lanes.unknown", run=session.key, why=str(error))
            return None
        except (StoreError, ValueError) as error:
            ports.log.warning("lanes.unreadable", run=session.key, why=str(error))
            if session.state is not SessionState.ENDED:
                return None
            lanes_by_key[session.key] = {}
    return lanes_by_key


def _lanes(
    named: tuple[str, int],
    key: str,
    lanes_by_key: Mapping[str, _StoredLanes],
    manifests: Sequence[Manifest],
    records: Mapping[str, JobRecord],
) -> list[Lane]:
    """Return the lanes of a session: that of its run ID, the stored ones, and those that published checkpoints.

    A lane whose attempt is recorded already, or whose job is unknown, belongs to another scheduler.
    """
    published = {manifest.lane: (manifest.job, manifest.attempt) for manifest in manifests if manifest.run == key}
    by_index = {0: named}
    for index, (job, attempt) in sorted({**published, **lanes_by_key[key]}.items()):
        is_used = index in by_index or any(job == other for other, _ in by_index.values())
        if not is_used and job in records and 0 < attempt - records[job].attempts <= AHEAD:
            by_index[index] = (job, attempt)
    return [Lane(index, job, attempt, (index,), None) for index, (job, attempt) in sorted(by_index.items())]


def _next(lanes: Mapping[tuple[str, int], Sequence[Lane]], busy: set[str]) -> list[tuple[str, int]]:
    """Return the sessions that can be added now: each job's lowest attempt, if no live run has the job.

    A later attempt would raise the job's number of attempts, and then the earlier ones would never be found.
    """
    lowest: dict[str, int] = {}
    for lane in (lane for by_index in lanes.values() for lane in by_index):
        lowest[lane.job] = min(lane.attempt, lowest.get(lane.job, lane.attempt))
    ready: list[tuple[str, int]] = []
    free = [named for named, by_index in sorted(lanes.items()) if not busy & {lane.job for lane in by_index}]
    used = set[str]()
    for named in free:
        if all(lane.attempt == lowest[lane.job] and lane.job not in used for lane in lanes[named]):
            ready.append(named)
            used |= {lane.job for lane in lanes[named]}
    # Contradictory lanes (each session after the other) must not block the daemon for ever.
    return ready if ready or busy else free[:1]


def _enter(ports: Ports, tx: Connection, pool: str, session: Observed, lanes: Sequence[Lane], now: int) -> None:
    """Add a run that is missing in the backup, with its hold and lanes, in the state Submitting."""
    place = ports.pools[pool]
    if place.device_counts:  # its number of devices is unknown: assume the maximum
        lanes = [replace(lane, devices=tuple(range(place.device_counts[-1]))) for lane in lanes]
    start = session.started if session.started is not None else now
    deadline = start + place.session_cap_seconds
    for lane in lanes:
        while jobs.get(tx, lane.job).attempts < lane.attempt:
            jobs.note_launch(tx, lane.job, pool)
    run = Run(session.key, pool, tuple(lanes), start, deadline, deadline + place.overrun_seconds, Reserved(now))
    runs.insert(tx, run, now)
    ledger.hold(tx, run, now, place.price_microdollars_per_hour, "found after a backup was restored")
    runs.change_state(tx, run.key, run.state, run_arrows.submit(run.state, now), "submit", now, found="after a restore")
    for lane in lanes:
        state = jobs.get(tx, lane.job).state
        if isinstance(state, Queued):
            active = job_arrows.activate(state, run.key, now)
            jobs.change_state(tx, lane.job, state, active, "activate", now, run=run.key)
