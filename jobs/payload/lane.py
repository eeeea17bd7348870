"""One lane: restore, run the command, publish its checkpoints, report, and end in time.

One thread waits for whatever comes first: a progress line, output, a signal, the end of a background task, the next
instant something is due. Slow work (restoring, publishing) is done by one background thread, so a store that hangs
delays neither a heartbeat nor the deadline.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .cadence import checkpoint_times
from .command import Command, Progress, Relay, Spec
from .devices import check_devices
from .failure import Failure, classify
from .log import log
from .meter import Meter
from .publish import BadCheckpoint, Origin, Published, discard, finished_steps, publish, same_content
from .restore import Restored, restore
from .status import Ending, Outcome, Status, encode
from .stop import read_stop
from .wakeup import Wakeup
from .worker import Worker

if TYPE_CHECKING:
    from .launch import LaneOrder, Launch

# However fast the scheduled clock runs: the store gets no more than ten heartbeats in a wall second.
_BEAT_WALL_SECONDS = 0.1
# Of the grace a platform gives after SIGTERM: until here the command may save, until there we publish and report.
_GRACE_COMMAND, _GRACE_PUBLISH = 0.7, 0.9
# Of the stop margin: what is kept for the result once the last checkpoint is late.
_MARGIN_RESULT = 0.25


class Stop(NamedTuple):
    """Why the command was asked to end."""

    outcome: Outcome
    why: str
    at: float


class Prepared(NamedTuple):
    """What stands when the command can start."""

    devices: tuple[str, ...]
    data: str
    restored: Restored


class Lane:
    """A lane from its first breath to its result."""

    def __init__(self, launch: Launch, order: LaneOrder, leash: int | None = None) -> None:
        """``leash`` is a pipe whose other end the supervising agent holds: its end is ours."""
        self._launch, self._order, self._clock = launch, order, launch.clock
        self._transport = launch.transport()
        self._folder = launch.lane_dir(order)
        self._meter = Meter(order.checkpoint_seconds)
        self._status = Status(launch, order)
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        self._worker = Worker(self._wakeup.wake)
        self._selector.register(self._wakeup.source, selectors.EVENT_READ, self._wakeup.drain)
        if leash is not None:
            self._selector.register(leash, selectors.EVENT_READ, self._orphaned)
        self._command: Command | None = None
        self._progress: Progress | None = None
        self._exit_code: int | None = None
        self._prepared = False
        self._killed = False
        self._known_good: frozenset[str] = frozenset()
        self._rejected: set[Path] = set()
        self._stop: Stop | None = None
        self._failure: Failure | None = None
        self._asked_at: float | None = None  # the checkpoint asked for that is not published yet
        self._beat_at = self._retry_at = -math.inf
        self._ask_at = self._kill_at = math.inf
        self._give_up_at = launch.deadline - _MARGIN_RESULT * launch.stop_margin_seconds
        self._beat_seconds = max(launch.heartbeat_seconds, _BEAT_WALL_SECONDS * self._clock.scale)

    def run(self) -> bool:
        """Live; True when a result was left in the store or in the lane's folder."""
        try:
            self._prepare_folder()
            self._worker.start(self._prepare, self._start)
            while not self._settled(self._clock.now()):
                self._wait()
                self._tick(self._clock.now())
            ending = self._ending()
        except Exception as error:  # noqa: BLE001 - whatever happens, the daemon must learn of it
            ending = Ending("failed", "the agent itself failed", "code", f"{type(error).__name__}: {error}")
            log(self._order.index, ending.message)
        finally:
            if self._command:
                self._command.kill()
        return self._leave_result(ending)

    # -- start ------------------------------------------------------------------------------------------------------

    def _prepare_folder(self) -> None:
        """Begin with an empty folder: what an earlier start of this attempt left was published or is lost."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("checkpoints", "command"):
            (self._folder / name).mkdir(parents=True)
        self._progress = Progress(self._folder / "progress")
        self._selector.register(self._progress.source, selectors.EVENT_READ, self._read_progress)

    def _prepare(self) -> Prepared:
        """Check devices, find the data, restore (in the background)."""
        order = self._order
        devices = check_devices(self._launch.expected_devices)
        try:
            data = str(self._transport.folder(order.data)) if order.data else ""
        except (OSError, ValueError) as error:
            raise Failure("data", f"the data {order.data!r} cannot be found: {error}") from None
        self._status.phase = "restoring" if order.restore else "starting"
        try:
            restored = restore(self._transport, order.job, order.restore, self._folder / "resume")
        except OSError as error:
            raise Failure("store", f"the checkpoint cannot be put into {self._folder}: {error}") from None
        return Prepared(devices, data, restored)

    def _start(self, prepared: Prepared | Exception) -> None:
        """Start the command once all is in place."""
        if isinstance(prepared, Failure):
            self._failure = prepared
            return
        if isinstance(prepared, Exception):
            raise prepared
        status = self._status
        status.devices = prepared.devices
        status.restored = status.published = prepared.restored.manifest
        status.bad_manifests = prepared.restored.bad
        for key, why in status.bad_manifests:
            log(self._order.index, f"{key} is damaged and was passed over: {why}")
        if self._order.restore and status.restored is None:
            self._failure = Failure("store", "none of the checkpoints to resume from verifies; will not start anew")
            return
        if status.restored:
            self._known_good = frozenset(part.sha256 for part in status.restored.components)
        if self._stop:
            return
        status.phase = "starting"
        try:
            self._command = Command(self._spec(prepared.data))
        except OSError as error:
            self._failure = Failure("code", f"the command cannot be started: {error}")
            return
        for relay in (self._command.output, self._command.errors):
            self._selector.register(relay.source, selectors.EVENT_READ, relay)

    def _spec(self, data: str) -> Spec:
        order, payload = self._order, Path(__file__).resolve().parent
        trainers = str(payload / "trainers")
        seconds_left = self._clock.wall_seconds_until(self._launch.closing_at)
        environment = {
            **os.environ,
            "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in order.devices),
            **order.environment,
            # Makes `import trainer_kit` work in anybody's script.
            "PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), trainers))),
            "SCHED_RUN_ID": self._launch.run,
            "SCHED_JOB": order.job,
            "SCHED_SEED": str(order.seed),
            "SCHED_RESUME_DIR": str(self._folder / "resume") if self._status.restored else "",
            "SCHED_CHECKPOINT_DIR": str(self._folder / "checkpoints"),
            "SCHED_DATA_DIR": data,
            "SCHED_TARGET_STEP": str(order.target_step),
            "SCHED_SECONDS_LEFT": str(max(0, int(seconds_left))),
            "SCHED_PROGRESS": str(self._folder / "progress"),
        }
        words = [word.replace("{python}", sys.executable).replace("{payload}", str(payload)) for word in order.command]
        prefix = f"{order.job}| " if len(self._launch.lanes) > 1 else ""
        return Spec(words, environment, self._folder / "command", prefix)

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        due_at = min(
            self._beat_at,
            self._ask_at,
            self._kill_at,
            self._give_up_at,
            math.inf if self._stop else self._close_at(),
            self._retry_at if self._retry_at > self._clock.now() else math.inf,
        )
        for key, _ in self._selector.select(max(0.0, self._clock.wall_seconds_until(due_at))):
            if isinstance(key.data, Relay):
                if not key.data.pump():
                    self._selector.unregister(key.fileobj)
            else:
                key.data()

    def _tick(self, now: float) -> None:
        """Do whatever is due."""
        self._worker.collect()
        self._reap()
        if self._wakeup.terminated:
            self._begin_stop(Stop("preempted", "SIGTERM", now))
        if now >= self._close_at():
            self._begin_stop(Stop("yielded", "deadline", now))
        if now >= self._ask_at:
            self._ask(now)
        if now >= self._kill_at:
            self._kill()
        self._publish_next(now)
        if now >= self._beat_at:
            self._look_for_stop(now)
            self._beat(now)

    def _settled(self, now: float) -> bool:
        """Whether nothing is left to be done, or no time to do it."""
        if now >= self._give_up_at:
            return True
        if self._command is None:
            return self._failure is not None or self._stop is not None
        return self._exit_code is not None and not self._worker.busy and not self._pending()

    def _close_at(self) -> float:
        """When the last checkpoint must be asked for, to be published by the stop margin."""
        return self._launch.closing_at - self._meter.closing_seconds

    def _read_progress(self) -> None:
        if not self._progress:
            return
        for line in self._progress.lines():
            now = self._clock.now()
            began = self._meter.began_at is not None
            saved = self._meter.feed(line, now)
            if not began:
                self._set_phase("training")
                self._plan_next_ask(now)
            if "save_failed" in line:
                self._trouble(f"the command could not save: {self._meter.save_failed}")
                self._asked_at = None
                self._ask_at = now + self._beat_seconds
            if saved:
                self._retry_at = -math.inf

    def _plan_next_ask(self, now: float) -> None:
        """Plan the rest of the session anew; its last checkpoint is the final one, which is not asked for here."""
        times = checkpoint_times(
            self._launch.closing_at - now, 0.0, self._meter.expected_checkpoint_seconds, 1 / self._launch.mtbf_seconds
        )
        self._ask_at = now + max(0.0, times[0]) if len(times) > 1 and not self._stop else math.inf

    def _ask(self, now: float) -> None:
        self._ask_at = math.inf
        if self._command and self._exit_code is None:
            self._asked_at = now
            self._set_phase("saving")
            self._command.ask_to_save()

    # -- the end ----------------------------------------------------------------------------------------------------

    def _begin_stop(self, stop: Stop) -> None:
        """Ask the command to save and end. A platform's SIGTERM overrules a gentler stop; nothing else does."""
        if self._stop and (self._stop.outcome == "preempted" or stop.outcome != "preempted"):
            return
        log(self._order.index, f"stopping: {stop.why}")
        self._stop, self._ask_at = stop, math.inf
        grace = self._launch.grace_seconds
        if stop.outcome == "preempted":
            self._kill_at = min(self._kill_at, stop.at + _GRACE_COMMAND * grace)
            self._give_up_at = min(self._give_up_at, stop.at + _GRACE_PUBLISH * grace)
        else:
            allowed = max(grace, self._meter.closing_seconds)
            self._kill_at = min(stop.at + allowed, self._launch.deadline - 0.5 * self._launch.stop_margin_seconds)
        self._set_phase("stopping")
        if self._command and self._exit_code is None:
            self._asked_at = stop.at if self._asked_at is None else self._asked_at
            self._command.ask_to_stop()

    def _look_for_stop(self, now: float) -> None:
        if not self._stop:
            try:
                if (why := read_stop(self._transport, self._launch.run, self._order.index)) is not None:
                    self._begin_stop(Stop("yielded", f"stop flag: {why}", now))
            except OSError as error:
                self._trouble(f"the stop flag cannot be read: {error}")

    def _kill(self) -> None:
        self._kill_at = math.inf
        if self._command and self._exit_code is None:
            self._killed = True
            log(self._order.index, "the command did not end in its grace: SIGKILL to its group")
            self._command.kill()

    def _reap(self) -> None:
        if self._command is None or self._exit_code is not None:
            return
        self._exit_code = self._command.exit_code()
        if self._exit_code is not None:
            self._command.kill()
            self._read_progress()
            for relay in (self._command.output, self._command.errors):
                while self._waiting(relay.source) and relay.pump():
                    pass
                if relay.source in self._selector.get_map():
                    self._selector.unregister(relay.source)
            self._ask_at = self._kill_at = math.inf
            self._retry_at = -math.inf

    @staticmethod
    def _waiting(descriptor: int) -> bool:
        with selectors.PollSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            return bool(selector.select(0))

    def _orphaned(self) -> None:
        """The supervising agent is gone: our run counts as lost, and may soon run elsewhere. Leave no trace."""
        if self._command:
            self._command.kill()
        os._exit(1)

    def _ending(self) -> Ending:
        errors = self._command.errors.tail if self._command else ""
        newest = self._status.published
        if newest and newest.step >= self._order.target_step:
            return Ending("finished", "target step", None, errors)
        if self._failure:
            return Ending("failed", self._failure.why, self._failure.error_class, self._failure.why)
        if self._stop and self._stop.outcome == "preempted":
            return Ending("preempted", self._stop.why, None, errors)
        if self._pending() or self._meter.save_failed:
            return Ending("failed", "the last checkpoint could not be stored", "store", self._status.trouble)
        if self._killed:
            why = f"{self._stop.why if self._stop else 'deadline'}: the command did not end in its grace and was killed"
            return Ending("failed", why, "killed", errors)
        if self._stop and self._exit_code in (0, None):
            return Ending("yielded", self._stop.why, None, errors)
        if not self._exit_code:
            why = f"the command ended at step {self._meter.step}, before its target step {self._order.target_step}"
            return Ending("failed", why, "code", errors)
        verdict = classify(self._exit_code, errors)
        return Ending("failed", verdict.why, verdict.error_class, errors)

    def _leave_result(self, ending: Ending) -> bool:
        document = encode(self._status.result(self._meter, ending, self._clock.now()))
        log(self._order.index, f"{ending.outcome}: {ending.why}")
        left = False
        try:
            left = self._transport.publish_new(f"{self._status.prefix}/result.json", document)
            if not left:
                log(self._order.index, "a result of an earlier start of this attempt is there already; it stays")
                left = True
        except OSError as error:
            log(self._order.index, f"the result cannot be stored: {error}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / "result.json").write_bytes(document)
            left = True
        except OSError as error:
            log(self._order.index, f"the result cannot be written to {self._folder}: {error}")
        return left

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _pending(self) -> dict[int, Path]:
        """Return the complete checkpoints that are newer than the newest in the store, oldest first."""
        newest = self._status.published
        pending = {}
        for step, folder in finished_steps(self._folder / "checkpoints").items():
            if folder in self._rejected:
                continue
            if newest is None or step > newest.step:
                pending[step] = folder
            elif step < newest.step:
                discard(folder)
            else:
                self._check_repeated(folder)
        return pending

    def _check_repeated(self, folder: Path) -> None:
        """A step that is in the store already: fine if it is the same one; another of that step is refused."""
        newest = self._status.published
        self._rejected.add(folder)
        if newest and not same_content(folder, newest):
            log(self._order.index, f"{folder.name} differs from {newest.key}, which stays: steps never go backwards")

    def _publish_next(self, now: float) -> None:
        if self._worker.busy or self._command is None or now < self._retry_at:
            return
        self._retry_at = math.inf
        pending = self._pending()
        if not pending:
            return
        # In order; but when there is trouble or no time, the newest counts.
        step = max(pending) if self._stop or self._status.trouble else min(pending)
        parent, folder = self._status.published, pending[step]
        trained = self._meter.trained_at_save(step, now)
        since = self._meter.trained_at_save(parent.step, now) if parent and parent is not self._status.restored else 0.0
        origin = Origin(self._order.job, self._order.attempt, self._launch.run, self._order.index, parent)

        def task() -> Published:
            return publish(
                self._transport, folder, step, origin, round(trained) - round(since), self._clock.now, self._known_good
            )

        self._worker.start(task, lambda result: self._on_published(step, folder, result))

    def _on_published(self, step: int, folder: Path, result: Any) -> None:
        now = self._clock.now()
        match result:
            case Published(manifest=manifest, digests=digests):
                log(self._order.index, f"published {manifest.key}")
                self._known_good |= digests
                self._status.published = manifest
                self._status.trouble = ""
                self._rejected.add(folder)  # kept until a newer one is in the store
                self._meter.published(step, self._asked_at, now)
                self._asked_at = None
                self._set_phase("training")
                self._plan_next_ask(now)
                self._retry_at = -math.inf
                self._beat_at = -math.inf
            case BadCheckpoint() | FileNotFoundError():
                self._rejected.add(folder)
                self._trouble(f"a checkpoint cannot be published: {result}")
                self._retry_at = -math.inf
            case OSError():
                full = result.errno in (errno.ENOSPC, errno.EDQUOT)
                what = "the store's disk is full" if full else "the store does not take it"
                self._trouble(f"step {step} is not published, {what}; trying again while time is left: {result}")
                self._retry_at = now + self._beat_seconds
            case _:
                raise result

    # -- reports ----------------------------------------------------------------------------------------------------

    def _set_phase(self, phase: str) -> None:
        self._status.phase = "stopping" if self._stop else phase  # type: ignore[assignment]
        self._beat_at = -math.inf

    def _trouble(self, message: str) -> None:
        if message != self._status.trouble:
            log(self._order.index, message)
        self._status.trouble = message
        self._beat_at = -math.inf

    def _beat(self, now: float) -> None:
        self._beat_at = now + self._beat_seconds
        self._retry_at = min(self._retry_at, now) if not self._status.trouble else self._retry_at
        try:
            document = encode(self._status.heartbeat(self._meter, now))
            self._transport.put(f"{self._status.prefix}/heartbeat.json", document, durable=False)
        except OSError as error:
            log(self._order.index, f"no heartbeat: {error}")
