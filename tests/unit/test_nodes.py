"""One program on several nodes: asked to save and to stop everywhere, ended by one failure, reported from the first."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from jobs.payload.lane.launch import read_nodes, spread
from jobs.payload.trainers import nodes as node_launcher
from jobs.payload.trainers import ranks
from jobs.payload.trainers.nodes import node_environment
from tests.lab.patience import PATIENCE_SECONDS, until

LAUNCHER = Path(__file__).parent.parent / "lab/launcher.py"
ENTRY = {
    "launcher": [sys.executable, str(LAUNCHER), "2"], "variable": "NODE", "devices": [[0, 1], [2, 3]],
    "address": "10.0.0.7", "port": 12_345, "near": True,
}  # fmt: skip
RANKS = Path(__file__).parent.parent.parent / "jobs/payload/trainers/ranks.py"
TOLD = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "SCHED_NODE")
LISTENING = """
import json, os, pathlib, queue, signal, sys
here, rank, heard, told = pathlib.Path(sys.argv[1]), os.environ["RANK"], queue.SimpleQueue(), []
signal.signal(signal.SIGUSR1, lambda *_: heard.put("USR1"))
signal.signal(signal.SIGTERM, lambda *_: heard.put("TERM"))
(here / f"ready-{rank}").write_text(json.dumps(dict(os.environ)))
if rank == "3" and sys.argv[2:]: sys.exit(int(sys.argv[2]))
if progress := os.environ.get("SCHED_PROGRESS"):
    with open(progress, "a") as stream: print(json.dumps({"step": 1}), file=stream)
while "TERM" not in told:
    told.append(heard.get())
    if told[-1] == "USR1": (here / f"saved-{rank}").touch()
if progress:
    with open(progress, "a") as stream: print(json.dumps({"step": 2}), file=stream)
"""


@contextmanager
def start(folder: Path, *words: str, near: bool = True) -> Iterator[subprocess.Popen[str]]:
    """Start four ranks on two nodes as an agent would."""
    nodes = read_nodes({**ENTRY, "near": near})
    assert nodes is not None
    (folder / "command").mkdir()
    (folder / "progress").touch()
    (folder / "script.py").write_text(LISTENING)
    command, told = spread([sys.executable, str(RANKS), str(folder / "script.py"), str(folder), *words], nodes)
    environment = {**os.environ, **told, "SCHED_PROGRESS": str(folder / "progress")}
    with subprocess.Popen(
        command, env=environment, cwd=folder / "command", stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as all_nodes:
        try:
            yield all_nodes
            all_nodes.wait(PATIENCE_SECONDS)
        finally:
            all_nodes.kill()


def ready(folder: Path) -> bool:
    return len(list(folder.glob("ready-*"))) == 4


def test_what_is_asked_reaches_every_rank_of_every_node(tmp_path: Path) -> None:
    with start(tmp_path) as program:
        until(lambda: ready(tmp_path), "four ranks")
        program.send_signal(signal.SIGUSR1)
        until(lambda: len(list(tmp_path.glob("saved-*"))) == 4, "all to save")
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 0
    told = [json.loads((tmp_path / f"ready-{rank}").read_text()) for rank in range(4)]
    assert [[one[name] for name in TOLD] for one in told] == [
        ["0", "0", "4", "2", "10.0.0.7", "12345", "0"],
        ["1", "1", "4", "2", "10.0.0.7", "12345", "0"],
        ["2", "0", "4", "2", "10.0.0.7", "12345", "1"],
        ["3", "1", "4", "2", "10.0.0.7", "12345", "1"],
    ]
    assert [one["SCHED_PROGRESS"] for one in told] == [str(tmp_path / "progress")] * 2 + [""] * 2
    assert "GLOO_SOCKET_IFNAME" not in told[0]


def test_a_rank_that_fails_on_one_node_ends_all_with_its_status(tmp_path: Path) -> None:
    with start(tmp_path, "7") as program:
        assert program.stderr is not None
        said = program.stderr.read()
    assert program.returncode == 7
    assert "rank 3 of 4 ended with status 7" in said


@pytest.mark.parametrize("begin", [ranks._prepare_child, node_launcher._as_usual])
def test_a_process_ends_whose_parent_died_before_the_kernel_could_watch_it(begin: Callable[[int], None]) -> None:
    another = os.getppid()  # as if this process had been replaced by it
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, preexec_fn=partial(begin, another)) as orphan:  # noqa: PLW1509
        assert orphan.wait(PATIENCE_SECONDS) == -signal.SIGKILL


def test_all_nodes_end_when_whoever_started_them_is_gone(tmp_path: Path) -> None:
    with start(tmp_path) as program:
        until(lambda: ready(tmp_path), "four ranks")
        ids = [path.name for path in Path("/proc").glob("[0-9]*") if str(tmp_path).encode() in _words(path)]
        launcher = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        for pid in (program.pid, *map(int, launcher)):
            os.kill(pid, signal.SIGKILL)
    until(lambda: not any(_words(Path("/proc") / pid) for pid in ids), "the end of all ranks")


def _words(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_what_the_first_process_reports_elsewhere_comes_to_the_agent(tmp_path: Path) -> None:
    def lines() -> list[str]:
        return (tmp_path / "progress").read_text().splitlines()

    with start(tmp_path, near=False) as program:
        until(lambda: ready(tmp_path) and len(lines()) == 2, "both ranks of its node")
        program.send_signal(signal.SIGTERM)
    assert program.returncode == 0
    assert sorted(lines()) == ['{"step": 1}'] * 2 + ['{"step": 2}'] * 2


def test_a_node_is_told_its_devices_and_what_torchrun_asks_for() -> None:
    lane = {
        "SCHED_NODES": "2", "SCHED_NODE_DEVICES": "0,1;1", "SCHED_RENDEZVOUS": "n1:9", "SCHED_NODES_NEAR": "1",
        "SCHED_RUN_ID": "run", "CUDA_VISIBLE_DEVICES": "2,3", "SLURM_STEP_GPUS": "2,3",
    }  # fmt: skip
    told = node_environment(1, Path("/here"), lane)
    assert {name: text for name, text in told.items() if name.startswith("PET_") or name not in lane} == {
        "SCHED_NODE": "1", "SCHED_PROGRESS": "", "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "1",
        "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "n1:9", "PET_RDZV_ID": "run",
    }  # fmt: skip
    assert told["CUDA_VISIBLE_DEVICES"] == "3"
    assert node_environment(0, Path("/here"), {**lane, "SLURM_STEP_GPUS": ""})["CUDA_VISIBLE_DEVICES"] == "0,1"
    alone = {**lane, "SCHED_NODES": "1", "SCHED_NODE_DEVICES": "0"}
    assert not [name for name in node_environment(0, Path("/here"), alone) if name.startswith("PET_")]


@pytest.mark.parametrize("change", [{"devices": []}, {"devices": [[]]}, {"launcher": []}, {"devices": [["x"]]}])
def test_nodes_that_mean_nothing_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must have a launcher|invalid"):
        read_nodes({**ENTRY, **change})
    assert read_nodes(None) is None
