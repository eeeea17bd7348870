"""A world to look at: a year of sessions on three pools, in a database as a daemon would have left it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.payload.store.manifest import Component, Manifest
from jobs.spec import Gate, JobSpec
from scheduler.core.job import Active, Done, Failed, Held
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.reasons import GateClosed, Outbid, QuotaEmpty
from scheduler.core.run import Ended, Lane, Outcome, Reserved, Run, Running, accept, submit
from scheduler.store import checkpoints, due, events, generations, jobs, lease, ledger, limits, plans, rates, runs
from scheduler.store.engine import Database
from scheduler.store.rates import RateRecord
from tests.lab.databases import new_database
from tests.lab.web.versions import add_version

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from scheduler.core.job import JobState

HOUR, DAY, WEEK = 3_600, 86_400, 604_800
CYCLE_SECONDS = 1_200  # as CONFIG says

CONFIG = """
state_dir = "state"
zone = "Europe/Berlin"
models = []

[daemon]
lease = "1h"
cycle = "20m"  # nothing cycles here: for as long as a test may take, that is no delay

[[pools]]
name = "kaggle"
platform = "kaggle"
accelerator = "T4 x2"
devices_per_session = 2
sessions_max = 2
[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "30h"
resets = "Saturday 00:00"
zone = "UTC"

[[pools]]
name = "sagemaker"
platform = "sagemaker"
accelerator = "ml.g5.xlarge"
price_per_hour = "$1.20"
[[pools.quotas]]
name = "hours of the day"
kind = "day"
limit = "4h"
zone = "UTC"
[[pools.quotas]]
name = "budget of the month"
kind = "money-month"
limit = "$150"
zone = "UTC"

[[pools]]
name = "desk"
platform = "local"
accelerator = "RTX 4090"
vram_gib = 24
[[pools.quotas]]
name = "any 24 hours"
kind = "rolling"
limit = "16h"
span = "24h"
"""
_POOLS = (("kaggle", 0.25, 6 * HOUR), ("sagemaker", 0.35, 2 * HOUR), ("desk", 0.4, 3 * HOUR))
_PRICE = {"sagemaker": 1_200_000}


@dataclass
class World:
    """The database, its settings file, and the pages worth measuring."""

    config: Path
    database: Database
    now: int
    events: int = 0
    pages: tuple[str, ...] = ()

    def change(self) -> None:
        """Let something happen."""
        with self.database.write() as tx:
            events.append(tx, "bench.changed", "bench", self.now)


def write_world(
    folder: Path, job_count: int, run_count: int, now: int, *, suffix: str = "", outage: bool = False
) -> World:
    """Make the database of a year that ends ``now``. ``suffix`` lengthens the jobs' names."""
    config = folder / "config.toml"
    config.write_text(CONFIG, encoding="utf-8")
    database = new_database(folder / "state" / "scheduler.db")
    chance = random.Random(7)
    names = ["uff-main" + suffix] + [f"m{index:04d}{suffix}" for index in range(1, job_count)]
    with database.write() as tx:
        for index, name in enumerate(names):
            jobs.add(tx, _spec(index, name, names[0], now), now - 52 * WEEK)
            if index:  # all but the first were started from it, some anew after a checkpoint was refused
                begun = generations.begin(tx, name, 1, now - 52 * WEEK)
                if index % 2:
                    generations.pin(tx, begun, names[0], 5, f"jobs/{names[0]}/manifests/5.json", now, "daemon")
                    generations.refuse(tx, generations.of_job(tx, name)[-1], "damaged", now)
    lease.acquire(database, "bench:world", HOUR)
    attempts = dict.fromkeys(names, 0)
    steps = dict.fromkeys(names, 0)
    newest: Run | None = None
    for number in range(run_count):
        at = now - round(52 * WEEK * (run_count - number) / run_count)
        with database.write() as tx:
            newest = _past_run(tx, chance, names, attempts, steps, at, now)
    with database.write() as tx:
        live = _live_runs(tx, names, attempts, steps, now)
        _states(tx, names, steps, live, now)
        for age in (HOUR, 600):
            plans.save(tx, _plan(chance, names, now - age), now - age)
        due.set_due(tx, due.CYCLE, now + CYCLE_SECONDS)
        if outage:
            limits.close_pool(
                tx, "kaggle", None, "HTTP 503 for 40 minutes: the platform answers nobody", now - 4 * HOUR
            )
            events.append(tx, "quota.orphan_suspected", "kaggle", now - 5 * HOUR, seconds=2_700)
        if run_count:
            add_version(tx, now - HOUR)
        count = events.newest_id(tx)
    key = newest.key if newest else live[0].key
    pages = (
        "/", f"/?from={_day(now - 20 * WEEK)}", "/queue", "/queue?state=queued&page=5", f"/jobs/{names[1]}", "/runs",
        "/runs?page=150", f"/runs/{key}", "/models", "/quota", "/plan", "/ledger", "/reports", "/metrics",
        "/api/v1/status", "/api/v1/queue", "/api/v1/plan", "/api/v1/revision", "/health/ready",
    )  # fmt: skip
    return World(config, database, now, count, pages)


def _day(at: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).date().isoformat()


def _spec(index: int, name: str, main: str, now: int) -> JobSpec:
    return JobSpec(
        name=name,
        role="main" if index == 0 else "manager",
        command=("{python}", "train.py", "--lr", "3e-6"),
        target_step=200_000 if index == 0 else 20_000,
        steps_per_hour=600.0,
        weight=10.0 if index == 0 else 1 + index % 5,
        gate=Gate(main, 0.2) if index % 3 == 1 else None,
        deadline=now + index * HOUR if index % 10 == 2 else None,
    )


def _past_run(
    tx: Connection,
    chance: random.Random,
    names: list[str],
    attempts: dict[str, int],
    steps: dict[str, int],
    at: int,
    now: int,
) -> Run:
    pool, _, length = chance.choices(_POOLS, [share for _, share, _ in _POOLS])[0]
    planned_lanes = chance.sample(names, 2 if pool == "kaggle" and chance.random() < 0.5 else 1)
    ends = min(at + round(length * chance.uniform(0.4, 1.2)), now - 60)
    outcome = chance.choices(
        (Outcome.YIELDED, Outcome.FINISHED, Outcome.FAILED, Outcome.PREEMPTED, Outcome.LOST), (80, 8, 5, 5, 2)
    )[0]
    lanes = []
    for index, job in enumerate(planned_lanes):
        attempts[job] = jobs.note_launch(tx, job, pool)
        begun, steps[job] = steps[job], steps[job] + chance.randint(100, 900)
        devices = (index,) if len(planned_lanes) == 2 else (0, 1) if pool == "kaggle" else (0,)
        words = "CUDA error: out of memory" if outcome is Outcome.FAILED else ""
        lanes.append(Lane(index, job, attempts[job], devices, begun, outcome, steps[job], None, words))
    key = f"uff-{planned_lanes[0][:20]}-{attempts[planned_lanes[0]]:04d}"
    run = Run(key, pool, tuple(lanes), at, at + length, at + length, Ended(outcome, ends, at))
    runs.insert(tx, run, at - 60)
    for kind in ("run.submit", "run.accept", "run.end"):
        events.append(tx, kind, key, at)
    price = _PRICE.get(pool, 0)
    hold = LedgerEntry(EntryKind.HOLD, pool, key, at, at + length, at - 60, price_microdollars_per_hour=price)
    words = f"the platform reports {ends - at} s from the start of the session to its end"
    spend = replace(hold, kind=EntryKind.SPEND, end=ends, at=ends, evidence=words)
    ledger.append(tx, [hold, spend])
    for lane in lanes:
        checkpoints.record(tx, _manifest(run, lane, ends, chance), ends)
    return run


def _manifest(run: Run, lane: Lane, at: int, chance: random.Random) -> Manifest:
    step = lane.end_step or 1
    return Manifest(
        job=lane.job,
        step=step,
        attempt=lane.attempt,
        run=run.key,
        lane=lane.index,
        parent=None,
        created_at=at,
        trained_seconds=max(1, at - run.planned_start - 600),
        components=(Component("weights.safetensors", "0" * 64, 550_000_000), Component("optimizer", "1" * 64, 90_000)),
        metrics={"held_out_loss": 1.4 + 3 / (1 + step / 900) + chance.uniform(-0.03, 0.03)},
    )


def _live_runs(
    tx: Connection, names: list[str], attempts: dict[str, int], steps: dict[str, int], now: int
) -> list[Run]:
    found = []
    for pool, planned_lanes, age in (("kaggle", names[:1], 3), ("kaggle", names[1:3], 1), ("desk", names[3:4], 2)):
        lanes = []
        for index, job in enumerate(planned_lanes):
            attempts[job] = jobs.note_launch(tx, job, pool)
            lanes.append(Lane(index, job, attempts[job], (index,) if len(planned_lanes) == 2 else (0, 1), steps[job]))
        key = f"uff-{planned_lanes[0][:20]}-{attempts[planned_lanes[0]]:04d}"
        begun = now - age * HOUR
        run = Run(key, pool, tuple(lanes), begun, begun + 8 * HOUR, begun + 8 * HOUR, Reserved(begun))
        runs.insert(tx, run, begun)
        sent = submit(run.state, begun)
        runs.change_state(tx, key, run.state, sent, "submit", begun)
        running: Running = accept(sent, f"remote-{key}", begun)
        runs.change_state(tx, key, sent, running, "accept", begun)
        for lane in lanes:
            beat = {"step": steps[lane.job] + 250, "loss": 1.734, "steps_per_second": 0.17, "phase": "training"}
            gpus = {"gpu_memory_bytes": 6 << 30, "gpu_busy": 0.41, "gpu_watts": 68.0, "gpu_throttled": 0.12}
            runs.note_heartbeat(tx, key, lane.index, {**beat, **(gpus if pool == "kaggle" else {})})
        ledger.append(tx, [LedgerEntry(EntryKind.HOLD, pool, key, begun, run.held_until, begun)])
        found.append(run)
    return found


def _states(tx: Connection, names: list[str], steps: dict[str, int], live: list[Run], now: int) -> None:
    running = {lane.job: run.key for run in live for lane in run.lanes}
    for index, name in enumerate(names):
        record = jobs.get(tx, name)
        jobs.note_progress(tx, name, min(steps[name], record.spec.target_step), None)
        state: JobState | None = None
        if name in running:
            state = Active(running[name], now - HOUR)
        elif index % 5 == 4:
            state = Done(now - index * HOUR)
        elif index % 50 == 7:
            state = Held("mia", "wrong learning rate, see the notes of Tuesday", now - DAY)
        elif index % 50 == 8:
            state = Failed("cuda_oom", "CUDA error: out of memory. Tried to allocate 2.00 GiB", now - DAY)
        if state is not None:
            jobs.change_state(tx, name, record.state, state, "prepared", now)
        for pool in ("kaggle", "desk"):
            rates.put(tx, RateRecord(0.17, 0.08, 12, 420, 35, job=name, pool=pool, at=now))


def _plan(chance: random.Random, names: list[str], made_at: int) -> Plan:
    placements: list[Placement] = []
    for pool, _, length in _POOLS:
        at = made_at + 6 * HOUR
        while at < made_at + WEEK:
            planned_lanes = chance.sample(names[4:], 2) if pool == "kaggle" else chance.sample(names[4:], 1)
            placements.append(
                Placement(pool, at, at + length, tuple(PlannedLane(job, 1, 400) for job in planned_lanes))
            )
            at += length + chance.randint(1, 8) * HOUR
    placed = {planned_lane.job for place in placements for planned_lane in place.lanes}
    waiting = (
        GateClosed(names[0], 0.131, 0.2, made_at + 2 * DAY),
        Outbid("kaggle", names[0], 1.31, 14.2),
        QuotaEmpty("sagemaker", "hours of the day", made_at + 9 * HOUR),
    )
    deferrals = tuple(Deferral(job, waiting[index % 3]) for index, job in enumerate(names[4:]) if job not in placed)
    return Plan(made_at, tuple(placements), deferrals, 812.4, 830.1, "search")
