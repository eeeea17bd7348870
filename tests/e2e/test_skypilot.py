"""A daemon trains on machines that SkyPilot makes: one is taken back, and another goes on where it was."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.lab.patience import PATIENCE_SECONDS, files_called, until
from tests.lab.sky_server import SkyServer
from tests.lab.typed import told

CONFIG = """
state_dir = "state"
zone = "UTC"
models = []

[daemon]
cycle = "1s"
heartbeat = "1s"

[[pools]]
name = "cloud"
platform = "skypilot"
accelerator = "H100"
sessions_max = 1

[pools.options]
address = "{address}"
infra = "slurm/lab"
accelerator = "H100"
python = "{python}"
poll_seconds = "1"

[[pools.quotas]]
name = "budget of the month"
kind = "money-month"
limit = "$100"
"""
SCRIPT = """
import json, time
from trainer_kit import Training

training = Training()
step = json.loads((training.resume_dir / "step.json").read_text()) if training.resume_dir else 0
print("begins at", step, flush=True)
while step < training.target_step and not training.should_stop:
    step += 1
    time.sleep(0.01)
    training.progress(step, loss=1 / step)
    if training.should_save or step % 50 == 0:
        training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
"""


def test_a_job_goes_on_when_its_machine_is_taken_back(tmp_path: Path) -> None:
    with SkyServer(tmp_path / "there") as server:
        server.catalogue = [("a", "lab", 3.0, 3.0)]
        _trained_twice(server, tmp_path)
        assert server.clusters == {}
        assert len(server.started) == len(set(server.started)) == 2
    until(lambda: not server.left(), "the end of all processes")


def _trained_twice(server: SkyServer, folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "config.toml").write_text(CONFIG.format(address=server.address, python=sys.executable))
    environ = {**os.environ, "HOME": str(folder), "SCHEDCTL_CONFIG": str(folder / "config.toml")}
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str) -> Any:
        done = subprocess.run([program, *words, "--json"], cwd=folder, env=environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def runs() -> list[dict[str, Any]]:
        return sorted(told(folder / "config.toml", "runs", "list")["runs"], key=lambda run: str(run["key"]))

    def step() -> int:
        return next((int(job["training"]["step"] or 0) for job in told(folder / "config.toml", "status")["jobs"]), 0)

    checks = {one["check"]: one["grade"] for one in schedctl("doctor", "skypilot")["checks"]}
    assert {checks[f"cloud: {name}"] for name in ("server", "clouds", "clock", "catalogue")} == {"ok"}
    schedctl("init")
    schedctl("submit", "train.py", "--target-step", "1000000", "--steps-per-hour", "300000", "--probe", "0")
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=folder, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: step() > 100, "it trains")
        (first,) = server.clusters
        server.preempt(first)
        until(lambda: len(runs()) == 2 and runs()[0]["state"] == "ended", "the next session")
        until(
            lambda: b"".join(path.read_bytes() for path in files_called("job-1.log", folder)).count(b"begins") == 2,
            "its start",
        )
        schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: all(run["state"] == "ended" for run in runs()), "the end of the second")
        until(lambda: not server.clusters, "the end of its machine")
    finally:
        daemon.terminate()
        daemon.wait(timeout=PATIENCE_SECONDS)
    said = "".join(path.read_text() for path in files_called("job-1.log", folder))
    begun = sorted(map(int, re.findall(r"begins at (\d+)", said)))
    assert begun[0] == 0 < begun[1]
    spans = {one["name"].split("-", 2)[2]: one["usage_intervals"][0][0] for one in server.spans}
    assert {run["key"]: run["started"] for run in runs()} == spans
    # Nobody typed a price: sessions were reserved at the catalogue's, and charged at what SkyPilot says they cost.
    assert schedctl("pools", "list")["pools"][0]["price_microdollars_per_hour"] == 3_000_000
    (budget,) = (one for one in schedctl("quota")["quotas"] if one["quota"] == "budget of the month")
    booked = sum(run["ended"] - run["started"] for run in runs()) * 2_500_000 / 3_600
    assert budget["used"] == pytest.approx(booked, abs=len(runs()))
    assert all(task["resources"]["max_hourly_cost"] == 3.0 for task in server.tasks)
