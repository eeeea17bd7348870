"""World: an installation in the middle of its week, which tests of commands and samples of the documents look at."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import Gate, JobSpec, Mixture, Needs
from platforms.artifacts.directory import DirectoryStore
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.reasons import QuotaEmpty
from scheduler.core.run import Lane, Reserved, Run
from scheduler.store import checkpoints, jobs, ledger, plans, rates, runs
from tests.lab.databases import new_database

if TYPE_CHECKING:
    from pathlib import Path

    from scheduler.store.engine import Database

NOW = 1_790_000_000  # Mon 2026-09-21 14:13:20 UTC
SETTINGS = f"""
state_dir = "state"
zone = "Europe/Berlin"
models = ["models.toml"]

[clock]
epoch = {NOW}.0
origin = 1.5e9
scale = 1e-9

[[pools]]
name = "kaggle"
platform = "local"
accelerator = "T4 x2"
devices_per_session = 2
sessions_max = 2
vram_gib = 15
session_cap = "12h"
source = "docs"
as_of = 2026-11-21

[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "30h"
resets = "Saturday 00:00"

[[pools]]
name = "desk"
platform = "local"
vram_gib = 24
hours = ["20:00-08:00 Europe/Berlin"]
"""
MODELS = """
[[jobs]]
name = "uff-main"
role = "main"
command = ["{python}", "train.py"]
target_step = 1000
steps_per_hour = 100

[[jobs]]
name = "ufm"
role = "manager"
command = ["{python}", "train.py"]
target_step = 500
steps_per_hour = 100
after = { job = "uff-main", fraction = 0.2 }
"""


def spec(name: str, **fields: Any) -> JobSpec:
    """Return a small job."""
    known: dict[str, Any] = {"role": "manager", "command": ("{python}", "train.py"), "target_step": 500}
    return JobSpec(name=name, **{**known, "steps_per_hour": 100.0, **fields})


def build(state: Path) -> None:
    """Make the state folder of a week in its middle.

    uff-main and ufm share the running session uff-uff-main-0001 on kaggle, ucm waits for quota, urm is on hold, ulm is
    done after the ended session uff-ulm-0001, whose checkpoint at step 500 is in the store.
    """
    database = new_database(state / "scheduler.db")
    artifacts = DirectoryStore(state / "artifacts")
    with database.write() as tx:
        jobs.add(tx, spec("uff-main", role="main", target_step=1000, needs=Needs(1, 2, 8.0, "fp16")), NOW)
        jobs.add(tx, spec("ufm", gate=Gate("uff-main", 0.2), mixture=Mixture("ufm", 0.3)), NOW)
        for name in ("ucm", "urm", "ulm"):
            jobs.add(tx, spec(name), NOW)
    _ended_run(database, artifacts)
    _live_run(database)
    log = state / "sessions" / "kaggle" / "uff-uff-main-0001"
    log.mkdir(parents=True)
    (log / "output.log").write_bytes(
        b"[agent] 2 lanes\nuff-main| step 1\nufm| \x1b[31mstep 7\x1b[0m\nuff-main| step 2\n[agent lane 1] saved\n"
    )
    with database.write() as tx:
        held = job_arrows.ask_hold(jobs.get(tx, "urm").state, "tester", "data are being cleaned", NOW)
        jobs.change_state(tx, "urm", jobs.get(tx, "urm").state, held, "hold", NOW, "tester")
        rates.put(tx, rates.RateRecord(0.05, 0.1, 3, 240, 30, job="ufm", pool="kaggle", at=NOW))
        plans.save(
            tx,
            Plan(
                NOW,
                (Placement("desk", NOW + 20_000, NOW + 40_000, (PlannedLane("ucm", 1, 250),)),),
                (Deferral("ucm", QuotaEmpty("kaggle", "GPU hours of the week", NOW + 7_200)),),
                value=12.5,
                bound=14.0,
                warnings=("the linear layer is not installed",),
            ),
            NOW,
        )
    database.close()


def _ended_run(database: Database, artifacts: DirectoryStore) -> None:
    run = Run(
        "uff-ulm-0001", "desk", (Lane(0, "ulm", 1, (0,), None),), NOW - 9_000, NOW - 1_000, NOW - 1_000, Reserved(NOW)
    )
    manifest = stored_checkpoint(artifacts, "ulm", 500, 1, run.key)
    with database.write() as tx:
        jobs.note_launch(tx, "ulm", "desk")
        runs.insert(tx, run, NOW - 9_000)
        ledger.append(tx, [entry_of(EntryKind.HOLD, run, NOW - 9_000, NOW - 1_000)])
        state = job_arrows.activate(jobs.get(tx, "ulm").state, run.key, NOW - 9_000)
        jobs.change_state(tx, "ulm", jobs.get(tx, "ulm").state, state, "activate", NOW - 9_000)
        running = _accept(tx, run, NOW - 9_000)
        checkpoints.record(tx, manifest, NOW - 2_000)
        jobs.note_progress(tx, "ulm", 500, manifest.key)
        runs.close_lane(tx, run.key, 0, run_arrows.Outcome.FINISHED, 500, None, "", NOW - 1_500)
        ended = run_arrows.end(running, run_arrows.Outcome.FINISHED, NOW - 1_500, NOW - 9_000)
        runs.change_state(tx, run.key, running, ended, "end_finished", NOW - 1_500)
        ledger.append(tx, [entry_of(EntryKind.SPEND, run, NOW - 9_000, NOW - 1_500)])
        jobs.change_state(tx, "ulm", state, job_arrows.finish(state, NOW - 1_500), "finish", NOW - 1_500)


def _live_run(database: Database) -> None:
    lanes = (Lane(0, "uff-main", 1, (0,), None), Lane(1, "ufm", 1, (1,), None))
    run = Run("uff-uff-main-0001", "kaggle", lanes, NOW - 3_600, NOW + 7_200, NOW + 7_200, Reserved(NOW))
    with database.write() as tx:
        runs.insert(tx, run, NOW - 3_600)
        ledger.append(tx, [entry_of(EntryKind.HOLD, run, NOW - 3_600, NOW + 7_200)])
        for lane in lanes:
            jobs.note_launch(tx, lane.job, "kaggle")
            queued = jobs.get(tx, lane.job).state
            active = job_arrows.activate(queued, run.key, NOW - 3_600)
            jobs.change_state(tx, lane.job, queued, active, "activate", NOW - 3_600)
        _accept(tx, run, NOW - 3_600)
        beat = {"phase": "training", "step": 120, "loss": 2.25, "steps_per_second": 0.05}
        runs.note_heartbeat(tx, run.key, 0, beat)


def _accept(tx: Any, run: Run, at: int) -> run_arrows.Running:
    submitting = run_arrows.submit(run.state, at)
    runs.change_state(tx, run.key, run.state, submitting, "submit", at)
    running = run_arrows.accept(submitting, f"remote-{run.key}", at)
    runs.change_state(tx, run.key, submitting, running, "accept", at)
    return running


def entry_of(kind: EntryKind, run: Run, start: int, end: int) -> LedgerEntry:
    """Return a ledger entry of a run."""
    return LedgerEntry(kind, run.pool, run.key, start, end, at=start, evidence="a test")


def stored_checkpoint(
    artifacts: DirectoryStore, job: str, step: int, attempt: int, run: str, **more: bytes
) -> Manifest:
    """Publish a checkpoint of two files, and of a JSON file for each of ``more``; return its manifest."""
    files = {"weights.npz": f"weights at {step}".encode(), "optimizer/state.json": b"{}"}
    files |= {f"{name}.json": data for name, data in more.items()}
    components = []
    for name, data in files.items():
        digest = hashlib.sha256(data).hexdigest()
        artifacts.create(blob_key(job, digest), data)
        components.append(Component(name, digest, len(data)))
    manifest = Manifest(
        job=job,
        step=step,
        attempt=attempt,
        run=run,
        lane=0,
        parent=None,
        created_at=NOW - 2_000,
        trained_seconds=5_000,
        components=tuple(components),
        metrics={"loss": 2.5, "held_out_loss": 2.75},
    )
    artifacts.create(manifest.key, manifest.encode())
    return replace(manifest)
