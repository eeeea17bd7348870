"""The queue, read without SQLAlchemy if the database is SQLite.

`schedctl queue list` is called often, and importing SQLAlchemy would take most of its time. The SQL is portable: the
sqlite3 module of the standard library runs it on SQLite, the engine on PostgreSQL. The engine also reads a missing,
older, damaged or locked database, because it reports the problem.
"""

import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args
from urllib.parse import quote

from scheduler.core.job import Active, JobState

REVISION = "0016"
"""The schema revision for which the queries are written. The engine reads a database of another revision."""

_STATES: dict[str, type[JobState]] = {kind.__name__.lower(): kind for kind in get_args(JobState)}
_SQLITE = "sqlite:///"
_JOBS = (
    "SELECT name, role, position, state, state_detail, weight, target_step, done_step, attempts, failures,"
    " last_pool, not_before, deadline, created_at, spec FROM jobs WHERE removed_at IS NULL ORDER BY position, name"
)
_INTEGER, _TEXT, _INTEGER_OR_NONE = (int,), (str,), (int, type(None))
_TYPES: tuple[tuple[type, ...], ...] = (
    *(_TEXT, _TEXT, _INTEGER, _TEXT, _TEXT, (int, float), _INTEGER, _INTEGER, _INTEGER, _INTEGER),
    *((str, type(None)), _INTEGER_OR_NONE, _INTEGER_OR_NONE, _INTEGER, _TEXT),
)
_PLAN = "SELECT body FROM plans ORDER BY id DESC LIMIT 1"
# For each live session, its last event about the queue of its platform.
_QUEUES = (
    "SELECT subject, kind, data FROM events WHERE id IN (SELECT max(id) FROM events WHERE subject IN"
    " (SELECT run FROM lanes WHERE live) AND kind IN ('run.waits', 'run.began') GROUP BY subject)"
)
_REVISION = "SELECT version_num FROM alembic_version"


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job of the queue. ``waits`` is why the newest plan lets it wait, as stored (see core.reasons), or None.

    ``waiting`` describes a session in its platform's queue, with the keys why, since, starts_at and place (in the
    queue). ``rung`` is the rung of a candidate in a halved sweep, such as ``rung 2 of 3``.
    """

    name: str
    role: str
    position: int
    state: JobState
    weight: float
    target_step: int
    done_step: int
    attempts: int
    failures: int
    last_pool: str | None
    not_before: int | None
    deadline: int | None
    created_at: int
    sweep: str
    rung: str
    waits: Mapping[str, Any] | None
    waiting: Mapping[str, Any] | None


def list_jobs(url: str, states: Collection[str] | None = None) -> list[ListedJob]:
    """Return all jobs, or those in the named states, in queue order; one consistent snapshot. Raises StoreFailure."""
    rows, plan, queues = _from_sqlite(url) or _from_engine(url)
    try:
        return _listed(rows, plan, queues, states)
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        from scheduler.store.engine import open_database

        damage = open_database(url, read_only=True).explain(error)
        if damage is None:
            raise
        raise damage from error


def _listed(
    rows: Iterable[Any], plan: str | None, queues: Iterable[Any], states: Collection[str] | None
) -> list[ListedJob]:
    queue_waits = {run: json.loads(data) for run, kind, data in queues if kind == "run.waits"}
    waits = {entry["job"]: entry["reason"] for entry in json.loads(plan)["deferrals"]} if plan else {}
    jobs_listed = []
    for row in rows:
        name, role, position, state, detail, *others, spec = row
        for value, kinds in zip(row, _TYPES, strict=True):
            if type(value) not in kinds:
                raise TypeError(f"a column of the table jobs has a value of type {type(value).__name__}")
        if states is None or state in states:
            job_state = _state(state, detail)
            of_run = queue_waits.get(job_state.run) if isinstance(job_state, Active) else None
            waiting = {key: of_run.get(key) for key in ("why", "since", "starts_at", "place")} if of_run else None
            sweep, rung = _sweep(spec, others[1])
            listed: tuple[Any, ...] = (name, role, position, job_state, *others, sweep, rung, waits.get(name), waiting)
            jobs_listed.append(ListedJob(*listed))
    return jobs_listed


def _sweep(spec: str, target_step: int) -> tuple[str, str]:
    """Return the sweep of a job and its rung in it, each "" if there is none.

    Few jobs belong to a sweep, and decoding all definitions would take most of the time.
    """
    if '"sweep":"' not in spec or '"sweep":""' in spec:
        return "", ""
    fields = json.loads(spec)
    rule = fields.get("halving")
    if not rule:
        return str(fields["sweep"]), ""
    rung = sum(step < target_step for step in rule["rungs"]) if rule["left_at"] is None else rule["left_at"]
    return str(fields["sweep"]), f"rung {rung + 1} of {len(rule['rungs'])}"


@lru_cache(maxsize=4_096)
def _state(name: str, detail: str) -> JobState:
    """Decode a state as scheduler.store.codec does, without importing that module."""
    return _STATES[name](**json.loads(detail))


_Listed = tuple["Iterable[Any]", "str | None", "Iterable[Any]"]


def _from_sqlite(url: str) -> _Listed | None:
    """Return the jobs, the newest plan and the queue events; None if the engine must read them."""
    path = url.removeprefix(_SQLITE)
    if path == url or not path.startswith("/") or "?" in path:
        return None
    try:
        # Explicit autocommit, so that one BEGIN makes all reads consistent.
        with closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, isolation_level=None)) as connection:
            connection.execute("BEGIN")
            if connection.execute(_REVISION).fetchall() != [(REVISION,)]:
                return None
            plan = connection.execute(_PLAN).fetchone()
            queues = connection.execute(_QUEUES).fetchall()
            return connection.execute(_JOBS).fetchall(), plan[0] if plan else None, queues
    except (sqlite3.Error, UnicodeDecodeError):  # UnicodeDecodeError: the text of an error contains damaged bytes
        return None


def _from_engine(url: str) -> _Listed:
    from sqlalchemy import text

    from scheduler.store.engine import open_database

    database = open_database(url)
    try:
        with database.read() as tx:
            return tx.execute(text(_JOBS)).all(), tx.execute(text(_PLAN)).scalar(), tx.execute(text(_QUEUES)).all()
    finally:
        database.close()
