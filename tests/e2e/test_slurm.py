"""A daemon trains on a real Slurm: a session is stopped, another goes on from its checkpoint, the books agree."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.patience import until
from tests.lab.slurm import SlurmLab, slurm_lab
from tests.lab.typed import told

CONFIG = """
state_dir = "state"
zone = "UTC"
models = []

[daemon]
cycle = "1s"
heartbeat = "1s"

[[pools]]
name = "cluster"
platform = "slurm"
accelerator = "H100"
sessions_max = 1
options = {{ partition = "gpu", gres = "gpu:h100", slurm_conf = "{conf}", command_seconds = "60" }}
[[pools.quotas]]
name = "GPU hours of the week"
kind = "week"
limit = "10h"
resets = "Saturday 00:00"
zone = "UTC"
"""
SCRIPT = """
import json, os, time
from trainer_kit import Training

training = Training()
step = json.loads((training.resume_dir / "step.json").read_text()) if training.resume_dir else 0
print("begins at", step, "on", os.environ["SLURM_JOB_ID"], os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
while step < training.target_step and not training.should_stop:
    step += 1
    time.sleep(0.01)
    training.progress(step, loss=1 / step)
    if training.should_save:
        training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
training.checkpoint(step, lambda folder: (folder / "step.json").write_text(json.dumps(step)), {})
"""


@pytest.fixture
def lab() -> Iterator[SlurmLab]:
    """The cluster."""
    with slurm_lab() as made:
        yield made


def test_a_job_trains_in_two_sessions_and_the_books_are_those_of_slurm(lab: SlurmLab, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "config.toml").write_text(CONFIG.format(conf=lab.conf))
    environ = {**os.environ, "HOME": str(tmp_path), "SCHEDCTL_CONFIG": str(tmp_path / "config.toml")}
    program = str(Path(sys.executable).with_name("schedctl"))

    def schedctl(*words: str, code: int = 0) -> Any:
        done = subprocess.run([program, *words, "--json"], cwd=tmp_path, env=environ, capture_output=True, check=False)
        assert done.returncode == code, done.stderr.decode()
        return json.loads(done.stdout)

    def runs() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = told(tmp_path / "config.toml", "runs", "list")["runs"]
        return sorted(found, key=lambda run: run["key"])

    def step() -> int:
        return next((int(job["training"]["step"] or 0) for job in told(tmp_path / "config.toml", "status")["jobs"]), 0)

    def begun() -> list[int]:
        said = [path.read_text() for path in (tmp_path / "state").rglob("output.log")]
        return sorted(int(at) for at in re.findall(r"begins at (\d+) on \d+ 0", "".join(said)))

    checks = {one["check"]: one for one in schedctl("doctor", "slurm")["checks"]}
    assert {one["grade"] for one in checks.values()} <= {"ok", "warning"}, checks
    schedctl("init")
    schedctl("submit", "train.py", "--target-step", "1000000", "--steps-per-hour", "300000", "--probe", "0")
    with (tmp_path / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([program, "daemon"], cwd=tmp_path, env=environ, stdout=log, stderr=log)
    try:
        until(lambda: step() > 20, "it trains")
        first = runs()[0]["key"]
        schedctl("runs", "stop", first)
        until(lambda: len(begun()) == 2 and runs()[0]["state"] == "ended", "the next session")
        schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: all(run["state"] == "ended" for run in runs()), "the end of the second")
    finally:
        daemon.terminate()
        daemon.wait(timeout=60)
    ended = runs()
    began = begun()
    assert began[0] == 0 < began[1]
    booked = {run["key"]: (run["started"], run["ended"]) for run in ended}
    assert booked == lab.books()
