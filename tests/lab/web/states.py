"""States to look at: the same status page empty, running, finished, in an outage, with very much, hostile, failed.

Every state stands at one instant of a clock that does not move, so that its pictures can be compared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jobs.spec import JobSpec
from scheduler.core.job import Done, Failed, Held
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Plan
from scheduler.core.run import Ended, Lane, Outcome, Run
from scheduler.store import due, events, jobs, lease, ledger, plans, runs
from scheduler.store.engine import open_database
from tests.lab.web.world import CONFIG, CYCLE_SECONDS, DAY, HOUR, World, write_world

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

NOW = 1_795_005_240  # Wednesday 18 November 2026, 12:34 UTC
STATES = ("empty", "running", "finished", "outage", "many", "hostile", "failed")
PAGES: dict[str, tuple[str, ...]] = {
    "empty": ("/", "/queue", "/runs", "/models", "/quota", "/plan", "/ledger", "/reports"),
    "running": ("/", "/?span=day", "/queue", "/jobs/uff-main", "/plan", "/quota", "/reports/2026-W46"),
    "finished": ("/", "/queue", "/plan"),
    "outage": ("/", "/quota"),
    "many": ("/", "/queue"),
    "hostile": ("/", "/jobs/evil"),
    "failed": ("/", "/jobs/broken", "/runs/uff-broken-0003"),
}
"""Which pages of each state are worth their pictures."""
_HOSTILE = '<script>alert("1")</script> \u202egnp.exe\u202c ' + "W" * 90 + " </td></table> {{ 7 * 7 }} \x1b[31m"
_TRACEBACK = (
    "RuntimeError: CUDA error: out of memory. Tried to allocate 2.00 GiB; 312 MiB free of 15 GiB "
    "(train.py, line 214, in backward)"
)


def write_state(folder: Path, state: str, real_now: float) -> World:
    """Make the world of a state; the page reads it at ``NOW``, whatever the time ``real_now`` is."""
    folder.mkdir(parents=True, exist_ok=True)
    match state:
        case "empty":
            world = _empty(folder)
        case "many":
            world = write_world(folder, 1_000, 2_000, NOW)
        case _:
            world = write_world(folder, 9, 90, NOW, outage=state == "outage")
    if state == "finished":
        _finish(world)
    elif state == "hostile":
        _make_hostile(world)
    elif state == "failed":
        _fail(world)
    clock = f"\n[clock]\nscale = 1e-9\nepoch = {NOW}.0\norigin = {float(int(real_now))}\n"
    world.config.write_text(world.config.read_text(encoding="utf-8") + clock, encoding="utf-8")
    return world


def _empty(folder: Path) -> World:
    config = folder / "config.toml"
    config.write_text(CONFIG, encoding="utf-8")
    database = open_database(f"sqlite:///{folder / 'state' / 'scheduler.db'}", create=True)
    lease.acquire(database, "bench:world", HOUR)
    with database.write() as tx:
        due.set_due(tx, due.CYCLE, NOW + CYCLE_SECONDS)
    return World(config, database, NOW)


def _finish(world: World) -> None:
    """End every session and every job of a world well."""
    with world.database.write() as tx:
        for number, run in enumerate(runs.live(tx)):
            at = NOW - (5 + 9 * number) * HOUR
            started = at - 3 * HOUR
            runs.change_state(tx, run.key, run.state, Ended(Outcome.FINISHED, at, started), "end", at)
            spend = LedgerEntry(EntryKind.SPEND, run.pool, run.key, started, at, at, evidence="the platform reports it")
            ledger.append(tx, [spend])
        for number, record in enumerate(jobs.everything(tx)):
            at = NOW - (4 + 11 * number) * HOUR
            jobs.note_progress(tx, record.spec.name, record.spec.target_step, None)
            jobs.change_state(tx, record.spec.name, record.state, Done(at), "finish", at)
        plans.save(tx, Plan(NOW - 600, (), (), 0.0, None, "search"), NOW - 600)


def _make_hostile(world: World) -> None:
    """Let a person, a platform and a session say what hostile ones would."""
    with world.database.write() as tx:
        jobs.add(tx, _spec("evil", "--name", _HOSTILE), NOW - 3 * DAY)
        jobs.change_state(tx, "evil", jobs.get(tx, "evil").state, Held("<b>mia</b>", _HOSTILE, NOW - HOUR), "h", NOW)
        jobs.add(tx, _spec("m" + "0123456789" * 6, "train"), NOW - DAY)
        _failed_run(tx, "evil", 1, NOW - DAY, _HOSTILE)
        events.append(tx, "quota.orphan_suspected", "kaggle", NOW - HOUR, seconds=2_700, why=_HOSTILE)


def _fail(world: World) -> None:
    """Add a job that failed three times and waits for a person."""
    with world.database.write() as tx:
        jobs.add(tx, _spec("broken", "python", "train.py", "--batch", "64"), NOW - 3 * DAY)
        for attempt in (1, 2, 3):
            _failed_run(tx, "broken", attempt, NOW - (30 - 8 * attempt) * HOUR, _TRACEBACK)
        state = Failed("cuda_oom", _TRACEBACK, NOW - 5 * HOUR)
        jobs.change_state(tx, "broken", jobs.get(tx, "broken").state, state, "fail", NOW - 5 * HOUR)


def _spec(name: str, *command: str) -> JobSpec:
    return JobSpec(name=name, role="manager", command=command, target_step=20_000, steps_per_hour=600.0)


def _failed_run(tx: Connection, job: str, attempt: int, at: int, why: str) -> None:
    jobs.note_launch(tx, job, "kaggle")
    lane = Lane(0, job, attempt, (0,), 0, Outcome.FAILED, 120, "cuda_oom", why)
    key = f"uff-{job}-{attempt:04d}"
    run = Run(key, "kaggle", (lane,), at, at + 6 * HOUR, at + 6 * HOUR, Ended(Outcome.FAILED, at + 1_200, at))
    runs.insert(tx, run, at)
    for kind, moment in (("run.submit", at), ("run.accept", at + 60), ("run.end", at + 1_200)):
        events.append(tx, kind, key, moment)
    hold = LedgerEntry(EntryKind.HOLD, "kaggle", key, at, at + 6 * HOUR, at)
    ledger.append(tx, [hold, replace(hold, kind=EntryKind.SPEND, end=at + 1_200, at=at + 1_200, evidence="billed")])
