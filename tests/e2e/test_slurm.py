"""A daemon trains on a real Slurm: a session is stopped, another goes on from its checkpoint, the books agree."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lab.patience import PATIENCE_SECONDS, files_called, until
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


class Cluster:
    """A folder with a script and settings for the cluster, its commands and its daemon."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(SCRIPT)
        (folder / "config.toml").write_text(CONFIG.format(conf=lab.conf))
        self._environ = {**os.environ, "HOME": str(folder), "SCHEDCTL_CONFIG": str(folder / "config.toml")}
        self._program = str(Path(sys.executable).with_name("schedctl"))
        self.schedctl("init")

    def schedctl(self, *words: str) -> Any:
        """Run a command; return its JSON."""
        words = (self._program, *words, "--json")
        done = subprocess.run(words, cwd=self.folder, env=self._environ, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run the daemon."""
        with (self.folder / "daemon.log").open("wb") as log:
            words = [self._program, "daemon"]
            daemon = subprocess.Popen(words, cwd=self.folder, env=self._environ, stdout=log, stderr=log)
        try:
            yield
        finally:
            daemon.terminate()
            daemon.wait(timeout=PATIENCE_SECONDS)

    def runs(self) -> list[dict[str, Any]]:
        """Return all sessions by key."""
        found: list[dict[str, Any]] = told(self.folder / "config.toml", "runs", "list")["runs"]
        return sorted(found, key=lambda run: run["key"])

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs."""
        found: list[dict[str, Any]] = told(self.folder / "config.toml", "queue", "list", "--all")["jobs"]
        return found

    def begun(self) -> list[tuple[int, str]]:
        """Return the step at which each training began, and Slurm's number of its session."""
        said = [path.read_text() for path in files_called("output.log", self.folder / "state")]
        return sorted((int(at), number) for at, number in re.findall(r"begins at (\d+) on (\d+) 0", "".join(said)))


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Cluster:
    """A user of the cluster."""
    return Cluster(lab, tmp_path)


def booked(runs: list[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """Return what the ledger charges, as Slurm's books have it."""
    return {run["key"]: (run["started"], run["ended"]) for run in runs}


def test_a_job_trains_in_two_sessions_and_the_books_are_those_of_slurm(lab: SlurmLab, cluster: Cluster) -> None:
    def step() -> int:
        jobs = told(cluster.folder / "config.toml", "status")["jobs"]
        return next((int(job["training"]["step"] or 0) for job in jobs), 0)

    checks = {one["check"]: one for one in cluster.schedctl("doctor", "slurm")["checks"]}
    assert {one["grade"] for one in checks.values()} <= {"ok", "warning"}, checks
    cluster.schedctl("submit", "train.py", "--target-step", "1000000", "--steps-per-hour", "300000", "--probe", "0")
    with cluster.daemon():
        until(lambda: step() > 20, "it trains")
        cluster.schedctl("runs", "stop", cluster.runs()[0]["key"])
        until(lambda: len(cluster.begun()) == 2 and cluster.runs()[0]["state"] == "ended", "the next session")
        cluster.schedctl("queue", "cancel", "--all", "--yes")
        until(lambda: all(run["state"] == "ended" for run in cluster.runs()), "the end of the second")
    began = [at for at, _ in cluster.begun()]
    assert began[0] == 0 < began[1]
    assert booked(cluster.runs()) == lab.books()


def test_jobs_continue_in_one_session_and_slurm_bills_it_once(lab: SlurmLab, cluster: Cluster) -> None:
    for name in ("one", "two", "three"):
        cluster.schedctl(
            "submit", "train.py", "--name", name, "--target-step", "300", "--steps-per-hour", "1000", "--probe", "0"
        )
    with cluster.daemon():
        until(lambda: [job["state"] for job in cluster.jobs()] == ["done"] * 3, "all jobs")
        until(lambda: all(run["state"] == "ended" for run in cluster.runs()), "the end of the session")
    sessions = {number for _, number in cluster.begun()}
    assert len(cluster.begun()) == 3
    assert len(sessions) == len(cluster.runs()) == len(lab.books()) == 1
    assert booked(cluster.runs()) == lab.books()
