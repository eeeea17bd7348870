"""A fine-tuning on several nodes makes the steps of one, and moves between them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.lane.launch import read_nodes, spread
from tests.lab.desk import REPOSITORY, Desk, accelerators
from tests.lab.ports import free_port

OPTIONS = ("--lora", "4", "--batch", "4", "--accumulate", "1", "--report-every", "1", "--accept-inexact")

MEETING = """
import os, pathlib, sys, torch
from torch import distributed
distributed.init_process_group("gloo")
rank, size = distributed.get_rank(), distributed.get_world_size()
told = torch.tensor([rank])
distributed.all_reduce(told)
pathlib.Path(sys.argv[1], f"rank-{rank}-of-{size}-sum-{int(told)}").touch()
distributed.destroy_process_group()
"""


def spread_over(nodes: int, share: int) -> dict[str, Any]:
    """Tell an agent that its lane has so many nodes of so many devices, which all are this machine."""
    return {
        "launcher": [sys.executable, str(REPOSITORY / "tests/lab/launcher.py"), str(nodes)], "variable": "NODE",
        "devices": [list(range(share))] * nodes, "address": "127.0.0.1", "port": free_port(), "near": True,
    }  # fmt: skip


def test_two_nodes_of_two_devices_learn_what_one_of_four_does_and_one_of_one(make_desk: Callable[..., Desk]) -> None:
    if accelerators():
        pytest.skip("processors stand for the devices of four places")
    losses = {}
    for name, nodes, share in (("1x1", 1, 1), ("1x4", 1, 4), ("2x2", 2, 2)):
        desk = make_desk(name, *OPTIONS, target=6)
        desk.environment["GLOO_SOCKET_IFNAME"] = "lo"
        ended = desk.session(devices=nodes * share, nodes=spread_over(nodes, share) if nodes > 1 else None)
        assert ended["outcome"] == "finished", desk.log()
        losses[name] = desk.metrics()["held_out_loss"]
    assert losses["1x4"] == losses["2x2"], "the same sums in the same order"
    assert losses["2x2"] == pytest.approx(losses["1x1"], abs=1e-4)


def test_a_session_on_two_nodes_saves_when_stopped_and_goes_on_on_one(make_desk: Callable[..., Desk]) -> None:
    if accelerators():
        pytest.skip("processors stand for the devices of two places")
    desk = make_desk("desk", *OPTIONS, target=300)
    desk.environment["GLOO_SOCKET_IFNAME"] = "lo"
    first = desk.session(cut=5, devices=2, nodes=spread_over(2, 1))
    assert first["outcome"] == "preempted", desk.log()
    assert first["checkpoint_step"] >= 5
    desk.target = first["checkpoint_step"] + 3
    second = desk.session()
    assert (second["outcome"], second["restored_step"]) == ("finished", first["checkpoint_step"]), desk.log()
    assert "devices was 2 and is 1" in desk.log()


def test_torchrun_finds_the_other_node_without_an_option(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    nodes = read_nodes(spread_over(2, 2))
    assert nodes is not None
    (tmp_path / "command").mkdir()
    (tmp_path / "script.py").write_text(MEETING)
    words = [sys.executable, "-m", "torch.distributed.run", str(tmp_path / "script.py"), str(tmp_path)]
    command, told = spread(words, nodes)
    environment = {**os.environ, **told, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "SCHED_PROGRESS": ""}
    done = subprocess.run(
        command,
        env=environment,
        cwd=tmp_path / "command",
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-2_000:]
    assert sorted(path.name for path in tmp_path.glob("rank-*")) == [f"rank-{rank}-of-4-sum-6" for rank in range(4)]
