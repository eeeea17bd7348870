"""One lane: restore, run the command, publish its checkpoints, report, and end in time.

The main thread waits for the next progress line, output, signal, end of a background task, or due instant. Slow work
(restoring, publishing) runs in one background thread, so that a store that hangs delays neither heartbeats nor the
deadline.
"""

import errno
import math
import os
import selectors
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from ..log import log
from ..store.publish import BadCheckpoint, PublishedManifest
from .chain import waits_until
from .command import CommandProgress, Relay, TrainingCommand, training_command
from .ending import DEADLINE, Ending, EndingFacts, Phase, StallWatch, Stop, judge, read_stop
from .failure import ErrorClass, Failure
from .launch import LaneOrder, Launch
from .meter import LaneMeter, checkpoint_times
from .prepare import OUTPUT, Gathered, GpuWatch, Prepared, gather, prepare
from .status import LaneStatus, PendingCheckpoint, UploadQueue, encode, leave_result

# The store gets at most ten heartbeats per wall second, however fast the scheduled clock runs.
_BEAT_WALL_SECONDS = 0.1
_RETRY_BEATS = 10  # heartbeats after which a request for a checkpoint is repeated
# After a platform's SIGTERM: shares of the grace until which the command may save and the lane publishes.
_GRACE_COMMAND, _GRACE_PUBLISH = 0.7, 0.9
# A gap between two checks that exceeds two heartbeats by this means that the machine was suspended.
_PAUSE_WALL_SECONDS = 10.0
# Share of the stop margin that is reserved for the result if the last checkpoint is late.
_MARGIN_RESULT = 0.25


