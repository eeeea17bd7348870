"""Verification: run the database's own checks, then compare every row with the events of its changes."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, select, text

from jobs.size import counted
from scheduler.store import codec
from scheduler.store.engine import Database
from scheduler.store.errors import DatabaseCorrupt
from scheduler.store.events import pruned_up_to
from scheduler.store.schema import checkpoints, events, jobs, lanes, lease, ledger, runs


def verify(db: Database) -> list[str]:
    """Return every problem, one sentence each; empty for a healthy database.

    It can run beside the daemon: related rows are read in one transaction. Raises StoreFailure if the database cannot
    be read.
    """
    problems: list[str] = []
    try:
        with db.read() as tx:
            problems += _storage(tx)
        # The comparisons below need readable rows, so each row is checked first.
        problems += map(str, db.damage())
        if problems:
            return problems
        with db.read() as tx:
            checks = (_triggers, _lease, _history, _lanes_of, _attempts, _ledger, _progress)
            return [problem for check in checks for problem in check(tx)]
    except DatabaseCorrupt as failure:
        return [*problems, f"the database is damaged: {failure.why}"]


def _storage(tx: Connection) -> Iterator[str]:
    if tx.dialect.name != "sqlite":
        return
    for (problem,) in tx.execute(text("PRAGMA integrity_check")):
        if problem != "ok":
            yield f"the file is damaged: {problem}"
    for table, rowid, parent, _ in tx.execute(text("PRAGMA foreign_key_check")):
        yield f"row {rowid} of {table} points to a row of {parent} that does not exist"


_TRIGGERS = {
    "sqlite": text("SELECT tbl_name, count(*) FROM sqlite_master WHERE type = 'trigger' GROUP BY tbl_name"),
    "postgresql": text(
        "SELECT relname, count(*) FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid "
        "WHERE NOT tgisinternal AND tgenabled <> 'D' AND relnamespace = current_schema()::regnamespace "
        "GROUP BY relname"
    ),
}
_TRIGGERS_NEEDED = {
    "sqlite": {"events": 3, "ledger": 3, "verdicts": 2},
    "postgresql": {"events": 2, "ledger": 1, "verdicts": 1},
}


def _triggers(tx: Connection) -> Iterator[str]:
    triggers = {row[0]: row[1] for row in tx.execute(_TRIGGERS[tx.dialect.name])}
    for table, needed in _TRIGGERS_NEEDED[tx.dialect.name].items():
        if triggers.get(table, 0) < needed:
            yield f"{table} is no longer append-only: one of its triggers is missing"


def _lease(tx: Connection) -> Iterator[str]:
    if tx.execute(select(lease.c.id)).first() is None:
        yield "the row of the lease is missing: no daemon can start"


def _history(tx: Connection) -> Iterator[str]:
    """Check that each event begins in the state in which the previous one ended, and that the last has the row's state.

    If events were pruned, the first remaining event of a subject may begin in any state, or none remains.
    """
    pruned = pruned_up_to(tx) > 0
    states: dict[tuple[str, str], dict[str, Any]] = {}
    for row in tx.execute(select(events.c.id, events.c.kind, events.c.subject, events.c.data).order_by(events.c.id)):
        noun = row.kind.partition(".")[0]
        if noun not in {"job", "run"}:
            continue
        data = codec.load(row.data)
        if "to" not in data:
            continue
        before = states.get((noun, row.subject))
        if data.get("from") != before and not (pruned and before is None):
            yield (
                f"event {row.id} ({row.kind}) of {noun} {row.subject} begins at {_state_text(data.get('from'))}, "
                f"but the event before it ended at {_state_text(before)}"
            )
        states[noun, row.subject] = data["to"]
    for noun, table, name in (("job", jobs, jobs.c.name), ("run", runs, runs.c.key)):
        rows = tx.execute(select(name, table.c.state, table.c.state_detail))
        for subject, state, detail in rows:
            history = states.pop((noun, subject), None)
            kept = {"state": state, **codec.load(detail)}
            if history != kept and not (pruned and history is None):
                yield f"{noun} {subject} is {_state_text(kept)}, but its events say {_state_text(history)}"
    for noun, subject in states:
        yield f"{noun} {subject} has events but no row"


def _state_text(state: dict[str, Any] | None) -> str:
    return "nothing" if state is None else codec.dump(state)


def _lanes_of(tx: Connection) -> Iterator[str]:
    """Compare lanes with runs and jobs."""
    run_states = {row.key: row.state for row in tx.execute(select(runs.c.key, runs.c.state))}
    with_lanes: set[str] = set()
    columns = (lanes.c.run, lanes.c.lane, lanes.c.job, lanes.c.live, lanes.c.outcome)
    for row in tx.execute(select(*columns).order_by(lanes.c.run, lanes.c.lane)):
        with_lanes.add(row.run)
        ended = run_states[row.run] == "ended"
        if ended and row.outcome is None:
            yield f"run {row.run} has ended, but its lane {row.lane} ({row.job}) has no outcome"
        if ended and row.live:
            yield f"run {row.run} has ended, but its lane {row.lane} still holds {row.job}"
        if not ended and row.outcome is None and not row.live:
            yield f"lane {row.lane} of run {row.run} is open, but does not hold {row.job}"
    for key in run_states:
        if key not in with_lanes:
            yield f"run {key} has no lane"
    for name, detail in tx.execute(select(jobs.c.name, jobs.c.state_detail).where(jobs.c.state == "active")):
        key = codec.load(detail).get("run")
        if run_states.get(key, "ended") == "ended":
            yield f"job {name} is active in run {key}, which is not live"


def _attempts(tx: Connection) -> Iterator[str]:
    launched = dict(tx.execute(select(jobs.c.name, jobs.c.attempts)).all())
    counts: Counter[tuple[str, int]] = Counter()
    for row in tx.execute(select(lanes.c.job, lanes.c.attempt)):
        counts[row.job, row.attempt] += 1
        if row.attempt > launched.get(row.job, 0):
            launches = counted(launched.get(row.job, 0), "launch", "launches")
            yield f"job {row.job} counts {launches}, but attempt {row.attempt} exists"
    for (job, attempt), times in counts.items():
        if times > 1:
            yield f"attempt {attempt} of job {job} exists {times} times"


def _ledger(tx: Connection) -> Iterator[str]:
    """Check that every run has a hold, every ended run one spend or release, and nothing else reserves quota."""
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    pools: dict[str, set[str]] = defaultdict(set)
    for row in tx.execute(select(ledger.c.kind, ledger.c.pool, ledger.c.run).where(ledger.c.run.is_not(None))):
        kinds[row.run][row.kind] += 1
        pools[row.run].add(row.pool)
    for row in tx.execute(select(runs.c.key, runs.c.pool, runs.c.state)):
        kinds_of_run = kinds.pop(row.key, Counter())
        settled = kinds_of_run["spend"] + kinds_of_run["release"]
        if not kinds_of_run["hold"]:
            yield f"run {row.key} has no hold in the ledger"
        if row.state == "ended" and settled != 1:
            yield f"run {row.key} has ended with {settled} spends and releases in the ledger instead of one"
        if row.state != "ended" and settled:
            yield f"run {row.key} is live, but already settled in the ledger"
        if pools[row.key] - {row.pool}:
            yield f"run {row.key} is of pool {row.pool}, but charged to {', '.join(sorted(pools[row.key]))}"
    for key in kinds:
        yield f"the ledger charges run {key}, which does not exist"


def _progress(tx: Connection) -> Iterator[str]:
    steps = {row.key: row.step for row in tx.execute(select(checkpoints.c.key, checkpoints.c.step))}
    for row in tx.execute(select(jobs.c.name, jobs.c.done_step, jobs.c.checkpoint)):
        if row.checkpoint is None:
            if row.done_step:
                yield f"job {row.name} is at step {row.done_step} without a checkpoint"
        elif steps.get(row.checkpoint) != row.done_step:
            yield f"job {row.name} is at step {row.done_step}, which its checkpoint {row.checkpoint} does not hold"
