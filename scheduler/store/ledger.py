"""The ledger of billed and reserved time: append-only, with at most one spend or release for each run."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, bindparam, func, insert, select

from jobs.nouns.window import DAY
from scheduler.core.ledger import Charge, EntryKind, LedgerEntry, fold
from scheduler.core.run import Lane, Run, lane_seconds
from scheduler.store import codec
from scheduler.store.schema import jobs, lanes, ledger, runs

# The devices of a run's first lane. On pools whose sessions differ in their devices, the first lane has all of them.
_devices = select(lanes.c.devices).where(lanes.c.run == ledger.c.run, lanes.c.lane == 0).scalar_subquery()
_ALL = select(ledger, _devices.label("devices")).order_by(ledger.c.id)
_OF_RUNS = _ALL.where(ledger.c.run.in_(bindparam("runs", expanding=True)))
_of_jobs = (
    select(lanes.c.run)
    .join_from(lanes, runs)
    .where(lanes.c.job.in_(bindparam("jobs", expanding=True)), runs.c.reserved_at >= bindparam("since"))
)
_SESSIONS_OF_JOBS = select(
    lanes.c.run, lanes.c.lane, lanes.c.job, lanes.c.attempt, lanes.c.devices, lanes.c.begun_at
).where(lanes.c.run.in_(_of_jobs))
_NEWEST_FIRST = _ALL.order_by(None).order_by(ledger.c.id.desc())
_NEWEST = select(func.max(ledger.c.id))
_AFTER = _ALL.where(ledger.c.id > bindparam("number"))
_ADDED_BY_AGENTS = (
    select(lanes.c.run, jobs.c.spec)
    .join_from(lanes, jobs, jobs.c.name == lanes.c.job)
    .where(lanes.c.run.in_(bindparam("runs", expanding=True)), lanes.c.lane == 0, jobs.c.spec.like('%"agent":"agent:%'))
)
_COUNT = select(func.count()).select_from(ledger)
_touching = select(ledger.c.run).where(ledger.c.ends_at > bindparam("since"), ledger.c.run.is_not(None))
# A hold without its spend would count in full, so all entries of a run are read. Both sides of the OR use an index.
_SINCE = _ALL.where(ledger.c.run.in_(_touching) | (ledger.c.run.is_(None) & (ledger.c.ends_at > bindparam("since"))))
_NEVER = 1 << 62
Correction = tuple[int, int, bool]  # start, end, and whether the time is credited
# Charges older than every known window (a month of 31 days, and one day of tolerance) cannot affect a decision.
LOOK_BACK_SECONDS = 33 * DAY


def append(tx: Connection, entries: Sequence[LedgerEntry]) -> None:
    """Append entries. The database refuses a second spend or release of a run."""
    key_columns = ("start", "end", "devices", "agent")
    rows = [codec.row_of(entry, *key_columns, starts_at=entry.start, ends_at=entry.end) for entry in entries]
    if rows:
        tx.execute(insert(ledger), rows)


def hold(tx: Connection, run: Run, now: int, price: int, evidence: str, start: int | None = None) -> None:
    """Append the hold of a run, from ``start`` (default: its planned start) until the end of its reserved time."""
    begins = run.planned_start if start is None else start
    entry = LedgerEntry(EntryKind.HOLD, run.pool, run.key, begins, run.held_until, now, evidence=evidence)
    append(tx, [replace(entry, price_microdollars_per_hour=price)])


def adjust(
    tx: Connection, pool: str, run: str | None, intervals: Iterable[Correction], now: int, price: int, evidence: str
) -> None:
    """Append corrections of a charge."""
    for start, end, credit in intervals:
        append(tx, [LedgerEntry(EntryKind.ADJUST, pool, run, start, end, now, credit, price, evidence)])


def entries(tx: Connection, since: int | None = None, pool: str | None = None) -> list[LedgerEntry]:
    """Return entries in the order in which they were appended.

    With ``since``, return all entries of the runs that have an entry which ends after it.
    """
    query = _ALL if since is None else _SINCE
    if pool is not None:
        query = query.where(ledger.c.pool == pool)
    rows = tx.execute(query, {} if since is None else {"since": since})
    return [_entry(tuple(row)) for row in rows]


def of_runs(tx: Connection, keys: Sequence[str]) -> list[LedgerEntry]:
    """Return all entries of these runs, in the order in which they were appended."""
    return [_entry(tuple(row)) for row in tx.execute(_OF_RUNS, {"runs": list(keys)})] if keys else []


def device_seconds(tx: Connection, names: Collection[str], since: int) -> dict[str, int]:
    """Return the charged device seconds of each job of ``names``, for runs reserved at ``since`` or later.

    Live sessions count with their hold. A lane counts the session's seconds on each of its devices, until another lane
    continues on them.
    """
    sessions: dict[str, list[Lane]] = {}
    rows = tx.execute(_SESSIONS_OF_JOBS, {"jobs": sorted(names), "since": since})
    for run, index, job, attempt, devices, begun_at in rows:
        lane = Lane(index, job, attempt, codec.devices(devices), None, begun_at=begun_at)
        sessions.setdefault(run, []).append(lane)
    total = dict.fromkeys(names, 0)
    for charges_of_pool in fold(of_runs(tx, sorted(sessions))).values():
        for charge in charges_of_pool:
            session = sessions.get(charge.run or "", ())
            seconds = lane_seconds(session, charge.start, charge.end)
            for lane in session:
                if lane.job in total:
                    total[lane.job] += charge.sign * seconds[lane.index]
    return total


def page(tx: Connection, limit: int, offset: int = 0, pool: str | None = None) -> tuple[list[LedgerEntry], int]:
    """Return up to ``limit`` entries, newest first, after the first ``offset``, and the total number of entries."""
    wanted = [ledger.c.pool == pool] if pool is not None else []
    total: int = tx.execute(_COUNT.where(*wanted)).scalar_one()
    rows = tx.execute(_NEWEST_FIRST.where(*wanted).limit(limit).offset(offset))
    entries = [_entry(tuple(row)) for row in rows]
    specs = {row.run: row.spec for row in tx.execute(_ADDED_BY_AGENTS, {"runs": [entry.run for entry in entries]})}
    agents = {run: str(json.loads(spec)["agent"]) for run, spec in specs.items()}
    return [replace(entry, agent=agents[entry.run]) if entry.run in agents else entry for entry in entries], total


def newest_number(tx: Connection) -> int:
    """Return the number of the newest entry, 0 if there is none. Entries are never deleted."""
    return tx.execute(_NEWEST).scalar() or 0


def charges(tx: Connection, since: int) -> Mapping[str, tuple[Charge, ...]]:
    """Return the charges of each pool, from all entries of the runs that have an entry which ends after ``since``."""
    newest = tx.execute(_NEWEST).scalar() or 0
    folded = _folded.get(tx)
    if folded is not None and folded.newest != newest:
        fresh = [_entry(tuple(row)) for row in tx.execute(_AFTER, {"number": folded.newest})]
        folded = folded.with_more(newest, fresh)
    if folded is None or not folded.since <= since < folded.until:
        folded = _Folded(newest, since, entries(tx, since))
    _folded[tx] = folded
    return folded.charges


class _Folded:
    """The folded entries up to the entry ``newest``; valid for every ``since`` in [since, until)."""

    def __init__(self, newest: int, since: int, newer: Sequence[LedgerEntry], before: "_Folded | None" = None) -> None:
        """Fold ``newer`` entries in addition to those of ``before``."""
        self.newest, self.since = newest, since
        earlier = before.entries if before is not None else []
        self.entries: list[LedgerEntry] = [*earlier, *newer]
        # The latest end by run, and by number for entries without a run.
        self.ends: dict[str | int, int] = dict(before.ends) if before is not None else {}
        for number, entry in enumerate(newer, start=len(earlier)):
            whose = number if entry.run is None else entry.run
            self.ends[whose] = max(self.ends.get(whose, entry.end), entry.end)
        self.until = min(self.ends.values(), default=_NEVER)  # for a later ``since`` fewer entries count
        touched = {entry.pool for entry in newer}
        folded = fold(entry for entry in self.entries if entry.pool in touched)
        self.charges: Mapping[str, tuple[Charge, ...]] = MappingProxyType(
            {**before.charges, **folded} if before is not None else folded
        )

    def with_more(self, newest: int, fresh: Iterable[LedgerEntry]) -> "_Folded | None":
        """Return a copy with further entries; None if one belongs to a run that was too old to be read."""
        more: list[LedgerEntry] = []
        begun = set()
        for entry in fresh:
            is_new = entry.run in self.ends or entry.run in begun
            if not is_new and entry.end <= self.since:
                continue
            if not is_new and entry.run is not None:
                if entry.kind is not EntryKind.HOLD:
                    return None
                begun.add(entry.run)
            more.append(entry)
        return _Folded(newest, self.since, more, self)


# Planning, reserving and auditing read the same entries, and entries are only appended. The cache is kept per
# connection, which is discarded when a transaction fails: rolled-back entries are forgotten with it.
_folded: WeakKeyDictionary[Connection, _Folded] = WeakKeyDictionary()


@lru_cache(maxsize=4_096)
def _entry(row: tuple[Any, ...]) -> LedgerEntry:
    _, kind, *rest = row
    rest[-1] = max(1, len(codec.devices(rest[-1]))) if rest[-1] else 1
    return LedgerEntry(EntryKind(kind), *rest)
