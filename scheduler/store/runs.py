"""Runs and their lanes. Every change writes one event, except that a heartbeat only replaces the previous one."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Row, bindparam, select, true, update

from jobs.lane_report import LaneReport, kept_report
from jobs.problem import NotFound
from scheduler.core.run import Ended, Lane, Outcome, Run, Running, RunState
from scheduler.store import codec, events
from scheduler.store.errors import Stale
from scheduler.store.schema import lanes, runs


class UnknownRun(NotFound):
    """No run has this launch key."""

    def __init__(self, key: str) -> None:
        super().__init__("unknown run", "no run has this key", "See `schedctl runs list`", key)
        self.key = key


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a job: its lane in a run, which was launched at ``planned_start`` (UTC seconds)."""

    run: str
    lane: int
    planned_start: int


_ATTEMPTS = (
    select(lanes.c.attempt, lanes.c.run, lanes.c.lane, runs.c.planned_start)
    .join_from(lanes, runs)
    .where(lanes.c.job == bindparam("job"))
)
_OF_RUN = ("key", "pool", "planned_start", "deadline", "held_until", "state", "state_detail")
_OF_LANE = tuple(field.name for field in fields(Lane) if field.name != "index")
_WITH_LANES = select(
    *(runs.c[name] for name in _OF_RUN), lanes.c.lane, *(lanes.c[name] for name in _OF_LANE)
).join_from(runs, lanes)
_OLDEST_FIRST = _WITH_LANES.order_by(runs.c.reserved_at, runs.c.key, lanes.c.lane)
_NEWEST_FIRST = _WITH_LANES.order_by(runs.c.reserved_at.desc(), runs.c.key.desc(), lanes.c.lane)
_ONE = _OLDEST_FIRST.where(runs.c.key == bindparam("key"))
_LIVE = _OLDEST_FIRST.where(runs.c.ended_at.is_(None))
_SINCE = _OLDEST_FIRST.where((runs.c.ended_at > bindparam("start")) | runs.c.ended_at.is_(None))
_BETWEEN = _SINCE.where(runs.c.reserved_at < bindparam("end"))
_KEYS = select(runs.c.key).order_by(runs.c.reserved_at.desc(), runs.c.key.desc())
_COUNT = select(sa.func.count()).select_from(runs)
_KEYS_SINCE = select(runs.c.key).where((runs.c.ended_at > bindparam("start")) | runs.c.ended_at.is_(None))
_ENDED_BEFORE = select(runs.c.key).where(runs.c.ended_at < bindparam("end"))
_LIVE_HEARTBEATS = (
    select(lanes.c.heartbeat)
    .where(lanes.c.live == true(), lanes.c.heartbeat.is_not(None))
    .order_by(lanes.c.run, lanes.c.lane)
)
_REPORTS = select(lanes.c.run, lanes.c.lane, lanes.c.job, lanes.c.heartbeat)
_HEARTBEATS = _REPORTS.where(lanes.c.run.in_(bindparam("keys", expanding=True)), lanes.c.heartbeat.is_not(None))
_OF_JOB = select(lanes).where(lanes.c.job == bindparam("job"), lanes.c.outcome.is_not(None))
_OF_SESSIONS = _REPORTS.where(lanes.c.job == bindparam("job")).order_by(lanes.c.attempt.desc())
_LAST_REPORTS = _OF_SESSIONS.where(lanes.c.outcome.is_not(None))
_GOOD_REPORTS = _OF_SESSIONS.where(
    lanes.c.outcome.in_([Outcome.FINISHED, Outcome.YIELDED, Outcome.PREEMPTED]), lanes.c.heartbeat.is_not(None)
).limit(3)


def insert(tx: Connection, run: Run, now: int) -> None:
    """Store a new run and its lanes, and write the event ``run.reserved``.

    The database refuses an existing key or attempt, and a second live run of a job; the error is IntegrityError of
    SQLAlchemy inside the transaction and Refused outside. Raises ValueError for a run without lanes.
    """
    if not run.lanes:
        raise ValueError(f"run {run.key} has no lane")
    row = codec.row_of(run, "lanes", "wait", **codec.state_columns(run.state))
    tx.execute(sa.insert(runs), {**row, "reserved_at": now, "ended_at": _ended_at(run.state)})
    tx.execute(sa.insert(lanes), [_row_of_lane(run, lane) for lane in run.lanes])
    to, jobs = codec.state_json(run.state), [lane.job for lane in run.lanes]
    events.append(tx, "run.reserved", run.key, now, to=to, pool=run.pool, jobs=jobs)


