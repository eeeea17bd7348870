"""The training command: its environment, its process group, its output and its progress lines.

The environment is part of the training contract (docs/your-own-training.md).
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..bounds import read_json
from ..log import hidden, write
from .launch import LaneOrder, Launch, spread
from .prepare import OUTPUT, Prepared

_PAYLOAD = Path(__file__).resolve().parents[1]
LOG_BYTES_MAX = 16 << 20
TAIL_BYTES = 4000
_PIECE_BYTES = 1 << 16
_LINE_BYTES_MAX = 1 << 16
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}  # otherwise output of a script stays in its buffer for minutes
_INPUT = re.compile(r"\{input:(\w+)\}|\$(SCHED_INPUT_\w+)|\$\{(SCHED_INPUT_\w+)\}", re.ASCII)  # references in a command
# A guard that kills its process group when its standard input closes, as it does however this process dies.
_LEASH = ("/bin/sh", "-c", "trap '' TERM INT HUP USR1; read _; kill -KILL 0")


class Relay:
    """Copies an output stream of the command to one of ours, up to LOG_BYTES_MAX, and keeps its last TAIL_BYTES."""

    def __init__(self, source: int, sink: int, prefix: str) -> None:
        os.set_blocking(source, False)
        self.source = source
        self._sink = sink
        self._prefix = prefix.encode()
        self._room = LOG_BYTES_MAX
        self._line = b""
        self._tail = b""

    @property
    def tail(self) -> str:
        """The last lines of the stream as text, redacted."""
        return (self._tail + _clean(self._line)).decode(errors="replace").strip()

    def copy(self) -> int | None:
        """Copy a piece; return its length in bytes, 0 at the end of the stream, None if nothing is available."""
        try:
            piece = os.read(self.source, _PIECE_BYTES)
        except BlockingIOError:
            return None
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            self._emit(line + b"\n")
        if len(self._line) > _LINE_BYTES_MAX + _kept_back():
            # What may be the beginning of a secret is kept back until its end arrives.
            whole = hidden.whole(self._line.decode(errors="surrogateescape")).encode(errors="surrogateescape")
            end = max(0, len(whole) - _kept_back())
            if end:
                self._emit(whole[:end] + b"\n")
            self._line = whole[end:]
        return len(piece)

    def drain(self) -> None:
        """Copy what is left after the command's end, without waiting: a helper process may keep the stream open."""
        while self.copy():
            pass
        self._emit(self._line)
        self._line = b""

    def _emit(self, line: bytes) -> None:
        if not line:
            return
        line = _clean(line)
        self._tail = (self._tail + line)[-TAIL_BYTES:]
        if self._room <= 0:
            return
        self._room -= len(line)
        if self._room <= 0:
            line = f"[log cap of {LOG_BYTES_MAX >> 20} MiB reached; the rest is dropped]\n".encode()
        if not write(self._sink, self._prefix + line):
            self._room = 0


def _kept_back() -> int:
    """Return how many bytes at the end of a cut line may belong to a secret: a character has up to four bytes."""
    return 4 * hidden.longest


def _clean(line: bytes) -> bytes:
    if not hidden.longest:
        return line
    return hidden(line.decode(errors="surrogateescape")).encode(errors="surrogateescape")


