"""A launch.json as the daemon writes it, for one session of one lane, and how a test changes it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.payload.lane.launch import Launch, read_launch

LANE: Mapping[str, Any] = {
    "index": 0,
    "job": "ufm",
    "attempt": 7,
    "devices": [0],
    "seed": 1,
    "target_step": 1200,
    "command": ["true"],
    "environment": {},
    "data": "",
    "setup_seconds": 720,
    "checkpoint_seconds": 60,
    "restore": [],
}
LAUNCH: Mapping[str, Any] = {
    "format": 1,
    "run": "uff-ufm-0007",
    "clock": {"epoch": 0, "origin": 0, "scale": 1},
    "deadline": 2_000_000_000,
    "stop_margin_seconds": 120,
    "heartbeat_seconds": 30,
    "grace_seconds": 60,
    "mtbf_seconds": 108_000,
    "work_dir": "work",
    "store": {"kind": "directory", "root": "/store"},
    "expected_devices": {"count": 2, "name": "NvidiaTeslaT4"},
    "lanes": [LANE],
}


def launch_in(folder: Path, **changes: Any) -> Launch:
    """Write a launch.json and read it, with ``changes`` of the whole. Raises BadLaunch."""
    path = folder / "launch.json"
    path.write_text(json.dumps({**LAUNCH, **changes}))
    return read_launch(path)