def add_lane(tx: Connection, run: Run, lane: Lane, restore: Collection[str], now: int) -> None:
    """Store the lane of a job that continues in a running session, and write the event ``run.chain``.

    ``restore`` are the manifests from which the job may start. Raises Stale if the run is not running, and the errors
    of :func:`insert`.
    """
    if not isinstance(run.state, Running) or get(tx, run.key) != replace(run, wait=None):
        raise Stale(f"run {run.key}", repr(run), "another state")
    tx.execute(sa.insert(lanes), [_row_of_lane(run, lane)])
    restore_by_job, which = {lane.job: list(restore)}, {"lane": lane.index, "job": lane.job, "attempt": lane.attempt}
    events.write(tx, "run.chain", run.key, now, "daemon", {**which, "restore": restore_by_job})


def get(tx: Connection, key: str) -> Run:
    """Return one run. Raises UnknownRun."""
    records = _runs(tx.execute(_ONE, {"key": key}))
    if not records:
        raise UnknownRun(key)
    return records[0]


def live(tx: Connection) -> list[Run]:
    """Return all runs that have not ended, in the order of reservation."""
    return _runs(tx.execute(_LIVE))


def recent(tx: Connection, limit: int = 50, pool: str | None = None, job: str | None = None) -> list[Run]:
    """Return the newest ``limit`` runs, newest first; only those of ``pool`` or with a lane of ``job``, if given."""
    return page(tx, limit, 0, pool, job)[0]


def page(
    tx: Connection, limit: int, offset: int = 0, pool: str | None = None, job: str | None = None
) -> tuple[list[Run], int]:
    """Return up to ``limit`` runs, newest first, after the first ``offset``, and the total number of runs."""
    wanted: list[ColumnElement[bool]] = [runs.c.pool == pool] if pool is not None else []
    if job is not None:
        wanted.append(runs.c.key.in_(select(lanes.c.run).where(lanes.c.job == job)))
    keys = list(tx.execute(_KEYS.where(*wanted).limit(limit).offset(offset)).scalars())
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    return _runs(tx.execute(_NEWEST_FIRST.where(runs.c.key.in_(keys)))) if keys else [], total


def between(tx: Connection, start: int, end: int) -> list[Run]:
    """Return the runs reserved before ``end`` that ended after ``start`` or are live, in the order of reservation."""
    return _runs(tx.execute(_BETWEEN, {"start": start, "end": end}))


def since(tx: Connection, start: int) -> list[Run]:
    """Return the runs that ended after ``start`` or are live, in the order of reservation."""
    return _runs(tx.execute(_SINCE, {"start": start}))


def keys_since(tx: Connection, start: int) -> set[str]:
    """Return the keys of the runs that ended after ``start`` or are live."""
    return set(tx.execute(_KEYS_SINCE, {"start": start}).scalars())


def ended_before(tx: Connection, end: int) -> set[str]:
    """Return the keys of the runs that ended before ``end``."""
    return set(tx.execute(_ENDED_BEFORE, {"end": end}).scalars())


def attempts(tx: Connection, job: str) -> dict[int, Attempt]:
    """Return the attempts of a job, by number."""
    return {row.attempt: Attempt(row.run, row.lane, row.planned_start) for row in tx.execute(_ATTEMPTS, {"job": job})}


def restore_keys(tx: Connection, key: str, job: str) -> list[str] | None:
    """Return the manifests from which a lane may start; None if they were not stored."""
    for event in reversed(events.tail(tx, kinds=["run.submit", "run.chain"], subject=key)):
        restore = event.data.get("restore")
        if restore is None or job in restore or event.kind == "run.submit":
            return None if restore is None else list(restore.get(job, ()))
    return None


def change_state(
    tx: Connection, key: str, old: RunState, new: RunState, arrow: str, now: int, by: str = "daemon", **detail: Any
) -> None:
    """Replace the state ``old`` by ``new`` and write the event ``run.<arrow>``. Raises Stale in any other state.

    The end of a run frees the jobs of all its lanes.
    """
    still = update(runs).where(runs.c.key == key, *codec.is_in(runs, old))
    if not tx.execute(still.values(**codec.state_columns(new), ended_at=_ended_at(new))).rowcount:
        raise Stale(f"run {key}", repr(old), repr(get(tx, key).state))
    if isinstance(new, Ended):
        tx.execute(update(lanes).where(lanes.c.run == key, lanes.c.live == true()).values(live=False))
    before, after = codec.state_json(old), codec.state_json(new)
    events.write(tx, f"run.{arrow}", key, now, by, {**detail, "from": before, "to": after})


def move(tx: Connection, run: Run, state: RunState, deadline: int, held_until: int, now: int) -> None:
    """Store a new deadline of a live run, and its new start in ``state``; event ``run.move``. Raises Stale."""
    still = update(runs).where(runs.c.key == run.key, *codec.is_in(runs, run.state))
    moved = {"state_detail": codec.state_detail(state), "deadline": deadline, "held_until": held_until}
    if not tx.execute(still.values(moved)).rowcount:
        raise Stale(f"run {run.key}", repr(run.state), repr(get(tx, run.key).state))
    deadlines = {"deadline": deadline, "deadline_before": run.deadline}
    before, after = codec.state_json(run.state), codec.state_json(state)
    events.write(tx, "run.move", run.key, now, "daemon", {**deadlines, "from": before, "to": after})


