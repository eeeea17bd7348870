"""One session of one kernel version: a process with Kaggle's folders, its log, its end and its bill."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypedDict, cast

from jobs.payload.clock import Clock
from platforms.emulators.program import SUMS
from platforms.local.processes import MARK, kill_members, start_ticks

_KILL_ROUNDS = 25
_PIECE_BYTES = 1 << 16
_STREAMS = ("stdout", "stderr")
_JOURNAL, _EXIT = "journal", "exit"
# What papermill and nbconvert say after every script.
_AFTERWORD = "[NbConvertApp] Converting notebook __notebook__.ipynb to html\n"


class Line(TypedDict):
    """One piece of output. ``time`` is in seconds since the session began."""

    stream_name: str
    time: float
    data: str


@dataclass(slots=True)
class PushTerms:
    """What the place fixed when the version was pushed. Seconds are scheduled."""

    session_id: int
    source: str
    folder: Path  # holds kaggle/input, kaggle/working and bin
    is_gpu: bool
    gpus: tuple[str, ...]
    limit_seconds: float | None
    queue_seconds: float
    log_bytes_max: int
    token: str = ""  # with which the kernel may call the place; none: it may not
    address: str = ""  # of the place


@dataclass
class EmulatedSession:
    """A session; every field is read under ``changed``, which is notified at each change.

    Its fields are what outlives a crash of the place; what else it needs of a place it gets by ``attach``.
    """

    terms: PushTerms
    status: str = "QUEUED"
    failure: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    kept: bool = False  # whether its output was saved
    pid: int = 0  # of its process, with when that started
    ticks: int = 0

    def __post_init__(self) -> None:
        self.lines: list[Line] = []
        self.changed = threading.Condition()
        self._cut: tuple[str, str] | None = None  # status and message of an end from outside
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._log_bytes = 0

    def attach(self, clock: Clock, quota_left: Callable[[], float], note: Callable[[], None]) -> Self:
        """Let the session live at a place, and return it.

        ``quota_left`` tells how many seconds of quota the place still has for sessions like this one; ``note`` is
        called when what must outlive a crash has changed.
        """
        self.clock, self.quota_left, self.note = clock, quota_left, note
        return self

    @property
    def live(self) -> bool:
        """Whether it is not over."""
        return self.ended_at is None

    def billed_within(self, start: float, end: float) -> float:
        """Return the seconds of this session inside [start, end)."""
        if self.started_at is None:
            return 0.0
        until = self.clock.now() if self.ended_at is None else self.ended_at
        return max(0.0, min(until, end) - max(self.started_at, start))

    def begin(self) -> None:
        """Start in the background."""
        self._thread = threading.Thread(target=self._live, name=f"kernel {self.terms.session_id}", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Go on with a session that a place before this one began; what its process printed meanwhile is there."""
        with suppress(FileNotFoundError), (self.terms.folder / _JOURNAL).open() as stream:
            self.lines.extend(cast("Line", json.loads(line)) for line in stream if line.endswith("\n"))
        self._log_bytes = sum(len(line["data"]) for line in self.lines)
        if self.live:
            work = self._live if self.started_at is None else self._go_on
            self._thread = threading.Thread(target=work, name=f"kernel {self.terms.session_id}", daemon=True)
            self._thread.start()

    def cut(self, status: str, message: str) -> None:
        """End it from outside and wait until it is over."""
        with self.changed:
            self._cut = self._cut or (status, message)
        self._wake.set()
        self.join()

    def join(self) -> None:
        """Wait for the end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def news(self, count: int, patience_wall_seconds: float) -> tuple[list[Line], bool]:
        """Wait for lines beyond the first ``count``, or for the end; return them and whether it is over."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.lines) > count or not self.live, timeout=patience_wall_seconds)
            return self.lines[count:], not self.live

    def output_files(self) -> list[str]:
        """Return the names of what was saved, below the working folder."""
        if not self.kept:
            return []
        working = self.terms.folder / "kaggle" / "working"
        return sorted(path.relative_to(working).as_posix() for path in working.rglob("*") if path.is_file())

    def _live(self) -> None:
        self._wake.wait(self.clock.wall_seconds(self.terms.queue_seconds))
        if self._cut is None:
            self._run()
        else:
            self._end(*self._cut)

    def _run(self) -> None:
        folder = self.terms.folder
        (folder / "tmp").mkdir(exist_ok=True)  # it exists if the emulator died just before it reported this
        (folder / "source.py").write_text(self.terms.source)
        environment = {
            **{name: text for name, text in os.environ.items() if SUMS.fullmatch(name)},
            "PATH": f"{folder / 'bin'}:{os.environ.get('PATH', '')}",
            "HOME": str(folder),
            "TMPDIR": str(folder / "tmp"),
            "LANG": "C.UTF-8",
            "KAGGLE_KERNEL_RUN_TYPE": "Batch",
            "KAGGLE_CONTAINER_NAME": f"kaggle_{os.urandom(6).hex()}-webtier-{self.terms.session_id}",
            MARK: str(folder),
        }
        if self.terms.token:
            # As on the real place the file named here opens it; the way there is the one that clients take.
            (folder / "token").write_text(self.terms.token)
            environment["KAGGLE_API_V1_TOKEN"] = str(folder / "token")
            environment["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
            environment["HTTP_PROXY"] = self.terms.address
            environment["NO_PROXY"] = "127.0.0.1"
        _write_smi(folder / "bin" / "nvidia-smi", self.terms.gpus)
        for name in _STREAMS:
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)
        # A notebook has no file of its own, so a script that asks for __file__ fails there as it does here. The shell
        # writes down how it ended, for a place that is started again and is not its parent. It writes into pipes with a
        # name, of which it holds both ends: a place that dies breaks none of them.
        program = [
            "sh",
            "-c",
            '"$1" - ; echo $? >"$2.new"; mv "$2.new" "$2"',
            "sh",
            sys.executable,
            str(folder / _EXIT),
        ]
        with (folder / "source.py").open("rb") as source, self._reading() as readers, ExitStack() as handed:
            ends = [os.open(folder / name, os.O_RDWR) for name in _STREAMS]
            for end in ends:
                handed.callback(os.close, end)
            process = subprocess.Popen(
                program,
                stdin=source,
                stdout=ends[0],
                stderr=ends[1],
                cwd=folder / "kaggle" / "working",
                env=environment,
                start_new_session=True,
            )
            handed.close()  # from here on only the process holds them, so their end is its end
            # It is written down before any answer says that it runs; once the meter runs, no answer says that it waits.
            with self.changed:
                self.pid, self.ticks = process.pid, start_ticks(process.pid) or 0
                self.status, self.started_at = "RUNNING", self.clock.now()
                self.note()
                self.changed.notify_all()
            self._watch(process, readers)

    def _go_on(self) -> None:
        with self._reading() as readers:
            self._watch(None, readers)

    @contextmanager
    def _reading(self) -> Iterator[Mapping[str, int]]:
        """Open the pipes of the session for reading, by the names of their streams."""
        with ExitStack() as opened:
            readers = {name: os.open(self.terms.folder / name, os.O_RDONLY | os.O_NONBLOCK) for name in _STREAMS}
            for reader in readers.values():
                opened.callback(os.close, reader)
            yield readers

    def _watch(self, process: subprocess.Popen[bytes] | None, readers: Mapping[str, int]) -> None:
        """Take in what the process prints until it is over, and see how it ended."""
        folder = str(self.terms.folder)
        cut = self._follow(readers)
        if cut is not None:
            kill_members(self.pid, self.ticks, folder, rounds=_KILL_ROUNDS)
        if process is not None:
            process.wait()
        kill_members(self.pid, self.ticks, folder, rounds=_KILL_ROUNDS)
        code = self._exit_code()
        if cut is not None:
            self._end(*cut)
        elif code == 0:
            self._say("stderr", _AFTERWORD)
            self._end("COMPLETE", None, kept=True)
        else:
            self._say("stderr", f"papermill.exceptions.PapermillExecutionError: exit code {code}\n")
            self._end("ERROR", "Your notebook failed")

    def _exit_code(self) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int((self.terms.folder / _EXIT).read_text())
        return 1  # it was killed before it could tell

    def _follow(self, readers: Mapping[str, int]) -> tuple[str, str] | None:
        """Take in output until the process closes it; return how it was cut short, if it was."""
        with selectors.DefaultSelector() as selector:
            for name, reader in readers.items():
                # A pipe without a writer looks quiet when it is opened: only reading shows its end.
                with suppress(BlockingIOError):
                    data = os.read(reader, _PIECE_BYTES)
                    if not data:
                        continue
                    self._say(name, data.decode(errors="replace"))
                selector.register(reader, selectors.EVENT_READ, name)
            while selector.get_map():
                cut = self._cut or self._overrun()
                if cut is not None:
                    return cut
                for key, _ in selector.select(self._patience()):
                    data = os.read(key.fd, _PIECE_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    else:
                        self._say(key.data, data.decode(errors="replace"))
        return None

    def _patience(self) -> float:
        """Return the wall seconds until the session must be looked at again."""
        if self.terms.limit_seconds is None or self.started_at is None:
            return 0.02
        return max(0.0, min(0.02, self.clock.wall_seconds_until(self.started_at + self.terms.limit_seconds)))

    def _overrun(self) -> tuple[str, str] | None:
        now, limit = self.clock.now(), self.terms.limit_seconds
        if limit is not None and self.started_at is not None and now >= self.started_at + limit:
            return "ERROR", "Your notebook was stopped because it exceeded the maximum allowed run time"
        if self.terms.is_gpu and self.quota_left() <= 0:
            return "CANCEL_ACKNOWLEDGED", "Weekly GPU quota exceeded"
        return None

    def _say(self, stream: str, text: str) -> None:
        with self.changed:
            if self._log_bytes < self.terms.log_bytes_max and self.started_at is not None:
                self._log_bytes += len(text)
                line = Line(stream_name=stream, time=self.clock.now() - self.started_at, data=text)
                self.lines.append(line)
                with (self.terms.folder / _JOURNAL).open("a") as journal:
                    journal.write(json.dumps(line) + "\n")
                self.changed.notify_all()

    def _end(self, status: str, failure: str | None, *, kept: bool = False) -> None:
        shutil.rmtree(self.terms.folder / "kaggle" / "input", ignore_errors=True)  # it goes with the container
        with self.changed:
            self.status, self.failure, self.kept, self.ended_at = status, failure, kept, self.clock.now()
            self.changed.notify_all()
        self.note()


def _write_smi(path: Path, gpus: tuple[str, ...]) -> None:
    """Put a program where the driver's would be that names the accelerators of the session."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = "".join(f"echo '{gpu}'\n" for gpu in gpus)
    path.write_text(f"#!/bin/sh\n{names or 'exit 9'}\n")
    path.chmod(0o755)
