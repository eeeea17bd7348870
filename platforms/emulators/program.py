"""What the programs of all emulators share: options, clock, signals, and ending the processes of earlier emulators."""

import argparse
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobs.duration import parse_instant
from jobs.payload.clock import Clock
from platforms.local.processes import MARK, kill

# Variables that make numerical results equal in all sessions of this machine, whatever cloud they emulate.
SUMS = re.compile(r"(OMP|MKL|OPENBLAS)_\w+")
_ROUNDS = 100  # attempts to end processes, because they may start new ones


def options_of(name: str, description: str | None, folder: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all emulators have; ``folder`` is the help text of its folder."""
    parser = argparse.ArgumentParser(prog=f"python -m platforms.emulators.{name}", description=description)
    parser.add_argument("folder", type=Path, help=folder)
    parser.add_argument("--port", type=int, default=0)
    epoch = "the time of its clock at --origin, as UTC seconds or as a date; default: the same as --origin"
    parser.add_argument("--epoch", type=_instant, help=epoch)
    parser.add_argument("--origin", type=float, help="real UTC seconds; default: now")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds per real second; default: 1")
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="end after so many idle seconds; 0: never")
    return parser


def _instant(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return parse_instant(text)


def clock_of(options: argparse.Namespace) -> Clock:
    """Return the clock that the options describe."""
    origin = Clock().now() if options.origin is None else options.origin
    return Clock(origin if options.epoch is None else options.epoch, origin, options.scale)


def ending() -> threading.Event:
    """Return an event that is set when SIGTERM or SIGINT arrives."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    return ended


def serve(server: Any, ended: threading.Event, idle_seconds: float, busy: Callable[[], bool]) -> None:
    """Print the address and wait until ``ended`` is set or the server was idle for ``idle_seconds`` (0: no limit).

    The server is idle while its counter ``calls_received`` does not change and ``busy`` returns False.
    """
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    calls = -1
    while not ended.wait(idle_seconds or None):
        if calls == server.calls_received and not busy():
            break
        calls = server.calls_received


# Processes that outlived an emulator.
def clear(folder: Path) -> None:
    """End every process that works below ``folder`` and remove the folder, so that the new account is empty.

    An unknown process would otherwise publish at the same time as the session that replaces it.
    """
    end_unknown(folder, frozenset())
    shutil.rmtree(folder, ignore_errors=True)


def end_unknown(folder: Path, keys: Collection[str]) -> None:
    """End every process that works below ``folder``, except in the folders ``keys``."""
    for _ in range(_ROUNDS):
        pids = _processes_below(folder, keys)
        if not pids:
            break
        kill(pids)


def _processes_below(folder: Path, keys: Collection[str] = ()) -> list[int]:
    mark = f"{MARK}={folder}/".encode()
    spared = {f"{MARK}={session}".encode() for session in keys}
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word.startswith(mark) and word not in spared for word in words):
                result.append(int(process.name))
    return result
