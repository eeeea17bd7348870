"""What a lane writes to the store: its finished checkpoints, heartbeats while it runs, and one result at its end."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..bounds import without_secrets
from ..log import hidden, log
from ..store.manifest import Manifest
from ..store.publish import BadCheckpoint, Origin, PublishedManifest, discard, finished_steps, publish, same_content
from ..store.transport import Transport
from .ending import FORMAT, Ending, Phase
from .launch import LaneOrder, Launch
from .meter import LaneMeter

_MEASURED = ("step", "loss", "held_out_loss", "steps_per_second", "checkpoint_seconds", "gpu_memory_bytes")


class PendingCheckpoint(NamedTuple):
    """One checkpoint to publish; ``send`` may be called from any thread."""

    transport: Transport
    launch: Launch
    folder: Path
    step: int
    origin: Origin
    trained_seconds: int
    known_good: frozenset[str]
    target_step: int

    def send(self) -> PublishedManifest:
        """Publish the checkpoint, and return its manifest. Raises the errors of ``publish``."""
        if self.step > self.target_step:
            raise BadCheckpoint(f"step {self.step} is beyond the target, {self.target_step}: save there and end")
        now = self.launch.clock.now
        return publish(self.transport, self.folder, self.step, self.origin, self.trained_seconds, now, self.known_good)


class UploadQueue:
    """Chooses the next checkpoint to publish, by step. Removes a folder once a newer checkpoint is in the store."""

    def __init__(self, launch: Launch, order: LaneOrder, transport: Transport, folder: Path) -> None:
        self._launch, self._order, self._transport, self._folder = launch, order, transport, folder
        self._done: set[Path] = set()  # folders that were published, or will never be
        self._rejected = False  # whether the newest attempt met an invalid checkpoint
        self._known_good: frozenset[str] = frozenset()
        self.restored: Manifest | None = None
        self.newest: Manifest | None = None  # this lane's newest checkpoint in the store, or the restored one
        self.held_back_from: int | None = None  # first step that is not published: its loss is not finite

    def start_from(self, manifest: Manifest | None) -> None:
        """Record the checkpoint from which training resumes; ``restore`` has verified all its components."""
        self.restored = self.newest = manifest
        if manifest:
            self._known_good = frozenset(part.sha256 for part in manifest.components)

    def pending(self) -> dict[int, Path]:
        """Return the folders of finished checkpoints above the newest step in the store, by step, oldest first."""
        pending = {}
        for step, folder in finished_steps(self._folder).items():
            if folder in self._done:
                if self.newest and step < self.newest.step:
                    self._drop(folder)
            elif self.newest is None or step > self.newest.step:
                if self.held_back_from is None or step < self.held_back_from:
                    pending[step] = folder
            else:
                self._refuse(folder, step, self.newest)
        return pending

    def held_back(self) -> str:
        """Return why finished checkpoints are not published; "" if none is held back."""
        least = self.held_back_from
        if least is None or all(step < least for step in finished_steps(self._folder)):
            return ""
        return f"the loss is not a finite number since step {least}; checkpoints from then on are not kept"

    def next_checkpoint(self, meter: LaneMeter, now: float, *, newest_first: bool) -> PendingCheckpoint | None:
        """Return the checkpoint to publish next: the oldest, or the newest if time or space is short."""
        pending = self.pending()
        if not pending:
            return None
        step = max(pending) if newest_first else min(pending)
        previous = self.newest
        trained = meter.trained_at_save(step, now)
        since = meter.trained_at_save(previous.step, now) if previous and previous is not self.restored else 0.0
        return PendingCheckpoint(
            self._transport,
            self._launch,
            pending[step],
            step,
            Origin(self._order.job, self._order.attempt, self._launch.run, self._order.lane, previous),
            round(trained) - round(since),
            self._known_good,
            self._order.target_step,
        )

    def accept(self, folder: Path, published: PublishedManifest) -> None:
        """Record that the checkpoint of a folder is in the store."""
        self._done.add(folder)
        self._rejected = False
        self._known_good |= published.digests
        self.newest = published.manifest

    def reject(self, folder: Path) -> bool:
        """Record that a folder cannot be published; return whether that happened to two existing folders in a row."""
        self._done.add(folder)
        before, self._rejected = self._rejected, folder.is_dir()
        return before and self._rejected

    def _refuse(self, folder: Path, step: int, newest: Manifest) -> None:
        if step < newest.step:
            log(self._order.lane, f"{folder.name} is older than {newest.key}: steps never go backwards; dropped")
            self._drop(folder)
            return
        self._done.add(folder)
        if not same_content(folder, newest):
            log(self._order.lane, f"{folder.name} differs from {newest.key}, which stays: steps never go backwards")

    def _drop(self, folder: Path) -> None:
        self._done.discard(folder)
        with suppress(FileNotFoundError):  # the command may remove its old checkpoints
            discard(folder)


class LaneStatus:
    """The state of a lane that its heartbeats report, apart from the measurements of the meter."""

    def __init__(self, launch: Launch, order: LaneOrder, uploads: UploadQueue) -> None:
        self._launch = launch
        self._uploads = uploads
        self._order = order
        self._sequence = 0
        self.phase: Phase = "starting"
        self.bad_manifests: Sequence[tuple[str, str]] = ()
        self.devices: Sequence[str] = ()
        self.command_at: int | None = None  # when the command was started, in seconds UTC
        self.longest_quiet = 0.0  # longest time between two reported steps, in seconds
        self.trouble = ""  # current problem that may be temporary: a full disk, a store that does not answer

    @property
    def prefix(self) -> str:
        """The key prefix of the lane's documents in the store."""
        return lane_prefix(self._launch.run, self._order.lane)

    def heartbeat(self, meter: LaneMeter, now: float) -> dict[str, Any]:
        """Return the document of the next heartbeat."""
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
            **{name: getattr(meter, name) for name in _MEASURED},
            "setup_seconds": None if began_at is None else max(0, int(began_at - self._launch.started_at)),
            "checkpoint_step": newest.step if newest else None,
            "restored_step": restored.step if restored else None,
            "restored_from": restored.key if restored else None,
            "bad_manifests": [{"manifest": key, "why": hidden(why)} for key, why in self.bad_manifests],
            "devices": list(self.devices),
            **meter.telemetry,
            "training_data": meter.training_data and without_secrets(meter.training_data, hidden),
            "message": hidden(self.trouble),
            "command_at": self.command_at,
            "longest_quiet_seconds": round(self.longest_quiet),
        }

    def result(self, meter: LaneMeter, ending: Ending, now: float) -> dict[str, Any]:
        """Return the document of the result."""
        return result(self.heartbeat(meter, now), ending, self._launch.started_at, meter.trained_seconds(now), now)


def result(
    heartbeat: Mapping[str, Any], ending: Ending, started_at: float, trained_seconds: float, now: float
) -> dict[str, Any]:
    """Return the result document: the last heartbeat with the ending."""
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
    """Write a result to the store, also as the last heartbeat, and to ``folder``. Return False if both failed."""
    written = False
    try:
        if not transport.publish_new(f"{prefix}/result.json", document):
            log(lane, "an earlier start of this attempt has left a result already; it stays")
        written = True
    except OSError as error:
        log(lane, f"the result cannot be stored: {error}")
    try:
        # The last heartbeat announces the result, since the session may go on for other lanes.
        transport.put(f"{prefix}/heartbeat.json", document, durable=False)
    except OSError as error:
        log(lane, f"no heartbeat: {error}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").write_bytes(document)
        written = True
    except OSError as error:
        log(lane, f"the result cannot be written to {folder}: {error}")
    return written


def lane_prefix(run: str, lane: int) -> str:
    """Return the key prefix of a lane's documents."""
    return f"runs/{run}/lane-{lane}"


def encode(document: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes of indented JSON."""
    return json.dumps(document, indent=1).encode()
