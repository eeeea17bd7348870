"""Look back: after an old backup was restored, find what was launched and saved since, and take it into the books.

Launch keys are a job and an attempt, so those that the restored database would use next can be looked for by name. Each
one that a platform knows becomes a run with its hold; the ordinary cycle then adopts it or charges it. Nothing is
planned before every platform and the artifact store have answered: a job might have its seat where nobody looked.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError
from platforms.base import PlatformError, SessionState
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.job import Queued
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.run import Lane, Reserved, Run, launch_key
from scheduler.service.apply import apply
from scheduler.service.observe import Observation, read_manifests
from scheduler.store import checkpoints, due, events, jobs, ledger, runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sqlalchemy import Connection

    from jobs.checkpoint import Manifest
    from platforms.base import Observed
    from scheduler.service.ports import Ports
    from scheduler.store.jobs import JobRecord

_REPORT_BYTES = 1 << 20
AHEAD = 50  # launches of one job that may have been made since the backup, beyond the newest found
_Found = tuple[str, "Observed"]  # pool and session


def is_wanted(ports: Ports) -> bool:
    """Tell whether the database was restored and nobody has looked back yet."""
    with ports.database.read() as tx:
        return due.RESTORED in due.next_due(tx)


def look_back(ports: Ports, now: int) -> bool:
    """Enter what is found; return whether nothing is left to be found.

    False when something did not answer, or was entered and must be settled before the next look: of each job one
    session at a time, the oldest first. Raises Fenced and other StoreFailures.
    """
    with ports.database.read() as tx:
        records = {record.spec.name: record for record in jobs.everything(tx)}
        known = checkpoints.keys(tx, records)
        busy = {lane.job for run in runs.live(tx) for lane in run.lanes if lane.outcome is None}
    seen = Observation()
    read_manifests(ports, sorted(records), known, seen)
    found = _sessions(ports, records, now)
    if seen.unlisted or found is None:
        ports.log.warning("restore.waits", next="nothing is launched until everything has answered")
        return False
    _refresh(ports, seen, now)
    reported = _reported(ports, [session.key for _, session in found.values()], records)
    if reported is None:
        return False
    with ports.database.read() as tx:
        manifests = [record.manifest for record in checkpoints.unexpired(tx)] if found else []
    for (job, attempt), (pool, session) in sorted(found.items(), key=lambda entry: entry[0][::-1]):
        lanes = _lanes(job, attempt, reported[session.key], session.key, manifests)
        if busy & {lane.job for lane in lanes}:
            continue
        busy |= {lane.job for lane in lanes}
        with ports.write() as tx:
            _enter(ports, tx, pool, session, lanes, now)
        ports.log.warning("restore.session_found", run=session.key, pool=pool, state=str(session.state))
    if found:
        return False
    with ports.write() as tx:
        due.forget(tx, due.RESTORED)
        events.append(tx, "restore.looked_back", "daemon", now)
    ports.log.info("restore.looked_back")
    return True


def _sessions(ports: Ports, records: Mapping[str, JobRecord], now: int) -> dict[tuple[str, int], _Found] | None:
    """Return the sessions under the next keys of each job, by job and attempt; None when a platform gave no answer."""
    wanted = {
        launch_key(ports.policy.launch_prefix, name, attempt): (name, attempt)
        for name, record in records.items()
        for attempt in range(record.attempts + 1, record.attempts + AHEAD + 1)
    }
    found: dict[tuple[str, int], _Found] = {}
    for pool, platform in sorted(ports.platforms.items()):
        try:
            answer = platform.find(sorted(wanted), now)
        except PlatformError as error:
            ports.log.warning("platform.unknown", pool=pool, why=str(error))
            return None
        for key, session in answer.items():
            if session.state is not SessionState.ABSENT:
                found[wanted[key]] = (pool, session)
    return found


def _refresh(ports: Ports, seen: Observation, now: int) -> None:
    """Record the checkpoints that were published since."""
    if seen.manifests or seen.bad:
        with ports.write() as tx:
            apply(ports, tx, [], seen, [], now)


def _reported(
    ports: Ports, keys: Sequence[str], records: Mapping[str, JobRecord]
) -> dict[str, dict[int, tuple[str, int]]] | None:
    """Return by launch key who sits in which lane, as the lanes' reports tell; None when the store gave no answer.

    A session is named by its first lane. The others report within seconds, long before they save.
    """
    seats: dict[str, dict[int, tuple[str, int]]] = {}
    for key in keys:
        seats[key] = {}
        try:
            for name in ports.artifacts.keys(f"runs/{key}/"):
                if name.endswith(("/heartbeat.json", "/result.json")):
                    lane, seat = _seat(ports.artifacts.read(name, _REPORT_BYTES))
                    if seat[0] in records and seat[1] > records[seat[0]].attempts:
                        seats[key][lane] = seat
        except StoreError as error:
            ports.log.warning("restore.waits", run=key, why=str(error))
            return None
        except (ValueError, KeyError, TypeError, RecursionError):
            ports.log.warning("report.unreadable", run=key)
    return seats


def _seat(report: bytes) -> tuple[int, tuple[str, int]]:
    document = json.loads(report)
    return int(document["lane"]), (str(document["job"]), int(document["attempt"]))


def _lanes(
    job: str, attempt: int, reported: Mapping[int, tuple[str, int]], key: str, manifests: Sequence[Manifest]
) -> list[Lane]:
    """Return the seats of a session: the one it is named by, those that reported, and those that published."""
    published = {manifest.lane: (manifest.job, manifest.attempt) for manifest in manifests if manifest.run == key}
    others = {lane: seat for lane, seat in {**reported, **published}.items() if seat[0] != job}
    seats = {**others, 0: (job, attempt)}
    return [Lane(index, name, number, (index,), None) for index, (name, number) in sorted(seats.items())]


def _enter(ports: Ports, tx: Connection, pool: str, session: Observed, lanes: Sequence[Lane], now: int) -> None:
    """Write the run as it was before the backup forgot it: its hold, its seats, and that its platform was called."""
    place = ports.pools[pool]
    start = session.started if session.started is not None else now
    deadline = start + place.session_cap_seconds
    for lane in lanes:
        while jobs.get(tx, lane.job).attempts < lane.attempt:
            jobs.note_launch(tx, lane.job, pool)
    run = Run(session.key, pool, tuple(lanes), start, deadline, deadline + place.overrun_seconds, Reserved(now))
    runs.insert(tx, run, now)
    hold = LedgerEntry(
        kind=EntryKind.HOLD,
        pool=pool,
        run=run.key,
        start=start,
        end=run.held_until,
        at=now,
        price_microdollars_per_hour=place.price_microdollars_per_hour,
        evidence="found after a backup was restored",
    )
    ledger.append(tx, [hold])
    runs.change_state(tx, run.key, run.state, run_arrows.submit(run.state, now), "submit", now, found="after a restore")
    for lane in lanes:
        state = jobs.get(tx, lane.job).state
        if isinstance(state, Queued):
            active = job_arrows.activate(state, run.key, now)
            jobs.change_state(tx, lane.job, state, active, "activate", now, run=run.key)
