"""What a lane tells the daemon: heartbeats while it lives, one result when it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .ending import Ending
    from .launch import LaneOrder, Launch
    from .meter import Meter
    from .shelf import Shelf

FORMAT = 1
Phase = Literal["starting", "restoring", "training", "saving", "stopping", "ended"]


class Status:
    """Everything a heartbeat says that the meter does not know."""

    def __init__(self, launch: Launch, order: LaneOrder, shelf: Shelf) -> None:
        self._launch = launch
        self._shelf = shelf
        self._order = order
        self._sequence = 0
        self.phase: Phase = "starting"
        self.bad_manifests: Sequence[tuple[str, str]] = ()
        self.devices: Sequence[str] = ()
        self.trouble = ""  # what is wrong at present and may pass: a full disk, a store that does not answer

    @property
    def prefix(self) -> str:
        """Where the lane's documents live in the store."""
        return lane_prefix(self._launch.run, self._order.lane)

    def heartbeat(self, meter: Meter, now: float) -> dict[str, Any]:
        """Return the next heartbeat's document."""
        self._sequence += 1
        began_at, restored, newest = meter.began_at, self._shelf.restored, self._shelf.newest
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
            "bad_manifests": [{"manifest": key, "why": why} for key, why in self.bad_manifests],
            "devices": list(self.devices),
            "gpu_memory_bytes": meter.gpu_memory_bytes,
            "message": self.trouble,
        }

    def result(self, meter: Meter, ending: Ending, now: float) -> dict[str, Any]:
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
        "trained_seconds": round(trained_seconds),
        "started_at": int(started_at),
        "ended_at": int(now),
    }


def lane_prefix(run: str, lane: int) -> str:
    """Return the key under which a lane's documents live."""
    return f"runs/{run}/lane-{lane}"


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document's bytes."""
    return json.dumps(document, indent=1).encode()
