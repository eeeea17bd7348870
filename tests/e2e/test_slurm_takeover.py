"""Two daemons on one PostgreSQL and a real Slurm: who takes over finds the session, and its hours are Slurm's."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.ledger import fold
from scheduler.store import ledger
from scheduler.store.engine import Database
from scheduler.store.lease import current
from tests.lab.crashes.postgresql import Server
from tests.lab.patience import until
from tests.lab.slurm import SlurmLab, slurm_lab

pytestmark = pytest.mark.postgres

CONFIG = """
state_dir = "{folder}/{name}"
zone = "UTC"
models = []
database_url = "{database}"
artifacts = {{ kind = "directory", root = "{folder}/artifacts" }}

[daemon]
cycle = "1s"
heartbeat = "1s"
lease = "3s"

[[pools]]
name = "cluster"
platform = "slurm"
accelerator = "H100"
sessions_max = 1
options = {{ gres = "gpu:h100", slurm_conf = "{conf}", folder = "{folder}/shared", command_seconds = "60" }}
"""
SCRIPT = """
import time
from trainer_kit import Training

training = Training()
step = int((training.resume_dir / "step").read_text()) if training.resume_dir else 0
while not training.should_stop:
    step += 1
    time.sleep(0.01)
    training.progress(step, loss=1 / step)
training.checkpoint(step, lambda folder: (folder / "step").write_text(str(step)), {})
"""


@dataclass
class Machines:
    """Machines ``a`` and ``b``, each with settings and a state folder of its own and a daemon."""

    folder: Path
    lab: SlurmLab
    server: Server
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("a", "b"):
            text = CONFIG.format(name=name, folder=self.folder, database=self.server.url, conf=self.lab.conf)
            (self.folder / f"{name}.toml").write_text(text)
            (self.folder / f"programs-{name}").mkdir()
        (self.folder / "code").mkdir()
        (self.folder / "code" / "train.py").write_text(SCRIPT)

    def environ(self, name: str) -> dict[str, str]:
        """What a program finds on a machine."""
        return {
            **os.environ,
            "HOME": str(self.folder),
            "SCHEDCTL_CONFIG": str(self.folder / f"{name}.toml"),
            "PATH": f"{self.folder}/programs-{name}:{os.environ['PATH']}",
        }

    def schedctl(self, *words: str, on: str = "b") -> Any:
        """What a command prints."""
        command = [sys.executable, "-m", "scheduler", *words, "--json"]
        done = subprocess.run(command, cwd=self.folder / "code", env=self.environ(on), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def start(self, name: str) -> None:
        """Start a daemon."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [sys.executable, "-m", "scheduler", "daemon"], cwd=self.folder, env=self.environ(name), stdout=log,
                stderr=log,
            )  # fmt: skip
        (self.folder / f"{name}.pid").write_text(str(self.daemons[name].pid))

    def said(self, name: str) -> str:
        """What a daemon said."""
        return (self.folder / f"{name}.log").read_text()

    def leads(self, name: str) -> bool:
        """Whether a daemon holds the lease."""
        database = Database(self.server.url)
        try:
            with database.read() as tx:
                lease = current(tx)
        finally:
            database.close()
        assert self.daemons[name].poll() is None, self.said(name)
        return lease is not None and str(self.folder / name) in lease.holder

    def charged_seconds(self) -> int:
        """What the ledger says was used."""
        database = Database(self.server.url)
        try:
            with database.read() as tx:
                charges = fold(ledger.entries(tx)).get("cluster", ())
        finally:
            database.close()
        assert not any(one.held for one in charges)
        return sum(one.sign * (one.end - one.start) for one in charges)

    def runs(self) -> list[dict[str, Any]]:
        """All sessions by their keys."""
        return sorted(self.schedctl("runs", "list")["runs"], key=lambda run: run["key"])

    def step(self) -> int:
        """How far the job is, as its session tells."""
        return next((int(job["training"]["step"] or 0) for job in self.schedctl("status")["jobs"]), 0)

    def end(self) -> None:
        """End what runs."""
        for daemon in self.daemons.values():
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=120)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    """``a`` leads and ``b`` stands by; a job waits to be added."""
    with slurm_lab() as lab, Server.running() as server:
        found = Machines(tmp_path, lab, server)
        found.schedctl("db", "init", on="a")
        try:
            found.start("a")
            until(lambda: found.leads("a"), "the leader")
            found.start("b")
            until(lambda: "daemon.standing_by" in found.said("b"), "the one that stands by")
            yield found
        finally:
            found.end()


def submit(machines: Machines) -> None:
    """Add the job."""
    size = ("--target-step", "1000000", "--steps-per-hour", "300000", "--probe", "0")
    machines.schedctl("submit", "train.py", *size)


def struck_while_it_trains(machines: Machines) -> None:
    """Kill the leader while a session trains."""
    submit(machines)
    until(lambda: machines.step() > 20, "it trains")
    machines.daemons["a"].kill()


def struck_while_it_launches(machines: Machines) -> None:
    """Kill the leader when Slurm has the job and nobody knows yet."""
    wrapper = machines.folder / "programs-a" / "sbatch"
    real = shutil.which("sbatch")
    wrapper.write_text(f'#!/bin/bash\n{real} "$@" >/dev/null\nkill -9 "$(cat {machines.folder}/a.pid)"\n')
    wrapper.chmod(0o755)
    submit(machines)


@pytest.mark.parametrize("strike", [struck_while_it_trains, struck_while_it_launches])
def test_who_takes_over_finds_the_session_and_the_hours_are_those_of_slurm(machines: Machines, strike: Any) -> None:
    strike(machines)
    until(lambda: machines.daemons["a"].poll() is not None, "the end of the leader")
    until(lambda: machines.leads("b"), "the takeover")
    first = until(lambda: next((run["key"] for run in machines.runs() if run["state"] == "running"), ""), "a session")
    before = machines.step()
    until(lambda: machines.step() > before + 20, "it trains on")
    machines.start("a")  # as its unit does
    assert [run["key"] for run in machines.runs()] == [first]
    assert machines.lab.jobs(machines.folder) == [(first, "RUNNING")]
    machines.schedctl("runs", "stop", first)
    until(lambda: len(machines.runs()) == 2 and machines.runs()[0]["state"] == "ended", "the next session")
    until(lambda: machines.runs()[1]["state"] == "running", "its training")
    machines.schedctl("queue", "cancel", "--all", "--yes")
    until(lambda: all(run["state"] == "ended" for run in machines.runs()), "the end of the second")
    books = machines.lab.books()
    assert books == {run["key"]: (run["started"], run["ended"]) for run in machines.runs()}
    assert [name for name, _ in machines.lab.jobs(machines.folder)] == sorted(books), "none of them twice"
    assert machines.charged_seconds() == sum(last - first for first, last in books.values())
    machines.schedctl("db", "verify")
