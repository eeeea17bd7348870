"""After a restore: when an old backup was restored, find what was launched and saved since, and take it into the books.

Launch keys are a job and an attempt, so those that the restored database would use next can be looked for by name. Each
one that a platform knows becomes a run with its hold; the ordinary cycle then adopts it or charges it. Nothing is
planned before every platform and the artifact store have answered: a job might run on one that has not answered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection

from jobs.payload.store.manifest import Manifest
from platforms.artifacts.base import StoreError, StoreUnreachable
from platforms.base import Observed, PlatformError, SessionState
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Queued
from scheduler.core.run import Lane, Reserved, Run, launch_key
from scheduler.service.facts.observe import record_late
from scheduler.service.launch.lanes import noted_lanes
from scheduler.service.outside import border
from scheduler.service.outside.ports import Ports
from scheduler.store import checkpoints, due, events, jobs, ledger, runs
from scheduler.store.jobs import JobRecord

AHEAD = 50  # launches of one job that may have been made since the backup, beyond the newest found
_PoolSession = tuple[str, "Observed"]  # pool and session
_NotedLanes = dict[int, tuple[str, int]]  # job and attempt by lane


def catch_up(ports: Ports, now: int) -> bool:
    """Record the runs that are found; return whether the search is complete.

    False when something did not answer, or was entered and must be settled before the next look: of each job one
    session at a time, the oldest first. Raises Fenced and other StoreFailures.
    """
    with ports.database.read() as tx:
        records = {record.spec.name: record for record in jobs.everything(tx)}
        busy = {lane.job for run in runs.live(tx) for lane in run.lanes if lane.outcome is None}
    recorded = record_late(ports, records, now, AHEAD)
    sessions = _sessions(ports, records)
    if not recorded or sessions is None:
        ports.log.warning("restore.waits", next="nothing is launched until everything has answered")
        return False
    lanes_by_key = _noted_lanes(ports, [session for _, session in sessions.values()])
    if lanes_by_key is None:
        ports.log.warning("restore.waits", next="nothing is launched until it is known who has a lane where")
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
    """Return the sessions of the next run IDs of each job, by job and attempt; None if a platform did not answer."""
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

    # An answer that comes late is one to just this question, or of no use.
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


def _noted_lanes(ports: Ports, sessions: Sequence[Observed]) -> dict[str, _NotedLanes] | None:
    """Return the jobs that share each session, by run ID; None if that is unknown for one that may still run."""
    lanes_by_key: dict[str, _NotedLanes] = {}
    for session in sessions:
        try:
            lanes_by_key[session.key] = noted_lanes(ports.artifacts, session.key)
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
    lanes_by_key: Mapping[str, _NotedLanes],
    manifests: Sequence[Manifest],
    records: Mapping[str, JobRecord],
) -> list[Lane]:
    """Return the lanes of a session: the one it is named by, those that were noted, and those that published.

    A lane that the books know already, or whose job they do not know, is somebody else's.
    """
    published = {manifest.lane: (manifest.job, manifest.attempt) for manifest in manifests if manifest.run == key}
    planned_lanes = {0: named}
    for index, (job, attempt) in sorted({**published, **lanes_by_key[key]}.items()):
        is_used = index in planned_lanes or any(job == other for other, _ in planned_lanes.values())
        if not is_used and job in records and 0 < attempt - records[job].attempts <= AHEAD:
            planned_lanes[index] = (job, attempt)
    return [Lane(index, job, attempt, (index,), None) for index, (job, attempt) in sorted(planned_lanes.items())]


def _next(lanes: Mapping[tuple[str, int], Sequence[Lane]], busy: set[str]) -> list[tuple[str, int]]:
    """Return which sessions can be entered now: of each job the lowest attempt, once no other has the job.

    Entering a later one first would count its job's attempts beyond the earlier ones, which would never be found then.
    """
    lowest: dict[str, int] = {}
    for lane in (lane for planned_lanes in lanes.values() for lane in planned_lanes):
        lowest[lane.job] = min(lane.attempt, lowest.get(lane.job, lane.attempt))
    ready: list[tuple[str, int]] = []
    free = [named for named, planned_lanes in sorted(lanes.items()) if not busy & {lane.job for lane in planned_lanes}]
    used = set[str]()
    for named in free:
        if all(lane.attempt == lowest[lane.job] and lane.job not in used for lane in lanes[named]):
            ready.append(named)
            used |= {lane.job for lane in lanes[named]}
    # Notes that contradict each other (each session after the other) must not keep the daemon waiting for ever.
    return ready if ready or busy else free[:1]


def _enter(ports: Ports, tx: Connection, pool: str, session: Observed, lanes: Sequence[Lane], now: int) -> None:
    """Write a run that the backup does not have: its hold, its lanes, and the state Submitting."""
    place = ports.pools[pool]
    if place.device_counts:  # how many it was given is not recorded: assume the most
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
