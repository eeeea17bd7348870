"""A lane on other nodes than the agent's: its command is started there once each, by whatever starts programs there."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_STARTER = Path(__file__).resolve().parents[1] / "trainers" / "nodes.py"


class Nodes(NamedTuple):
    """Where a lane's command runs.

    ``launcher`` are the words that start a program once on each node, where ``variable`` holds the node's number.
    ``devices`` are by node those of the lane, as indexes of what the session was given there. ``address`` and ``port``
    are those of the first node, at which its processes meet; ``near`` says that this node is the agent's.
    """

    launcher: tuple[str, ...]
    variable: str
    devices: tuple[tuple[int, ...], ...]
    address: str
    port: int
    near: bool


def read_nodes(entry: Any) -> Nodes | None:
    """Return where a lane runs, None for the agent's node. Raises KeyError, TypeError and ValueError."""
    if not entry:
        return None
    devices = tuple(tuple(int(index) for index in each) for each in entry["devices"])
    launcher = tuple(str(word) for word in entry["launcher"])
    if not devices or not all(devices) or not launcher:
        raise ValueError("nodes without devices, or without a launcher")
    return Nodes(
        launcher, str(entry["variable"]), devices, str(entry["address"]), int(entry["port"]), bool(entry["near"])
    )


def spread(words: Sequence[str], nodes: Nodes) -> tuple[list[str], Mapping[str, str]]:
    """Return the words that start a command on all its nodes, and what it is told there."""
    told = {
        "SCHED_NODES": str(len(nodes.devices)),
        "SCHED_NODE_VARIABLE": nodes.variable,
        "SCHED_NODE_DEVICES": ";".join(",".join(map(str, each)) for each in nodes.devices),
        "SCHED_RENDEZVOUS": f"{nodes.address}:{nodes.port}",
        "SCHED_NODES_NEAR": "1" if nodes.near else "",
    }
    return [sys.executable, str(_STARTER), "all", *nodes.launcher, "--", *words], told