class LaneProcess:
    """A lane from its start to its result."""

    def __init__(self, launch: Launch, order: LaneOrder, leash: int | None = None) -> None:
        """``leash`` is a pipe whose other end the supervising agent holds; the pipe closes when the agent ends."""
        self._launch, self._order, self._clock = launch, order, launch.clock
        self._transport = launch.transport()
        self._folder = launch.lane_dir(order)
        self._meter = LaneMeter(order.checkpoint_seconds, order.closing_seconds)
        self._uploads = UploadQueue(launch, order, self._transport, self._folder / "checkpoints")
        self._status = LaneStatus(launch, order, self._uploads)
        self._selector = selectors.DefaultSelector()
        self._wakeup = Wakeup()
        self._worker = Worker(self._wakeup.wake)
        self._selector.register(self._wakeup.source, selectors.EVENT_READ, self._wakeup.drain)
        if leash is not None:
            self._selector.register(leash, selectors.EVENT_READ, self._orphaned)
        self._command: TrainingCommand | None = None
        self._progress: CommandProgress | None = None
        self._exit_code: int | None = None
        self._killed = False
        self._store_fails = False  # the store failed at the newest publication, which is retried
        self._stop: Stop | None = None
        self._failure: Failure | None = None
        self.waits_until: int | None = None  # until when the ended lane waits for the order of another job
        self._requested_at: float | None = None  # when the unpublished checkpoint was requested
        self._beat_at = self._publish_at = -math.inf
        self._request_at = self._kill_at = math.inf
        self._give_up_at = launch.deadline - _MARGIN_RESULT * launch.stop_margin_seconds
        self._beat_seconds = max(launch.heartbeat_seconds, _BEAT_WALL_SECONDS * self._clock.scale)
        self._gpus = GpuWatch(self._meter, order.devices, order.lane)
        self._watch = StallWatch(order.limits, 2 * self._beat_seconds + _PAUSE_WALL_SECONDS * self._clock.scale)

    def run(self) -> bool:
        """Run the lane to its end; return whether a result was left in the store or the lane's folder."""
        try:
            self._prepare_folder()
            self._worker.start(
                lambda: prepare(self._launch, self._order, self._transport, self._folder, self._status), self._start
            )
            while not self._is_over(self._clock.now()):
                self._wait()
                self._run_due(self._clock.now())
            ending = self._ending()
        except Exception as error:  # noqa: BLE001 - whatever happens, the daemon must learn of it
            # An OSError here is a problem with the disk of the working folder.
            error_class: ErrorClass = "store" if isinstance(error, OSError) else "code"
            ending = Ending("failed", "the agent itself failed", error_class, f"{type(error).__name__}: {error}")
            log(self._order.lane, ending.message)
        finally:
            if self._command:
                self._command.kill()
        now = self._clock.now()
        if not (self._wakeup.terminated or (self._stop and self._stop.at_deadline)):
            self.waits_until = waits_until(self._launch, self._transport, ending, now)
        document = encode(self._status.result(self._meter, ending, now) | {"waits_until": self.waits_until})
        log(self._order.lane, f"{ending.outcome}: {ending.why}")
        return leave_result(self._transport, self._status.prefix, self._folder, document, self._order.lane)

    def _prepare_folder(self) -> None:
        """Empty the lane's folder. Files of an earlier start of this attempt are in the store, or are lost."""
        shutil.rmtree(self._folder, ignore_errors=True)
        for name in ("checkpoints", "command"):
            (self._folder / name).mkdir(parents=True)
        self._progress = CommandProgress(self._folder / "progress")
        self._selector.register(self._progress.source, selectors.EVENT_READ, self._read_progress)

    def _start(self, prepared: Prepared | Exception) -> None:
        """Start the command when the background thread has prepared everything; record a failure of it."""
        if isinstance(prepared, Failure):
            self._failure = prepared
            return
        if isinstance(prepared, Exception):
            raise prepared
        status = self._status
        status.devices = prepared.devices
        self._uploads.start_from(prepared.restored.manifest)
        status.bad_manifests = prepared.restored.bad
        for key, why in status.bad_manifests:
            log(self._order.lane, f"{key} is damaged and was skipped: {why}")
        if self._order.restore and self._uploads.restored is None:
            self._failure = Failure(
                "store", "none of the checkpoints to resume from verifies; the job does not start at step 0"
            )
            return
        if self._stop:
            return
        status.phase = "starting"
        try:
            self._command = TrainingCommand(
                training_command(self._launch, self._order, prepared, resume=bool(self._uploads.restored))
            )
        except OSError as error:
            self._failure = Failure("code", f"the command cannot be started: {error}")
            return
        self._watch.begin(self._clock.now())
        self._gpus.start()
        status.command_at = int(self._clock.now())
        if self._order.whole:  # it reports no progress, and has only one step
            self._meter.feed({"step": 0}, self._clock.now())
            self._set_phase("training")
        for relay in (self._command.output, self._command.errors):
            self._selector.register(relay.source, selectors.EVENT_READ, relay)

    def _wait(self) -> None:
        due_at = min(self._beat_at, self._request_at, self._kill_at, self._give_up_at)
        if self._command is not None and not self._worker.busy:  # the end of a busy worker is an event
            due_at = min(due_at, self._publish_at)
        if not self._stop and self._exit_code is None:
            due_at = min(due_at, self._close_at(), self._watch.due_at(self._meter))
        for key, _ in self._selector.select(max(0.0, self._clock.wall_seconds_until(due_at))):
            if isinstance(key.data, Relay):
                if key.data.copy() == 0:
                    self._selector.unregister(key.fileobj)
            else:
                key.data()

    def _run_due(self, now: float) -> None:
        """Do everything that is due."""
        self._worker.collect()
        self._reap()
        if self._wakeup.terminated:
            self._begin_stop(Stop("preempted", "SIGTERM", now))
        if now >= self._close_at():
            self._begin_stop(Stop("yielded", DEADLINE, now, at_deadline=True))
        if not self._stop and self._exit_code is None and (stalled := self._watch.check(self._meter, now)):
            self._begin_stop(stalled)
        if now >= self._request_at:
            self._request_checkpoint(now)
        if now >= self._kill_at:
            self._kill()
        if now >= self._beat_at:
            self._read_stop_flag(now)
            self._beat(now)
        self._publish_next(now)

    def _is_over(self, now: float) -> bool:
        """Return whether nothing is left to do, or no time is left."""
        if now >= self._give_up_at:
            return True
        if self._command is None:
            return self._failure is not None or self._stop is not None
        return self._exit_code is not None and not self._worker.busy and not self._uploads.pending()

    def _close_at(self) -> float:
        """Return when to request the last checkpoint, so that it is published before the stop margin."""
        return self._launch.closing_at - self._meter.closing_seconds

    def _read_progress(self) -> None:
        if not self._progress:
            return
        for line in self._progress.lines():
            if self._order.whole:
                continue
            now = self._clock.now()
            first = self._meter.began_at is None
            saved = self._meter.feed(line, now)
            self._watch.record_progress(self._meter, now)
            self._uploads.held_back_from = self._meter.lost_since if self._order.limits.loss_nan else None
            if first and self._meter.began_at is not None:
                self._beat_at = -math.inf  # report at once that it trains
                self._plan_next_request(now)
            if "save_failed" in line:
                self._report_trouble(f"the command could not save: {self._meter.save_failed}")
                self._requested_at, self._request_at = None, now + self._beat_seconds
            if saved is not None:
                self._publish_at = -math.inf
                if self._uploads.newest and saved <= self._uploads.newest.step:  # nothing new since the last one
                    self._plan_next_request(now)

    def _plan_next_request(self, now: float) -> None:
        """Plan the next request for a checkpoint, again after each one. The stop at the end requests the last one."""
        if self._stop:
            return
        self._requested_at = None
        self._set_phase("training")
        times = checkpoint_times(
            self._launch.closing_at - now, 0.0, self._meter.expected_checkpoint_seconds, 1 / self._launch.mtbf_seconds
        )
        self._request_at = now + times[0] if len(times) > 1 else math.inf

    def _request_checkpoint(self, now: float) -> None:
        """Request a checkpoint, repeatedly until one appears: a library such as LLVM may take SIGUSR1 for itself."""
        self._request_at = now + max(_RETRY_BEATS * self._beat_seconds, 4 * self._meter.expected_checkpoint_seconds)
        if self._command and self._exit_code is None and not (self._meter.saving or self._uploads.pending()):
            self._requested_at = now
            self._set_phase("saving")
            self._command.send_signal(signal.SIGUSR1)

    def _begin_stop(self, stop: Stop) -> None:
        """Ask a running command to save and end. Only a platform's SIGTERM replaces an earlier stop."""
        if stop.outcome != "preempted" and self._exit_code is not None:
            return
        if self._stop and (self._stop.outcome == "preempted" or stop.outcome != "preempted"):
            return
        log(self._order.lane, f"stopping: {stop.why}")
        self._stop, self._request_at = stop, math.inf
        grace = self._launch.grace_seconds
        if stop.outcome == "preempted":
            self._kill_at = min(self._kill_at, stop.at + _GRACE_COMMAND * grace)
            self._give_up_at = min(self._give_up_at, stop.at + _GRACE_PUBLISH * grace)
        elif stop.error_class == "diverged":
            self._kill_at = stop.at  # there is nothing worth saving
        else:
            allowed = max(grace, self._meter.closing_seconds)
            self._kill_at = min(stop.at + allowed, self._launch.deadline - 0.5 * self._launch.stop_margin_seconds)
        self._set_phase("stopping")
        if self._command and self._exit_code is None:
            self._requested_at = stop.at if self._requested_at is None else self._requested_at
            self._command.send_signal(signal.SIGTERM)

    def _read_stop_flag(self, now: float) -> None:
        if not self._stop:
            try:
                if (why := read_stop(self._transport, self._launch.run, self._order.lane)) is not None:
                    self._begin_stop(Stop("yielded", f"stop flag: {why}", now))
            except OSError as error:
                self._report_trouble(f"the stop flag cannot be read: {error}")

    def _kill(self) -> None:
        self._kill_at = math.inf
        if self._command and self._exit_code is None:
            self._killed = True
            log(self._order.lane, "the command did not end within its grace period: SIGKILL to its process group")
            self._command.kill()

    def _reap(self) -> None:
        if self._command is None or self._exit_code is not None:
            return
        self._exit_code = self._command.exit_code()
        if self._exit_code is not None:
            self._command.kill()
            self._read_progress()
            if self._order.whole and self._exit_code == 0 and not self._stop:
                self._meter.feed({"step": self._order.target_step}, self._clock.now())
                folders = self._folder / "command", self._folder / "checkpoints"
                self._worker.start(lambda: gather(*folders, self._order.target_step), self._on_gathered)
            self._meter.end(self._clock.now())
            self._gpus.end()
            for relay in (self._command.output, self._command.errors):
                relay.drain()
                if relay.source in self._selector.get_map():
                    self._selector.unregister(relay.source)
            self._request_at, self._kill_at, self._publish_at = math.inf, math.inf, -math.inf

    def _on_gathered(self, result: Gathered | Exception) -> None:
        if isinstance(result, OSError):
            self._failure = Failure("store", f"what the command left in ./{OUTPUT} cannot be gathered: {result}")
        elif isinstance(result, Exception):
            raise result
        else:
            archived = f", {result.archived} of them in {OUTPUT}.tar" if result.archived else ""
            skipped = f"; {result.skipped} were neither files nor links" if result.skipped else ""
            log(self._order.lane, f"the command left {result.files} files in ./{OUTPUT}{archived}{skipped}")

    def _orphaned(self) -> None:
        """Kill the command and exit: the supervising agent has ended, so this run counts as lost."""
        if self._command:
            self._command.kill()
        os._exit(1)

    def _ending(self) -> Ending:
        """Return how the lane ended; record the time of a last checkpoint that was not stored."""
        newest, stop = self._uploads.newest, self._stop
        unstored = bool((self._command and self._uploads.pending()) or self._meter.save_failed)
        if stop and (unstored or (self._killed and self._meter.saving)) and not self._store_fails:
            self._meter.not_stored(self._clock.now() - stop.at)
        made_here = newest is not None and newest is not self._uploads.restored
        return judge(
            EndingFacts(
                target_step=self._order.target_step,
                reported_step=self._meter.step,
                stored_step=newest.step if newest else None,
                whole=self._order.whole,
                saved_since_stop=bool(newest and made_here and stop and newest.created_at >= int(stop.at)),
                unstored=unstored,
                diverged=stop.why if stop and stop.error_class == "diverged" else self._uploads.held_back(),
                unsaved_for=self._watch.unsaved_for(stop),
                began=self._meter.began_at is not None,
                killed=self._killed,
                exit_code=self._exit_code,
                stop=stop,
                failure=self._failure,
                trouble=self._status.trouble,
                errors=self._command.errors.tail if self._command else "",
            )
        )

    def _publish_next(self, now: float) -> None:
        if self._worker.busy or self._command is None or now < self._publish_at:
            return
        self._publish_at = math.inf
        newest_first = self._stop is not None or self._store_fails
        pending = self._uploads.next_checkpoint(self._meter, now, newest_first=newest_first)
        if pending:
            self._worker.start(pending.send, lambda result: self._on_published(pending, result))

    def _on_published(self, pending: PendingCheckpoint, result: Any) -> None:
        now = self._clock.now()
        self._publish_at = self._beat_at = -math.inf
        match result:
            case PublishedManifest():
                log(self._order.lane, f"published {result.manifest.key}")
                self._uploads.accept(pending.folder, result)
                self._watch.stored(now)
                self._status.trouble, self._store_fails, self._failure = "", False, None
                self._meter.published(pending.step, self._requested_at, now)
                self._plan_next_request(now)
            case BadCheckpoint() | FileNotFoundError():
                self._report_trouble(why := f"a checkpoint cannot be published: {result}")
                if self._uploads.reject(pending.folder):  # the second in a row: later checkpoints would be lost too
                    self._begin_stop(Stop("failed", why, now, "code"))
                    self._failure = Failure("code", why)
            case OSError():
                full = result.errno in (errno.ENOSPC, errno.EDQUOT)
                problem = "the store's disk is full" if full else "the store does not take it"
                self._report_trouble(f"step {pending.step}: {problem}; trying again while time is left: {result}")
                self._publish_at, self._store_fails = now + self._beat_seconds, True
            case _:
                raise result

    def _set_phase(self, phase: Phase) -> None:
        self._status.phase = phase
        self._beat_at = -math.inf

    def _report_trouble(self, message: str) -> None:
        if message != self._status.trouble:
            log(self._order.lane, message)
        self._status.trouble = message
        self._beat_at = -math.inf

    def _beat(self, now: float) -> None:
        self._beat_at = now + self._beat_seconds
        self._status.longest_quiet = self._watch.longest_quiet
        if not self._store_fails:  # look for checkpoints: a command need not announce them
            self._publish_at = min(self._publish_at, now)
        try:
            document = encode(self._status.heartbeat(self._meter, now))
            self._transport.put(f"{self._status.prefix}/heartbeat.json", document, durable=False)
        except OSError as error:
            log(self._order.lane, f"no heartbeat: {error}")


