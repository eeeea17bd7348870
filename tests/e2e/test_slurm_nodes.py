"""A session on two real nodes: one program of four processes saves, stops, loses a node and resumes, told by node 0."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.lab.patience import PATIENCE_SECONDS, files_called, until
from tests.lab.slurm import SlurmLab, slurm_lab
from tests.lab.typed import told

CONFIG = """
state_dir = "state"
models = []

[daemon]
cycle = "1s"
heartbeat = "1s"

[[pools]]
name = "cluster"
platform = "slurm"
accelerator = "H100"
devices_per_session = 4
start_delay = "0s"
setup = "1m"
stop_margin = "20s"
options = {{ nodes = "2", gres = "gpu:h100", slurm_conf = "{conf}", command_seconds = "60" }}
"""
JOB = """
name = "{name}"
role = "manager"
command = ["{{python}}", "{{payload}}/trainers/ranks.py", "train.py"]
code = "code"
target_step = 1_000_000
steps_per_hour = 300_000
needs = {{ devices = {devices} }}
"""
# What torch's process groups do: all agree on a wish between two steps, and a lost one is an error for the others.
SCRIPT = """
import json, os, socket, time
from trainer_kit import Training

training = Training()
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
step = json.loads((training.resume_dir / "step.json").read_text()) if training.resume_dir else 0
told = {name: os.environ.get(name) for name in ("LOCAL_RANK", "SLURMD_NODENAME", "CUDA_VISIBLE_DEVICES", "PET_NNODES")}
print("rank", json.dumps({"rank": rank, "size": size, "step": step, **told}), flush=True)
if rank == 0:
    listener = socket.create_server(place)
    others = [listener.accept()[0] for _ in range(size - 1)]
else:
    for attempt in range(600):
        try:
            others = [socket.create_connection(place)]
            break
        except OSError:
            time.sleep(0.1)

def heard(peer):
    if not (said := peer.recv(1)):
        raise SystemExit("another rank is gone")
    return said[0]

def agreed(wish):
    if rank:
        others[0].sendall(bytes([wish]))
        return heard(others[0])
    wish = max([wish, *map(heard, others)])
    for peer in others:
        peer.sendall(bytes([wish]))
    return wish

def save(folder):
    (folder / "step.json").write_text(json.dumps(step))

while step < training.target_step:
    wish = agreed(2 if training.should_stop else 1 if training.should_save else 0)
    if wish:
        training.should_save = False
        print("rank", rank, "agreed", wish, "at", step, flush=True)
        if rank == 0:
            training.checkpoint(step, save, {})
    if wish == 2:
        break
    step += 1
    time.sleep(0.01)
    if rank == 0:
        training.progress(step, loss=1 / step)
"""


@dataclass
class Cluster:
    """A daemon with one pool of sessions on both nodes."""

    lab: SlurmLab
    folder: Path
    environ: dict[str, str]

    def schedctl(self, *words: str) -> Any:
        """Run a command and return its document."""
        program = str(Path(sys.executable).with_name("schedctl"))
        done = subprocess.run(
            [program, *words, "--json"], cwd=self.folder, env=self.environ, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def runs(self) -> list[dict[str, Any]]:
        """The sessions, oldest first."""
        return sorted(told(self.folder / "config.toml", "runs", "list")["runs"], key=lambda run: str(run["key"]))

    def step(self) -> int:
        """The step that the daemon has heard of."""
        return next(
            (int(job["training"]["step"] or 0) for job in told(self.folder / "config.toml", "status")["jobs"]), 0
        )

    def saved(self) -> int:
        """The step of the newest checkpoint."""
        return int(self.schedctl("queue", "list")["jobs"][0]["done_step"])

    def said(self) -> str:
        """What all sessions printed."""
        return "".join(path.read_text() for path in files_called("output.log", self.folder / "state"))

    def ranks(self) -> list[dict[str, Any]]:
        """What each process was told, in the order in which sessions began."""
        found = [json.loads(text) for text in re.findall(r"rank (\{.*\})", self.said())]
        return sorted(found, key=lambda one: (one["step"], one["rank"]))

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """Run the daemon, and leave no session behind."""
        program = str(Path(sys.executable).with_name("schedctl"))
        with (self.folder / "daemon.log").open("ab") as log:
            running = subprocess.Popen([program, "daemon"], cwd=self.folder, env=self.environ, stdout=log, stderr=log)
        try:
            yield
            self.schedctl("queue", "cancel", "--all", "--yes")
            until(lambda: all(run["state"] == "ended" for run in self.runs()), "the end of all sessions")
        finally:
            running.terminate()
            running.wait(timeout=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    """The cluster that the tests share."""
    with slurm_lab() as made:
        yield made


@pytest.fixture
def cluster(lab: SlurmLab, tmp_path: Path) -> Iterator[Cluster]:
    """A pool that nobody uses."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    (tmp_path / "config.toml").write_text(CONFIG.format(conf=lab.conf))
    environ = {**os.environ, "HOME": str(tmp_path), "SCHEDCTL_CONFIG": str(tmp_path / "config.toml")}
    made = Cluster(lab, tmp_path, environ)
    made.schedctl("init")
    yield made
    lab.clear()


