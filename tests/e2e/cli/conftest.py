"""What the tests of the command line share: a folder with settings and a real database, and a way to type commands."""

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from jobs.payload.store.manifest import Component, Manifest, blob_key
from jobs.spec import Gate, JobSpec, Mixture, Needs
from platforms.artifacts.directory import DirectoryStore
from scheduler.cli import main as entry
from scheduler.core import job as job_arrows
from scheduler.core import run as run_arrows
from scheduler.core.ledger import EntryKind, LedgerEntry
from scheduler.core.plan import Deferral, Placement, Plan, PlannedLane
from scheduler.core.reasons import QuotaEmpty
from scheduler.core.run import Lane, Reserved, Run
from scheduler.store import checkpoints, jobs, ledger, plans, rates, runs
from scheduler.store.engine import Database
from tests.lab.databases import new_database
from tests.lab.typed import Typed

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
gate = { parent = "uff-main", fraction = 0.2 }
"""


Schedctl = Callable[..., Typed]


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Undo what `schedctl daemon` sets up for its whole process, which here is that of all tests.

    A call that a command waits for no longer ends first: what it says belongs to its own test.
    """
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=60)
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def as_wide_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever runs the tests: pytest-xdist says 80."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with settings and models; the state folder below it has no database yet."""
    (tmp_path / "config.toml").write_text(SETTINGS)
    (tmp_path / "models.toml").write_text(MODELS)
    monkeypatch.setenv("SCHEDCTL_CONFIG", str(tmp_path / "config.toml"))
    monkeypatch.setenv("USER", "tester")
    monkeypatch.delenv("SUDO_USER", raising=False)
    return tmp_path


@pytest.fixture
def schedctl(home: Path, capsys: pytest.CaptureFixture[str]) -> Schedctl:
    """Type a command line, in this process; returns what it did."""

    def typed(*words: str) -> Typed:
        capsys.readouterr()
        code = entry.main(words)
        out, err = capsys.readouterr()
        return Typed(code, out, err)

    return typed


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    """The empty database of ``home``."""
    opened = new_database(home / "state" / "scheduler.db")
    yield opened
    opened.close()


@pytest.fixture
def artifacts(home: Path) -> DirectoryStore:
    """The artifact store of ``home``."""
    return DirectoryStore(home / "state" / "artifacts")


def spec(name: str, **fields: Any) -> JobSpec:
    """Return a small job."""
    known: dict[str, Any] = {"role": "manager", "command": ("{python}", "train.py"), "target_step": 500}
    return JobSpec(name=name, **{**known, "steps_per_hour": 100.0, **fields})


@pytest.fixture
def world(database: Database, home: Path, state_of_world: Path) -> Database:
    """A week in its middle.

    uff-main and ufm share the running session uff-uff-main-0001 on kaggle, ucm waits for quota, urm is held, ulm is
    done after the ended session uff-ulm-0001, whose checkpoint at step 500 is in the store.
    """
    database.close()  # its file is replaced
    shutil.copytree(state_of_world, home / "state", dirs_exist_ok=True, copy_function=shutil.copy)
    return database


@pytest.fixture(scope="session")
def state_of_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state folder of ``world``, made once and copied: that takes no tenth of making it."""
    state = tmp_path_factory.mktemp("world") / "state"
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
        rates.put(tx, rates.RateRecord("ufm", "kaggle", 0.05, 0.1, 3, 240, 30, NOW))
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
    return state


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
