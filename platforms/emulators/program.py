"""An emulator as a program of its own: it says its address, and goes on until it is told to end or is idle."""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from platforms.local.processes import MARK, SIGKILL

# What makes sums come out the same in all sessions of this machine, whatever cloud they are said to run on.
SUMS = re.compile(r"(OMP|MKL|OPENBLAS)_\w+")
_ROUNDS = 25
_WAIT_MILLISECONDS = 200


class Fault(StrEnum):
    """What can happen to one call. SageMaker's emulator knows those that may happen to any."""

    THROTTLED = "too many requests"
    SERVER_ERROR = "500"
    DROP = "connection closed before anything was done"
    DROP_AFTER_COMMIT = "connection closed after it was done"
    ERROR_AFTER_COMMIT = "500 after it was done"
    # Kaggle's alone:
    THROTTLED_LATER = "429 with Retry-After"
    THROTTLED_PAGE = "429 as a page of HTML that says it is JSON"
    FORBIDDEN = "403"
    PAGE = "200 with a page of HTML"
    HANG = "no answer"
    EMPTY = "200 with an empty object before anything was done"


@dataclass(slots=True)
class Faults:
    """Faults to come. ``next`` holds, by name of a call (``SaveKernel``), what happens to the next ones.

    ``always`` happens to every call named (``*``: all, those of other services too). ``draw`` is asked for every other
    call that has a name. ``twist`` is shown the answer of a call that was carried out and returns the body that is sent
    in its place with a good status, or None to leave it.
    """

    next: dict[str, deque[Fault]] = field(default_factory=dict)
    always: dict[str, Fault] = field(default_factory=dict)
    draw: Callable[[str], Fault | None] = lambda _call: None
    twist: Callable[[str, Mapping[str, Any]], bytes | None] = lambda _call, _answer: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, call: str, *faults: Fault) -> None:
        """Let ``faults`` happen to the next calls of that name, in this order."""
        with self.lock:
            self.next.setdefault(call, deque()).extend(faults)

    def take(self, call: str) -> Fault | None:
        """Return what happens to a call that has just come in; ``call`` is empty for one without a name."""
        with self.lock:
            if self.next.get(call):
                return self.next[call].popleft()
            return self.always.get(call) or self.always.get("*") or (self.draw(call) if call else None)


class Server(Protocol):
    """What is served: where, and how many calls came."""

    @property
    def address(self) -> str:
        """What clients are given."""
        ...

    heard: int


def ending() -> threading.Event:
    """Return what is set when the program is told to end, by SIGTERM or SIGINT."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    return over


def serve(server: Server, over: threading.Event, idle_seconds: float, busy: Callable[[], bool]) -> None:
    """Print the address and wait until it is ``over``; with ``idle_seconds``, also until nothing happened for so long.

    Nothing happens while nobody calls and it is not ``busy``.
    """
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    heard = -1
    while not over.wait(idle_seconds or None):
        if heard == server.heard and not busy():
            break
        heard = server.heard


# Kernels that run on.
def clear(folder: Path) -> None:
    """End every kernel that works below ``folder`` and remove the folder: the new account begins empty.

    A kernel that went on while nobody knows it would publish beside the session that takes its place.
    """
    end_unknown(folder, frozenset())
    shutil.rmtree(folder, ignore_errors=True)


def end_unknown(folder: Path, known: Collection[str]) -> None:
    """End every kernel that works below ``folder``, except in the folders ``known``."""
    for _ in range(_ROUNDS):
        pids = _kernels(folder, known)
        if not pids:
            break
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                descriptor = os.pidfd_open(pid)
                os.kill(pid, SIGKILL)
                watch = select.poll()
                watch.register(descriptor, select.POLLIN)
                watch.poll(_WAIT_MILLISECONDS)
                os.close(descriptor)


def _kernels(folder: Path, known: Collection[str] = ()) -> list[int]:
    mark = f"{MARK}={folder}/".encode()
    passed_over = {f"{MARK}={session}".encode() for session in known}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word.startswith(mark) and word not in passed_over for word in words):
                found.append(int(process.name))
    return found
