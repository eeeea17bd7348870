"""The daemon itself, with its settings, its database and its planner: a job trained by SageMaker through S3."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w

from scheduler.app import load_app
from scheduler.core.job import Done
from scheduler.store import jobs, ledger, runs

World = Any  # see conftest.py

JOB = {
    "name": "lm",
    "role": "main",
    "steps_per_hour": 400,
    "target_step": 300,
    "command": ["{python}", "{payload}/trainers/charlm.py", "--width", "16", "--batch", "8"],
    "needs": {"devices": 1, "vram_gib": 1, "dtype": "fp32"},
}


def settings(world: World, folder: Path) -> dict[str, Any]:
    pool = {
        "name": "aws",
        "platform": "sagemaker",
        "session_cap": "4h",
        "session_min": "30m",
        "setup": "5m",
        "stop_margin": "10m",
        "overrun": "30m",
        "visibility": "20m",
        "price_per_hour": "$0.74",
        "options": world.options,
        "quotas": [
            {"name": "hours", "kind": "day", "limit": "10h", "zone": "Europe/Berlin"},
            {"name": "money", "kind": "money-day", "limit": "$10", "zone": "Europe/Berlin"},
        ],
    }
    clock = {"scale": world.clock.scale, "epoch": world.clock.epoch, "origin": world.clock.origin}
    store = {"bucket": world.bucket, "region": "us-east-1", "endpoint": world.address}
    return {
        "state_dir": str(folder / "daemon"),
        "models": [],
        "artifacts": {"kind": "s3", "root": str(folder / "daemon" / "artifacts"), "options": store},
        "daemon": {"cycle": "3m", "heartbeat": "3m", "grace": "20m", "retry_base": "3m"},
        "clock": clock,
        "corpus": {"max_bytes": 200_000},
        "pools": [pool],
    }


def test_the_daemon_trains_a_job_on_sagemaker_and_its_ledger_is_the_bill(world: World, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(tomli_w.dumps(settings(world, tmp_path)))
    (tmp_path / "lm.toml").write_text(tomli_w.dumps(JOB))
    run = [sys.executable, "-c", "from scheduler.cli.main import run; run()", "--config", str(config)]
    for words in (["db", "upgrade"], ["queue", "add", str(tmp_path / "lm.toml")]):
        subprocess.run([*run, *words], check=True)
    app = load_app(config)
    with (tmp_path / "log").open("w") as log, subprocess.Popen([*run, "daemon"], stdout=log, stderr=log) as daemon:
        try:
            for _ in range(600):
                with app.database.read() as tx:
                    if isinstance(jobs.get(tx, "lm").state, Done) and not runs.live(tx):
                        break
                world.patience.wait(0.1)
        finally:
            daemon.terminate()
            daemon.wait()
    said = (tmp_path / "log").read_text()
    with app.database.read() as tx:
        assert isinstance(jobs.get(tx, "lm").state, Done), said[-6_000:]
        assert runs.live(tx) == []
        charges = ledger.charges(tx, 0)["aws"]
    app.database.close()
    assert sum(charge.end - charge.start for charge in charges) == world.place.billed_seconds()
    assert "test-secret" not in said