class Wakeup:
    """Makes ``source`` readable at each signal and each call of ``wake``; SIGTERM and SIGINT set ``terminated``."""

    def __init__(self) -> None:
        self.source, self._sink = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.terminated = False
        signal.set_wakeup_fd(self._sink, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._terminate)
        # Without a handler there is no wake-up; the main loop determines which process ended.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        # A SIGTERM that arrived during the start is delivered now.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})

    def wake(self) -> None:
        """Make the source readable, from any thread. If the pipe is full, the source is readable already."""
        with suppress(BlockingIOError):
            os.write(self._sink, b"\0")

    def drain(self) -> None:
        """Empty the pipe."""
        with suppress(BlockingIOError):
            while os.read(self.source, 4096):
                pass

    def _terminate(self, _number: int, _frame: FrameType | None) -> None:
        self.terminated = True


class Worker:
    """Runs one task at a time in a background thread, which calls ``wake`` at the end of the task."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._thread: threading.Thread | None = None
        self._then: Callable[[Any], None] | None = None
        self._result: Any = None
        self._ended = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether a task runs, or its result was not collected yet."""
        return self._thread is not None

    def start(self, task: Callable[[], Any], then: Callable[[Any], None]) -> None:
        """Run ``task`` in the background; ``collect`` will pass its value or exception to ``then``."""
        self._ended.clear()
        self._then = then
        # A daemon thread: a store that hangs must not keep the session from ending.
        self._thread = threading.Thread(target=self._run, args=(task,), daemon=True)
        self._thread.start()

    def collect(self) -> None:
        """Pass the result to the callback if the task has ended."""
        if self._thread is not None and self._then is not None and self._ended.is_set():
            self._thread.join()
            self._thread = None
            self._then(self._result)

    def _run(self, task: Callable[[], Any]) -> None:
        try:
            self._result = task()
        except Exception as error:  # noqa: BLE001 - the callback handles it
            self._result = error
        self._ended.set()
        self._wake()
