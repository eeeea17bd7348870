"""What a lane tells the daemon: heartbeats while it lives, one result when it ends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bounds import without_secrets
from ..log import hidden, log
from ..store.transport import Transport
from .ending import FORMAT, Ending, Phase
from .launch import LaneOrder, Launch
from .meter import LaneMeter
from .upload_queue import UploadQueue


class LaneStatus:
    """Everything a heartbeat says that the meter does not know."""

    def __init__(self, launch: Launch, order: LaneOrder, uploads: UploadQueue) -> None:
        self._launch = launch
        self._uploads = uploads
        self._order = order
        self._sequence = 0
        self.phase: Phase = "starting"
        self.bad_manifests: Sequence[tuple[str, str]] = ()
        self.devices: Sequence[str] = ()
        self.command_at: int | None = None  # when the command was started
        self.longest_quiet = 0.0  # seconds from one new step to the next
        self.trouble = ""  # what is wrong at present and may pass: a full disk, a store that does not answer

    @property
    def prefix(self) -> str:
        """Where the lane's documents live in the store."""
        return lane_prefix(self._launch.run, self._order.lane)

    def heartbeat(self, meter: LaneMeter, now: float) -> dict[str, Any]:
        """Return the next heartbeat's document."""
        self._sequence += 1
        began_at, restored, newest = meter.began_at, self._uploads.restored, self._uploads.newest
        return {
            "format": FORMAT,
            "run": self._launch.run,
            "lane": self._order.lane,
            "job": self._order.job,
            "seq": self._sequence,
            "started_at": int(self._launch.started_at),
            "at": int(now),
            "phase": self.phase,
            "step": meter.step,
            "loss": meter.loss,
            "held_out_loss": meter.held_out_loss,
            "steps_per_second": meter.steps_per_second,
            "setup_seconds": None if began_at is None else max(0, int(began_at - self._launch.started_at)),
            "checkpoint_seconds": meter.checkpoint_seconds,
            "checkpoint_step": newest.step if newest else None,
            "restored_step": restored.step if restored else None,
            "restored_from": restored.key if restored else None,
            "bad_manifests": [{"manifest": key, "why": hidden(why)} for key, why in self.bad_manifests],
            "devices": list(self.devices),
            "gpu_memory_bytes": meter.gpu_memory_bytes,
            **meter.telemetry,
            "training_data": meter.training_data and without_secrets(meter.training_data, hidden),
            "message": hidden(self.trouble),
            "command_at": self.command_at,
            "longest_quiet_seconds": round(self.longest_quiet),
        }

    def result(self, meter: LaneMeter, ending: Ending, now: float) -> dict[str, Any]:
        """Return the result's document."""
        return result(self.heartbeat(meter, now), ending, self._launch.started_at, meter.trained_seconds(now), now)


def result(
    heartbeat: Mapping[str, Any], ending: Ending, started_at: float, trained_seconds: float, now: float
) -> dict[str, Any]:
    """Return a result: the last heartbeat and how it ended."""
    return {
        **heartbeat,
        "at": int(now),
        "phase": "ended",
        **ending._asdict(),
        "why": hidden(ending.why),
        "message": hidden(ending.message),
        "trained_seconds": round(trained_seconds),
        "started_at": int(started_at),
        "ended_at": int(now),
    }


def leave_result(transport: Transport, prefix: str, folder: Path, document: bytes, lane: int) -> bool:
    """Put a lane's result into store, last heartbeat and folder; False when neither store nor folder took it."""
    left = False
    try:
        if not transport.publish_new(f"{prefix}/result.json", document):
            log(lane, "a result of an earlier start of this attempt is there already; it stays")
        left = True
    except OSError as error:
        log(lane, f"the result cannot be stored: {error}")
    try:
        # Who follows the heartbeats learns from them that there is a result, while the session goes on for other lanes.
        transport.put(f"{prefix}/heartbeat.json", document, durable=False)
    except OSError as error:
        log(lane, f"no heartbeat: {error}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_bytes(document)
        left = True
    except OSError as error:
        log(lane, f"the result cannot be written to {folder}: {error}")
    return left


def lane_prefix(run: str, lane: int) -> str:
    """Return the key under which a lane's documents live."""
    return f"runs/{run}/lane-{lane}"


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document's bytes."""
    return json.dumps(document, indent=1).encode()
