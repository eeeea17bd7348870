"""The daemon itself, with its settings, its database and its planner: a job trained by SageMaker through S3."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

from scheduler.app import App, load_app
from scheduler.core.job import Done
from scheduler.core.ledger import EntryKind
from scheduler.store import jobs, ledger, runs

World = Any  # see conftest.py

JOB = {
    "name": "lm",
    "role": "main",
    "steps_per_hour": 400,
    "target_step": 300,
    "command": ["{python}", "{payload}/trainers/charlm.py", "--width", "16", "--batch", "8"],
    "needs": {"devices": 1, "vram_gib": 1, "dtype": "fp32"},
    "mixture": {},
}


def settings(world: World, folder: Path) -> dict[str, Any]:
    quotas = [
        {"name": "hours", "kind": "day", "limit": "10h", "zone": "Europe/Berlin"},
        {"name": "money", "kind": "money-day", "limit": "$10", "zone": "Europe/Berlin"},
    ]
    return {
        **world.settings(folder / "daemon", overrun="30m", visibility="20m", price_per_hour="$0.74", quotas=quotas),
        "state_dir": str(folder / "daemon"),
        "models": [],
        "corpus": {"sources": ["stdlib"], "max_bytes": 200_000},
    }


def trained(world: World, config: Path, *, settled: Callable[[App], bool]) -> str:
    """Let the daemon train the job, and go on until the books are ``settled``; return what it said."""
    folder = config.parent
    (folder / "lm.toml").write_text(tomli_w.dumps(JOB))
    run = [sys.executable, "-c", "from scheduler.cli.main import run; run()", "--config", str(config)]
    for words in (["db", "upgrade"], ["queue", "add", str(folder / "lm.toml")]):
        subprocess.run([*run, *words], check=True)
    app = load_app(config)
    with (folder / "log").open("w") as log, subprocess.Popen([*run, "daemon"], stdout=log, stderr=log) as daemon:
        try:
            for _ in range(900):
                with app.database.read() as tx:
                    over = isinstance(jobs.get(tx, "lm").state, Done) and not runs.live(tx)
                if (over and settled(app)) or daemon.poll() is not None:
                    break
                world.patience.wait(0.1)
        finally:
            daemon.terminate()
            daemon.wait()
    app.database.close()
    return (folder / "log").read_text()


def test_the_daemon_trains_a_job_on_sagemaker_and_its_ledger_is_the_bill(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(settings(world, tmp_path)))
    said = trained(world, config, settled=lambda app: True)
    app = load_app(config)
    with app.database.read() as tx:
        assert isinstance(jobs.get(tx, "lm").state, Done), said[-6_000:]
        assert runs.live(tx) == []
    assert charged(app) == world.place.billed_seconds()
    app.database.close()
    assert "test-secret" not in said


def test_a_bill_that_comes_late_and_is_lower_corrects_the_ledger(world: World, tmp_path: Path) -> None:
    """A spot job's bill shows only when its span has been charged; what is charged too much is given back."""
    world.place.rules.bill_delay_seconds = 1_500
    document = settings(world, tmp_path)
    document["pools"][0]["options"] = {**world.options, "spot": "yes"}
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(document))
    said = trained(world, config, settled=lambda app: charged(app) == world.place.billed_seconds())
    app = load_app(config)
    with app.database.read() as tx:
        assert isinstance(jobs.get(tx, "lm").state, Done), said[-6_000:]
        spent = [entry for entry in ledger.entries(tx) if entry.kind is EntryKind.SPEND]
        credited = [entry for entry in ledger.entries(tx) if entry.credit]
    assert sum(entry.end - entry.start for entry in spent) > charged(app)
    assert all(entry.price_microdollars_per_hour == 740_000 for entry in credited)
    assert "the platform bills" in credited[0].evidence
    assert charged(app) == world.place.billed_seconds()
    app.database.close()


def charged(app: App) -> int:
    """The seconds that count against the pool."""
    with app.database.read() as tx:
        return sum(charge.sign * (charge.end - charge.start) for charge in ledger.charges(tx, 0)["aws"])
