"""Script run: run a script once under the training contract on this machine, and record what it reports."""

import os
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fcntl import F_SETPIPE_SZ, fcntl
from pathlib import Path
from typing import Any

from jobs.code.pack import names
from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.payload.clock import stopwatch
from jobs.payload.lane.command import UNBUFFERED, CommandProgress, Spec, TrainingCommand, folders, with_kit
from jobs.payload.store.publish import finished_steps
from jobs.spec import Code

_POLL_SECONDS = 0.002
_PIPE_BYTES = 4096  # the smallest pipe of the kernel


@dataclass(frozen=True, slots=True)
class ScriptUnderTest:
    """The script to certify, and the ``words`` that start it in a copy of the ``folder``. Times are in seconds."""

    folder: Path
    words: tuple[str, ...]
    environment: Mapping[str, str]
    work: Path  # a scratch folder
    target_step: int
    grace_seconds: float = 30.0
    run_seconds: float = 600.0  # the longest time of a run
    devices: tuple[str, ...] = ("0",)


class ScriptRun:
    """One run of a script. ``values`` has the reported numbers by step. Raises OSError if it cannot be started."""

    def __init__(self, script: ScriptUnderTest, resume: Path | None = None, devices: int = 1) -> None:
        self.script = script
        self.folder = Path(tempfile.mkdtemp(dir=script.work))
        self.checkpoints = self.folder / "checkpoints"
        self.checkpoints.mkdir()
        for name in names(Code(str(script.folder))):
            copied = self.folder / "command" / name
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(script.folder / name, copied, follow_symlinks=False)
        if resume is not None:
            shutil.copytree(resume, self.folder / "resume")
        self.values: dict[int, dict[str, float]] = {}
        self.step: int | None = None  # the last reported step
        self.saving = self.save_failed = False
        self.exit_code: int | None = None
        self.first_at: float | None = None  # when the first report came, in seconds since the start
        self._progress = CommandProgress(self.folder / "progress")
        # A small pipe makes a fast script wait for its reader, so that a strike falls near the intended step.
        fcntl(self._progress.source, F_SETPIPE_SZ, _PIPE_BYTES)
        self._log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT)
        environment = {**UNBUFFERED, **script.environment, "CUDA_VISIBLE_DEVICES": ",".join(script.devices[:devices])}
        environment |= {"SCHED_RUN_ID": "certify-1", "SCHED_JOB": "certify", "SCHED_SEED": "7", "SCHED_DATA_DIR": ""}
        environment |= {"SCHED_TARGET_STEP": str(script.target_step), "SCHED_SECONDS_LEFT": "86400"}
        environment |= folders(self.folder, resume=resume is not None)
        environment["PYTHONPATH"] = with_kit(environment.get("PYTHONPATH"))
        self._began_at = stopwatch()
        spec = Spec(script.words, environment, self.folder / "command", "", (self._log, self._log))
        self.command = TrainingCommand(spec)
        self._relays = [self.command.output, self.command.errors]
        self._open = list(self._relays)

    @property
    def seconds(self) -> float:
        """The seconds since the start of the run."""
        return stopwatch() - self._began_at

    @property
    def log_line(self) -> str:
        """The last line that the script printed, on standard error if it printed any there."""
        lines = [line for relay in self._relays for line in relay.tail.splitlines() if line.strip()]
        return lines[-1] if lines else ""

    def close(self) -> None:
        """Kill its remaining processes, and remove its folder, because checkpoints are large."""
        self.command.close()
        for descriptor in (self._log, self._progress.source):
            os.close(descriptor)
        shutil.rmtree(self.folder, ignore_errors=True)

    def until(self, condition: Callable[[], object], seconds: float = 0.0, poll: float = _POLL_SECONDS) -> bool:
        """Watch the run until a condition holds; return whether it holds in ``seconds`` (0: the run time)."""
        ends_at = min(self._began_at + self.script.run_seconds, stopwatch() + (seconds or self.script.run_seconds))
        while not condition():
            if self.exit_code is not None or stopwatch() > ends_at:
                return False
            self._pump(poll)
        return True

    def end(self, seconds: float = 0.0) -> bool:
        """Wait for the end of the run as ``until`` does; if it does not end, kill it and return False."""
        in_time = self.until(lambda: self.exit_code is not None, seconds)
        self.command.kill()
        while self.exit_code is None:
            self._pump(_POLL_SECONDS)
        return in_time

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the script itself."""
        if self.exit_code is None:
            self.command.send_signal(number)

    def whole(self) -> dict[int, Path]:
        """Return its finished checkpoints by step, in ascending order."""
        return {step: path for step, path in finished_steps(self.checkpoints).items() if _names_step(path, step)}

    def damaged(self) -> list[str]:
        """Return the names of checkpoints that have their final name, but violate the contract."""
        return [path.name for step, path in finished_steps(self.checkpoints).items() if not _names_step(path, step)]

    def _pump(self, poll: float) -> None:
        ended = self.command.exit_code()  # polled first, so that everything that the script wrote is read below
        ready, _, _ = select.select([self._progress.source, *(relay.source for relay in self._open)], [], [], poll)
        self._open = [relay for relay in self._open if relay.source not in ready or relay.copy() != 0]
        for line in self._progress.lines():
            self._record(line)
        if ended is not None:
            for relay in self._open:
                relay.drain()
            self.exit_code = ended

    def _record(self, line: Mapping[str, Any]) -> None:
        self.saving = (self.saving or "saving" in line) and "saved" not in line
        self.save_failed = self.save_failed or "save_failed" in line
        step = line.get("step")
        if isinstance(step, int):
            if self.first_at is None:
                self.first_at = self.seconds
            self.step = step
            numbers = {name: float(value) for name, value in line.items() if isinstance(value, int | float)}
            self.values.setdefault(step, {}).update(numbers)


def _names_step(folder: Path, step: int) -> bool:
    """Return whether the meta.json of a checkpoint has the step of the folder's name."""
    try:
        meta = read_json(read_bounded(folder / "meta.json"))
    except (OSError, ValueError):
        return False
    return isinstance(meta, dict) and meta.get("step") == step
