"""The state of an emulated Kaggle account: kernels, sessions, datasets and the quota, all on one scaled clock."""

import json
import math
import os
import re
import secrets
import selectors
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, cast

from jobs.payload.clock import Clock
from platforms.emulators.kaggle.storage import KaggleRefusal, KaggleRules, KaggleStorage, denied
from platforms.emulators.program import SUMS
from platforms.local.processes import MARK, kill_members, start_ticks

# The account: its kernels, and the cost of their sessions.
_WEEK = 604_800
_SATURDAY = 2 * 86_400  # 1970-01-03T00:00:00Z
_T4 = ("Tesla T4", "Tesla T4")
Kind = Literal["GPU", "TPU", "CPU"]
# The GPUs of a machine shape, as nvidia-smi names them; retired shapes are silently replaced.
_SHAPES: dict[str, tuple[str, ...]] = {
    "NvidiaTeslaT4": _T4,
    "NvidiaTeslaP100": _T4,
    "NvidiaL4": ("NVIDIA L4",) * 4,
    "NvidiaL4X1": ("NVIDIA L4",),
}
_NO_TPUS = frozenset({"TpuV232", "TpuV2256"})  # retired shapes that get a CPU


def _kind_of(body: Mapping[str, Any]) -> Kind:
    if body.get("enableTpu"):
        return "CPU" if body.get("machineShape") in _NO_TPUS else "TPU"
    return "GPU" if body.get("enableGpu") else "CPU"


@dataclass(slots=True)
class KernelVersion:
    """One push of a kernel: its request ``body``, and its session (None if the push only saved the kernel)."""

    number: int
    body: dict[str, Any]
    pushed_at: float
    session: "EmulatedSession | None"


@dataclass(slots=True)
class Kernel:
    """A kernel by its slug."""

    id: int
    slug: str
    title: str
    versions: list[KernelVersion] = field(default_factory=list)