class CommandProgress:
    """The FIFO on which the command reports progress as JSON lines."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path = path
        # Also opened for writing, so that it neither blocks nor ends while no process of the command has it open.
        self.source = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._line = b""

    def lines(self) -> Iterator[Mapping[str, Any]]:
        """Yield the JSON objects that have arrived; other lines are ignored."""
        with suppress(BlockingIOError):
            while piece := os.read(self.source, _PIECE_BYTES):
                *lines, rest = (self._line + piece).split(b"\n")
                self._line = rest if len(rest) <= _LINE_BYTES_MAX else b""
                for line in lines:
                    with suppress(ValueError):
                        entry = read_json(line)
                        if isinstance(entry, dict):
                            yield entry


class Spec(NamedTuple):
    """How to start a command: words, variables, working folder, and the prefix of its log lines."""

    words: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    prefix: str
    sinks: tuple[int, int] | None = None  # descriptors for its output and errors; None: ours


class TrainingCommand:
    """A started command, in the process group of a guard that dies with the agent. Raises OSError if it cannot start.

    The group stays in the agent's POSIX session, so that a platform can find and end all processes by session ID.
    """

    def __init__(self, spec: Spec) -> None:
        leash, self._leash = os.pipe()
        try:
            self._guard = subprocess.Popen(
                _LEASH, stdin=leash, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
            )
        finally:
            os.close(leash)
        try:
            self._process = subprocess.Popen(
                spec.words,
                env=spec.environment,
                cwd=spec.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=self._guard.pid,
            )
        except OSError:
            self.kill()
            raise
        assert self._process.stdout  # noqa: S101 - for the type checker: both streams are pipes
        assert self._process.stderr  # noqa: S101
        out, err = spec.sinks or (sys.stdout.fileno(), sys.stderr.fileno())
        self.output = Relay(self._process.stdout.fileno(), out, spec.prefix)
        self.errors = Relay(self._process.stderr.fileno(), err, spec.prefix)

    def exit_code(self) -> int | None:
        """Return the exit status, or minus the number of the signal that ended the command; None while it runs."""
        return self._process.poll()

    @property
    def process_id(self) -> int:
        """The process ID of the command."""
        return self._process.pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command's own process only, because SIGUSR1 may kill its helper processes."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the whole group, and return when the guard has ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._guard.pid, signal.SIGKILL)
        if self._guard.returncode is None:
            self._guard.wait()
            os.close(self._leash)

    def close(self) -> None:
        """Kill the rest of the group and close its output."""
        self.kill()
        with self._process:  # closes both streams
            pass


def training_command(launch: Launch, order: LaneOrder, prepared: Prepared, *, resume: bool) -> Spec:
    """Return how to start a lane's command: its words with placeholders replaced, and its environment."""
    folder = launch.lane_dir(order)
    seconds_left = launch.clock.wall_seconds_until(launch.closing_at)
    environment = {
        **os.environ,
        **UNBUFFERED,
        "CUDA_VISIBLE_DEVICES": ",".join(str(device) for device in order.devices),
        **order.environment,
        **prepared.inputs,
        **prepared.secrets,
        "SCHED_RUN_ID": launch.run,
        "SCHED_JOB": order.job,
        "SCHED_SEED": str(order.seed),
        "SCHED_DATA_DIR": prepared.data,
        "SCHED_TARGET_STEP": str(order.target_step),
        "SCHED_SECONDS_LEFT": str(max(0, int(seconds_left))),
        **folders(folder, resume=resume),
    }
    environment.pop("SCHED_INPUT_PARENT", None)  # left over from an outer session
    if prepared.parent:
        environment["SCHED_INPUT_PARENT"] = prepared.parent
    python = sys.executable
    if prepared.environment is not None:
        packages = prepared.environment
        python = str(packages / "bin" / "python")
        environment["VIRTUAL_ENV"] = str(packages)
        environment["PATH"] = os.pathsep.join((str(packages / "bin"), environment.get("PATH") or os.defpath))
    if order.whole and prepared.parent:  # an evaluation scores its parent
        environment.setdefault("SCHED_INPUT_MODEL", prepared.parent)
    if order.whole:
        # A script that follows the contract runs as it does outside a session, and its checkpoints are output too.
        output = folder / "command" / OUTPUT
        environment |= {"SCHED_OUTPUT_DIR": str(output), "SCHED_CHECKPOINT_DIR": str(output / "checkpoints")}
        environment |= {"SCHED_TARGET_STEP": "", "SCHED_PROGRESS": ""}
    environment["PYTHONPATH"] = with_kit(environment.get("PYTHONPATH"))
    filled = (word.replace("{python}", python).replace("{payload}", str(_PAYLOAD)) for word in order.command)
    words = [_INPUT.sub(lambda reference: _folder_of(reference, environment), word) for word in filled]
    if order.nodes is not None:
        words, variables = spread(words, order.nodes)
        environment |= variables
    prefix = f"{order.job}| " if len(launch.lanes) > 1 or order.lane else ""
    return Spec(words, environment, folder / "command", prefix)


def folders(folder: Path, *, resume: bool) -> dict[str, str]:
    """Return the variables of the training contract that name folders of the lane; without ``resume``, one is empty."""
    return {
        "SCHED_RESUME_DIR": str(folder / "resume") if resume else "",
        "SCHED_CHECKPOINT_DIR": str(folder / "checkpoints"),
        "SCHED_PROGRESS": str(folder / "progress"),
    }


def with_kit(path: str | None) -> str:
    """Return a PYTHONPATH with the folder of ``trainer_kit`` at its end, so that any script can import that module."""
    return os.pathsep.join(filter(None, (path, str(_PAYLOAD / "trainers"))))


def _folder_of(match: re.Match[str], environment: dict[str, str]) -> str:
    """Return the folder of the input that a reference names; a reference to an unknown input is unchanged."""
    name = match[2] or match[3] or f"SCHED_INPUT_{match[1].upper()}"
    return environment.get(name, match[0])
