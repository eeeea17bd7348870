"""A fine-tuning on several nodes makes the steps of one, and moves between them."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.lab.desk import REPOSITORY, Desk, accelerators, free_port

OPTIONS = ("--lora", "4", "--batch", "4", "--accumulate", "1", "--report-every", "1", "--accept-inexact")


def spread(nodes: int, share: int) -> dict[str, Any]:
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
        ended = desk.session(devices=nodes * share, nodes=spread(nodes, share) if nodes > 1 else None)
        assert ended["outcome"] == "finished", desk.log()
        losses[name] = desk.metrics()["held_out_loss"]
    assert losses["1x4"] == losses["2x2"], "the same sums in the same order"
    assert losses["2x2"] == pytest.approx(losses["1x1"], abs=1e-4)


def test_a_session_on_two_nodes_saves_when_stopped_and_goes_on_on_one(make_desk: Callable[..., Desk]) -> None:
    if accelerators():
        pytest.skip("processors stand for the devices of two places")
    desk = make_desk("desk", *OPTIONS, target=300)
    desk.environment["GLOO_SOCKET_IFNAME"] = "lo"
    first = desk.session(cut=5, devices=2, nodes=spread(2, 1))
    assert first["outcome"] == "preempted", desk.log()
    assert first["checkpoint_step"] >= 5
    desk.target = first["checkpoint_step"] + 3
    second = desk.session()
    assert (second["outcome"], second["restored_step"]) == ("finished", first["checkpoint_step"]), desk.log()
    assert "devices was 2 and is 1" in desk.log()