class KaggleAccount:
    """One account ``owner`` with the API key ``key``, with files below ``root``."""

    def __init__(self, root: Path, clock: Clock, owner: str, key: str, rules: KaggleRules | None = None) -> None:
        self.root = root
        self.clock = clock
        self.owner = owner
        self.key = key
        self.rules = rules or KaggleRules()
        self.lock = threading.RLock()
        self.storage = KaggleStorage(owner, root, clock, self.rules)
        self.kernels: dict[str, Kernel] = {}
        self.deleted: dict[str, Kernel] = {}
        self.address = ""  # where the account is served, set by the server
        self.note: Callable[[], None] = lambda: None  # called after each change that must survive a crash
        self.next_number = 355_193_088  # of the next kernel or session

    def sessions(self) -> "list[EmulatedSession]":
        """Return all sessions, also ended ones and those of deleted kernels."""
        with self.lock:
            kernels = [*self.kernels.values(), *self.deleted.values()]
            return [version.session for kernel in kernels for version in kernel.versions if version.session]

    def is_token(self, token: str) -> bool:
        """Return whether this is the token of a running kernel."""
        return bool(token) and any(session.live and session.terms.token == token for session in self.sessions())

    def week(self, instant: float) -> tuple[float, float]:
        """Return the quota week that contains an instant: Saturday 00:00 UTC to the next."""
        start = instant - (instant - _SATURDAY) % _WEEK
        return start, start + _WEEK

    def seconds_used(self, start: float, end: float, kind: Kind = "GPU") -> float:
        """Return the seconds billed in [start, end): wall-clock time per session, whatever its number of devices."""
        return sum(session.billed_within(start, end) for session in self.sessions() if session.terms.kind == kind)

    def seconds_per_week(self, kind: Kind) -> float:
        """Return the seconds that sessions of a kind may use in a week."""
        return {"GPU": self.rules.gpu_seconds_per_week, "TPU": self.rules.tpu_seconds_per_week}.get(kind, math.inf)

    def seconds_left(self, kind: Kind) -> float:
        """Return the seconds of a kind left this week."""
        return self.seconds_per_week(kind) - self.seconds_used(*self.week(self.clock.now()), kind)

    def quota(self) -> dict[str, Any]:
        """Answer GetAcceleratorQuotaStatistics."""
        start, end = self.week(self.clock.now())
        return {
            "quotaRefreshTime": instant_text(end),
            "gpuQuota": self._quota_of("GPU", start, end),
            "tpuQuota": self._quota_of("TPU", start, end),
        }

    def _quota_of(self, kind: Kind, start: float, end: float) -> dict[str, Any]:
        used = self.seconds_used(start, end, kind)
        return {
            "timeUsed": f"{used:.9f}s",
            "timeReserved": "0s",
            "totalTimeAllowed": f"{self.seconds_per_week(kind)}s",
            "isPayToScaleEnabled": False,
            "hasEverRun": used > 0,
        }

    def last_run_at(self, kernel: Kernel) -> float:
        """Return when the newest session started, or was pushed if it has not started."""
        newest = kernel.versions[-1]
        started = newest.session.started_at if newest.session else None
        return newest.pushed_at if started is None else started

    def push(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer SaveKernel. Like Kaggle, it returns errors with HTTP 200, except for a source that is too large."""
        text = str(body.get("text") or "")
        if len(text.encode()) > self.rules.source_bytes_max:
            raise KaggleRefusal(400, "Bad Request")
        owner, _, declared = str(body.get("slug") or "").partition("/")
        if owner != self.owner:
            raise denied("kernels.update")
        runs = body.get("kernelExecutionType") != "QUICK_SAVE"
        kind = _kind_of(body)
        if runs and (error := self.refusal(kind)):
            return {"error": error}
        kernel = self.kernels.get(declared)
        if kernel is None:
            title = str(body.get("newTitle") or "")
            slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
            if len(title) < 5 or len(slug) < 5 or len(title) > 50:
                return {"error": "The title must be between 5 and 50 characters"}
            kernel = self.kernels.setdefault(slug, Kernel(self._number(), slug, title))
        number = len(kernel.versions) + 1
        folder = self.root / "kernels" / f"{kernel.slug}.{number}.{self._number()}"
        (folder / "kaggle" / "working").mkdir(parents=True)
        (folder / "kaggle" / "input").mkdir()
        inputs = folder / "kaggle" / "input"
        invalid = [source for source in body.get("datasetDataSources") or () if not self.attach(source, inputs)]
        models = [source for source in body.get("modelDataSources") or () if not self.attach_model(source, inputs)]
        session = self._session(body, text, folder, kind) if runs else None
        kernel.versions.append(KernelVersion(number, body, self.clock.now(), session))
        if session is not None:
            session.begin()
        return {
            "ref": f"/code/{self.owner}/{kernel.slug}",
            "url": f"https://kaggle.invalid/code/{self.owner}/{kernel.slug}",
            "versionNumber": number,
            "kernelId": kernel.id,
            "invalidDatasetSources": invalid,
            "invalidModelSources": models,
        }

    def attach(self, source: str, target: Path) -> bool:
        """Attach a dataset to a kernel; return whether it exists."""
        owner, slug, *_ = source.split("/")
        return self.storage.attach(f"{owner}/{slug}", target)

    def attach_model(self, source: str, target: Path) -> bool:
        """Attach a model to a kernel; return False, as this emulator has no models."""
        del source, target
        return False

    def refusal(self, kind: Kind) -> str:
        """Return why no further session of a kind may start; "" if one may."""
        live = sum(session.live and session.terms.kind == kind for session in self.sessions())
        most = getattr(self.rules, f"{kind.lower()}_sessions_max")
        if live >= most:
            return f"Maximum batch {kind} session count of {most} reached."
        if self.seconds_left(kind) <= 0:
            return f"Maximum weekly {kind} quota of {self.seconds_per_week(kind) / 3600:.2f} hours reached."
        return ""

    def _session(self, body: dict[str, Any], text: str, folder: Path, kind: Kind) -> "EmulatedSession":
        cap = self.rules.tpu_session_cap_seconds if kind == "TPU" else self.rules.session_cap_seconds
        limit = min(float(body.get("sessionTimeoutSeconds") or cap), float(cap))
        shape = str(body.get("machineShape") or "NvidiaTeslaT4")
        terms = PushTerms(
            session_id=self._number(),
            source=text,
            folder=folder,
            kind=kind,
            gpus=_SHAPES.get(shape, ()) if kind == "GPU" else (),
            limit_seconds=limit,
            queue_seconds=self.rules.queue_seconds,
            log_bytes_max=self.rules.log_bytes_max,
            token=secrets.token_hex(16) if self.rules.lets_kernels_in and body.get("enableInternet") else "",
        )
        return self.attach_session(EmulatedSession(terms))

    def attach_session(self, session: "EmulatedSession") -> "EmulatedSession":
        """Connect a new or restored session to this account, and return it."""
        session.terms.address = self.address
        return session.attach(self.clock, partial(self.seconds_left, session.terms.kind), self.note)

    def _number(self) -> int:
        self.next_number += 1
        return self.next_number - 1

    def version(self, owner: str, slug: str, label: str | None) -> tuple[Kernel, KernelVersion]:
        """Return a kernel with the version of the label ``v<N>``, by default the newest. Raises KaggleRefusal."""
        if owner == self.owner and slug in self.deleted and slug not in self.kernels:
            raise KaggleRefusal(404, "Not found")
        kernel = self.kernels.get(slug) if owner == self.owner else None
        if kernel is None:
            raise denied("kernels.get")
        if not label:
            return kernel, kernel.versions[-1]
        match = re.fullmatch(r"v(\d+)", label)
        if match is None or not 1 <= int(match[1]) <= len(kernel.versions):
            raise KaggleRefusal(404, "Not found")
        return kernel, kernel.versions[int(match[1]) - 1]

    def cancel(self, session_id: object) -> dict[str, Any]:
        """Answer CancelKernelSession. It needs the session's ID, which no response of the emulator contains."""
        with self.lock:
            matching = [session for session in self.sessions() if str(session.terms.session_id) == str(session_id)]
        if not matching:
            raise denied("kernelSessions.cancel")
        if not matching[0].live:
            return {"errorMessage": "Kernel session is not running"}
        matching[0].cut("CANCEL_ACKNOWLEDGED", "Cancelled by the user")
        return {}

    def delete(self, owner: str, slug: str) -> dict[str, Any]:
        """Answer DeleteKernel, which deletes all versions; a running session ends at once."""
        with self.lock:
            kernel = self.kernels.get(slug) if owner == self.owner else None
            if kernel is None:
                raise denied("kernels.delete")
            self.deleted[slug] = self.kernels.pop(slug)
        for version in kernel.versions:
            if version.session is not None and version.session.live:
                version.session.cut("CANCEL_ACKNOWLEDGED", "The notebook was deleted")
        return {}

    def close(self) -> None:
        """End every session."""
        for session in self.sessions():
            session.cut("CANCEL_ACKNOWLEDGED", "The emulator closes")


def instant_text(instant: float) -> str:
    """Return an instant in Kaggle's format."""
    return datetime.fromtimestamp(instant, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# One session of one kernel version: a process with Kaggle's folders, its log, its end and its billed time.
_KILL_ROUNDS = 25
_PIECE_BYTES = 1 << 16
_STREAMS = ("stdout", "stderr")
_JOURNAL, _EXIT = "journal", "exit"
# The output of papermill and nbconvert after every script.
_AFTERWORD = "[NbConvertApp] Converting notebook __notebook__.ipynb to html\n"


class Line(TypedDict):
    """One piece of output. ``time`` is in seconds since the session began."""

    stream_name: str
    time: float
    data: str


@dataclass(slots=True)
class PushTerms:
    """The terms of a session, fixed at its push. Seconds are scheduled."""

    session_id: int
    source: str
    folder: Path  # holds kaggle/input, kaggle/working and bin
    kind: Kind
    gpus: tuple[str, ...]
    limit_seconds: float | None
    queue_seconds: float
    log_bytes_max: int
    token: str = ""  # the credential for the kernel's calls to the server; empty: it may not call
    address: str = ""  # of the server


@dataclass
class EmulatedSession:
    """A session; every field is read under ``changed``, which is notified at each change.

    Its public fields survive a crash of the emulator; ``attach`` sets the others.
    """

    terms: PushTerms
    status: str = "QUEUED"
    failure: str | None = None
    started_at: float | None = None
    ended_at: float | None = None
    kept: bool = False  # whether its output was saved
    pid: int = 0  # of its process
    ticks: int = 0  # the start time of the process, in clock ticks since boot

    def __post_init__(self) -> None:
        self.lines: list[Line] = []
        self.changed = threading.Condition()
        self._cut: tuple[str, str] | None = None  # status and message of an end from outside
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._log_bytes = 0

    def attach(self, clock: Clock, quota_left: Callable[[], float], note: Callable[[], None]) -> Self:
        """Connect the session to an account, and return it.

        ``quota_left`` returns the seconds of quota left for sessions like this one; ``note`` is called after each
        change that must survive a crash.
        """
        self.clock, self.quota_left, self.note = clock, quota_left, note
        return self

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.ended_at is None

    def billed_within(self, start: float, end: float) -> float:
        """Return the seconds of this session inside [start, end)."""
        if self.started_at is None:
            return 0.0
        until = self.clock.now() if self.ended_at is None else self.ended_at
        return max(0.0, min(until, end) - max(self.started_at, start))

    def begin(self) -> None:
        """Start in the background."""
        self._thread = threading.Thread(target=self._run_session, name=f"kernel {self.terms.session_id}", daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Continue a session of an earlier emulator; what its process wrote meanwhile is still in the pipes."""
        with suppress(FileNotFoundError), (self.terms.folder / _JOURNAL).open() as stream:
            self.lines.extend(cast("Line", json.loads(line)) for line in stream if line.endswith("\n"))
        self._log_bytes = sum(len(line["data"]) for line in self.lines)
        if self.live:
            work = self._run_session if self.started_at is None else self._watch_again
            self._thread = threading.Thread(target=work, name=f"kernel {self.terms.session_id}", daemon=True)
            self._thread.start()

    def cut(self, status: str, message: str) -> None:
        """End the session with a ``status`` and wait until it has ended; ``message`` says why."""
        with self.changed:
            self._cut = self._cut or (status, message)
        self._wake.set()
        self.join()

    def join(self) -> None:
        """Wait for the end."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def new_lines(self, count: int, patience_wall_seconds: float) -> tuple[list[Line], bool]:
        """Wait for lines after the first ``count``, or for the end; return the lines and whether it has ended."""
        with self.changed:
            self.changed.wait_for(lambda: len(self.lines) > count or not self.live, timeout=patience_wall_seconds)
            return self.lines[count:], not self.live

    def output_files(self) -> list[str]:
        """Return the names of the saved files, relative to the working folder."""
        if not self.kept:
            return []
        working = self.terms.folder / "kaggle" / "working"
        return sorted(path.relative_to(working).as_posix() for path in working.rglob("*") if path.is_file())

    def _run_session(self) -> None:
        self._wake.wait(self.clock.wall_seconds(self.terms.queue_seconds))
        if self._cut is None:
            self._run()
        else:
            self._end(*self._cut)

    def _run(self) -> None:
        folder = self.terms.folder
        (folder / "tmp").mkdir(exist_ok=True)  # it exists if the emulator died just before it recorded the start
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
            # As on Kaggle, this file's token gives access; clients find the server by the variables below.
            (folder / "token").write_text(self.terms.token)
            environment["KAGGLE_API_V1_TOKEN"] = str(folder / "token")
            environment["KAGGLE_API_ENVIRONMENT"] = "LOCALHOST"
            environment["HTTP_PROXY"] = self.terms.address
            environment["NO_PROXY"] = "127.0.0.1"
        _write_smi(folder / "bin" / "nvidia-smi", self.terms.gpus)
        for name in _STREAMS:
            (folder / name).unlink(missing_ok=True)
            os.mkfifo(folder / name)
        # Python reads the script from standard input, so that __file__ is not defined, as in a notebook. The shell
        # records the exit code for a restarted emulator, which is not its parent. The process holds both ends of the
        # named pipes that it writes to, so they do not break if the emulator dies.
        script = '"$1" - ; echo $? >"$2.new"; mv "$2.new" "$2"'
        program = ["sh", "-c", script, "sh", sys.executable, str(folder / _EXIT)]
        with (folder / "source.py").open("rb") as source, self._reading() as readers, ExitStack() as inherited:
            ends = [os.open(folder / name, os.O_RDWR) for name in _STREAMS]
            for end in ends:
                inherited.callback(os.close, end)
            process = subprocess.Popen(
                program,
                stdin=source,
                stdout=ends[0],
                stderr=ends[1],
                cwd=folder / "kaggle" / "working",
                env=environment,
                start_new_session=True,
            )
            inherited.close()  # from here on only the process holds the pipes, so they close when it ends
            # Recorded before any response reports the session as running, and before it is billed.
            with self.changed:
                self.pid, self.ticks = process.pid, start_ticks(process.pid) or 0
                self.status, self.started_at = "RUNNING", self.clock.now()
                self.note()
                self.changed.notify_all()
            self._watch(process, readers)

    def _watch_again(self) -> None:
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
        """Read the process's output until it ends, and record how it ended."""
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
        return 1  # the shell was killed before it wrote the code

    def _follow(self, readers: Mapping[str, int]) -> tuple[str, str] | None:
        """Read output until the process closes it; return the status and message of an end from outside, or None."""
        with selectors.DefaultSelector() as selector:
            for name, reader in readers.items():
                # The selector does not report a pipe whose writers had gone before it was opened; a read does.
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
        """Return the real seconds until the session must be checked again."""
        if self.terms.limit_seconds is None or self.started_at is None:
            return 0.02
        return max(0.0, min(0.02, self.clock.wall_seconds_until(self.started_at + self.terms.limit_seconds)))

    def _overrun(self) -> tuple[str, str] | None:
        now, limit = self.clock.now(), self.terms.limit_seconds
        if limit is not None and self.started_at is not None and now >= self.started_at + limit:
            return "ERROR", "Your notebook was stopped because it exceeded the maximum allowed run time"
        if self.quota_left() <= 0:
            return "CANCEL_ACKNOWLEDGED", f"Weekly {self.terms.kind} quota exceeded"
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
        shutil.rmtree(self.terms.folder / "kaggle" / "input", ignore_errors=True)  # Kaggle deletes it as well
        with self.changed:
            self.status, self.failure, self.kept, self.ended_at = status, failure, kept, self.clock.now()
            self.changed.notify_all()
        self.note()


def _write_smi(path: Path, gpus: tuple[str, ...]) -> None:
    """Write a program in place of the driver's nvidia-smi that lists the session's accelerators."""
    path.parent.mkdir(parents=True, exist_ok=True)
    names = "".join(f"echo '{gpu}'\n" for gpu in gpus)
    path.write_text(f"#!/bin/sh\n{names or 'exit 9'}\n")
    path.chmod(0o755)