def add(cluster: Cluster, name: str, devices: int) -> None:
    (cluster.folder / "job.toml").write_text(JOB.format(name=name, devices=devices))
    cluster.schedctl("queue", "add", "job.toml")


def test_four_processes_on_two_nodes_are_one_program_that_stops_and_resumes(cluster: Cluster) -> None:
    add(cluster, "wide", 4)
    with cluster.daemon():
        until(lambda: cluster.step() > 20, "it trains")
        first = cluster.runs()[0]["key"]
        assert "n[1-2]" in cluster.lab.say("squeue", "-h", "-o", "%N")
        cluster.schedctl("runs", "stop", first)
        until(lambda: len(cluster.runs()) == 2 and len(cluster.ranks()) == 8, "the next session")
        until(lambda: cluster.step() > cluster.saved() > 20, "it goes on")
    ranks = cluster.ranks()
    for session in (ranks[:4], ranks[4:]):
        assert [(one["rank"], one["LOCAL_RANK"], one["SLURMD_NODENAME"]) for one in session] == [
            (0, "0", "n1"), (1, "1", "n1"), (2, "0", "n2"), (3, "1", "n2"),
        ]  # fmt: skip
        assert {(one["size"], one["CUDA_VISIBLE_DEVICES"], one["PET_NNODES"]) for one in session} == {(4, "0,1", "2")}
    assert {one["step"] for one in ranks[:4]} == {0}
    (resumed,) = {one["step"] for one in ranks[4:]}
    stops = re.findall(r"rank (\d) agreed 2 at (\d+)", cluster.said())
    assert sorted(rank for rank, at in stops if int(at) == resumed) == ["0", "1", "2", "3"]
    assert cluster.runs()[0]["outcome"] == "yielded"


def test_a_node_that_fails_ends_the_session_and_another_resumes(cluster: Cluster) -> None:
    add(cluster, "wide", 4)
    with cluster.daemon():
        until(lambda: cluster.step() > 20, "it trains")
        until(lambda: "RUNNING" in cluster.lab.say("squeue", "-h", "-t", "R", "-o", "%T"), "Slurm's word")
        cluster.lab.say("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
        until(lambda: cluster.runs()[0]["state"] == "ended", "its end")
        lost = cluster.runs()[0]
        assert lost["outcome"] in {"lost", "preempted"}, lost  # by whether its agent had time for a last word
        saved = cluster.saved()
        cluster.lab.say("scontrol", "update", "NodeName=n2", "State=RESUME")
        until(lambda: len(cluster.runs()) == 2 and len(cluster.ranks()) == 8, "the next session")
    assert {one["step"] for one in cluster.ranks()[4:]} == {saved}
    assert cluster.schedctl("queue", "list")["jobs"][0]["failures"] <= 1, "a lost one counts"


@pytest.mark.nightly
def test_a_process_that_dies_on_the_other_node_ends_the_program_and_is_told(cluster: Cluster) -> None:
    dying = SCRIPT.replace("    step += 1\n", "    step += 1\n    if step == 30 and rank == 3: raise SystemExit(7)\n")
    (cluster.folder / "code" / "train.py").write_text(dying)
    add(cluster, "wide", 4)
    with cluster.daemon():
        until(lambda: any(run["state"] == "ended" for run in cluster.runs()), "its end")
    ended = next(run for run in cluster.runs() if run["state"] == "ended")
    assert ended["outcome"] == "failed"
    assert "rank 3 of 4 ended with status 7" in cluster.said()


@pytest.mark.nightly
def test_jobs_of_fewer_devices_share_a_session_and_each_has_its_own_node(cluster: Cluster) -> None:
    for name in ("left", "right"):
        add(cluster, name, 2)
    with cluster.daemon():
        until(lambda: len(cluster.ranks()) == 4, "both begin")
        until(lambda: all(job["training"]["step"] for job in cluster.schedctl("status")["jobs"]), "both are heard of")
    placed = sorted((one["SLURMD_NODENAME"], one["rank"], one["size"]) for one in cluster.ranks())
    assert placed == [("n1", 0, 2), ("n1", 1, 2), ("n2", 0, 2), ("n2", 1, 2)]
