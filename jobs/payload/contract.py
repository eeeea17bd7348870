"""What a training command is told: the environment part of the training contract (docs/training-contract.md)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .command import Spec

if TYPE_CHECKING:
    from .launch import LaneOrder, Launch

_PAYLOAD = Path(__file__).resolve().parent


def training_command(launch: Launch, order: LaneOrder, data: str, *, resume: bool) -> Spec:
    """Return how to start a lane's command: its words with {python} and {payload} filled in, its environment."""
    folder = launch.lane_dir(order)
    seconds_left = launch.clock.wall_seconds_until(launch.closing_at)
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in order.devices),
        **order.environment,
        "SCHED_RUN_ID": launch.run,
        "SCHED_JOB": order.job,
        "SCHED_SEED": str(order.seed),
        "SCHED_RESUME_DIR": str(folder / "resume") if resume else "",
        "SCHED_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "SCHED_DATA_DIR": data,
        "SCHED_TARGET_STEP": str(order.target_step),
        "SCHED_SECONDS_LEFT": str(max(0, int(seconds_left))),
        "SCHED_PROGRESS": str(folder / "progress"),
    }
    # Makes `import trainer_kit` work in anybody's script, behind whatever it had on its path.
    path = (environment.get("PYTHONPATH"), str(_PAYLOAD / "trainers"))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    words = [word.replace("{python}", sys.executable).replace("{payload}", str(_PAYLOAD)) for word in order.command]
    prefix = f"{order.job}| " if len(launch.lanes) > 1 else ""
    return Spec(words, environment, folder / "command", prefix)