def close_lane(
    tx: Connection,
    key: str,
    index: int,
    outcome: Outcome,
    end_step: int | None,
    error_class: str | None,
    message: str,
    now: int,
) -> None:
    """Store how a lane ended, which frees its job; event ``lane.<outcome>``. Raises Stale if it had ended before."""
    facts: dict[str, Any] = {"end_step": end_step, "error_class": error_class, "message": message}
    job = tx.execute(
        update(lanes)
        .where(lanes.c.run == key, lanes.c.lane == index, lanes.c.outcome.is_(None))
        .values(live=False, outcome=outcome, **facts)
        .returning(lanes.c.job)
    ).scalar_one_or_none()
    if job is None:
        raise Stale(f"lane {index} of run {key}", "no outcome yet", "an outcome, or no such lane")
    events.append(tx, f"lane.{outcome}", key, now, lane=index, job=job, **facts)


def note_heartbeat(tx: Connection, key: str, index: int, heartbeat: Mapping[str, Any]) -> None:
    """Store the newest report of a lane; do nothing if the lane is unknown."""
    lane = update(lanes).where(lanes.c.run == key, lanes.c.lane == index)
    tx.execute(lane.values(heartbeat=codec.dump(dict(heartbeat))))


def note_restored(tx: Connection, key: str, index: int, step: int | None) -> None:
    """Store the step that a lane resumed from. It may be lower than ordered, if newer checkpoints are damaged."""
    tx.execute(update(lanes).where(lanes.c.run == key, lanes.c.lane == index).values(restore_step=step))


def heartbeats(tx: Connection, keys: Collection[str]) -> dict[tuple[str, int], LaneReport]:
    """Return the newest valid heartbeats of the given runs, by run ID and lane.

    Older versions stored them unvalidated, so they are validated again.
    """
    if not keys:
        return {}
    return {(report.run, report.lane): report for report in _reports(tx.execute(_HEARTBEATS, {"keys": list(keys)}))}


def ended_lanes(tx: Connection, job: str, limit: int = 10) -> list[Lane]:
    """Return the last ended lanes of a job, newest first."""
    return [_lane(row) for row in tx.execute(_OF_JOB.order_by(lanes.c.attempt.desc()).limit(limit), {"job": job})]


def reports_of_good_sessions(tx: Connection, job: str) -> list[LaneReport]:
    """Return the final reports of a job's last three sessions without a failure."""
    return _reports(tx.execute(_GOOD_REPORTS, {"job": job}))


def last_reports(tx: Connection, job: str, limit: int) -> list[LaneReport]:
    """Return the final reports of the last ``limit`` ended sessions of a job, newest first, if they have one."""
    return _reports(tx.execute(_LAST_REPORTS.limit(limit), {"job": job}))


def _reports(rows: Iterable[Row[Any]]) -> list[LaneReport]:
    rows_with_report = (row for row in rows if row.heartbeat is not None)
    reports = (kept_report(codec.load(row.heartbeat), row.run, row.lane, row.job) for row in rows_with_report)
    return [report for report in reports if report is not None]


def live_heartbeats(tx: Connection) -> list[str]:
    """Return the newest heartbeats of all live lanes as stored, so that a caller can notice a change."""
    return list(tx.execute(_LIVE_HEARTBEATS).scalars())


def _ended_at(state: RunState) -> int | None:
    return state.at if isinstance(state, Ended) else None


def _runs(rows: Iterable[Row[Any]]) -> list[Run]:
    return list(_runs_of_rows(tuple(rows)))


@lru_cache(maxsize=64)
def _runs_of_rows(rows: tuple[Row[Any], ...]) -> tuple[Run, ...]:
    # A cycle reads the live runs five times or more, and most of them do not change between two cycles.
    result: list[Run] = []
    for _, group in groupby(rows, key=attrgetter("key")):
        members = list(group)
        first = members[0]
        state = codec.run_state(first.state, first.state_detail)
        result.append(codec.record_of(Run, first, lanes=tuple(map(_lane, members)), state=state, wait=None))
    return tuple(result)


def _lane(row: Row[Any]) -> Lane:
    outcome = None if row.outcome is None else Outcome(row.outcome)
    more = {"devices": codec.devices(row.devices), "trees": codec.texts(row.trees)}
    return codec.record_of(Lane, row, index=row.lane, outcome=outcome, **more)


def _row_of_lane(run: Run, lane: Lane) -> dict[str, Any]:
    live = not isinstance(run.state, Ended) and lane.outcome is None
    whose = {"run": run.key, "lane": lane.index, "live": live}
    trees = codec.dump(dict(lane.trees)) if lane.trees else None
    return codec.row_of(lane, "index", **whose, devices=codec.dump(lane.devices), trees=trees)
