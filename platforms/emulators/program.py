"""What all emulators share as programs: options, clock, signals, and the end of processes left by an earlier one."""

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
_ROUNDS = 100


def options_of(name: str, description: str | None, folder: str) -> argparse.ArgumentParser:
    """Return the parser of the options that every emulator has; ``folder`` is the help text of its folder."""
    parser = argparse.ArgumentParser(prog=f"python -m platforms.emulators.{name}", description=description)
    parser.add_argument("folder", type=Path, help=folder)
    parser.add_argument("--port", type=int, default=0)
    epoch = "what its clock shows at --origin, as UTC seconds or as a date; without it: that instant"
    parser.add_argument("--epoch", type=_instant, help=epoch)
    parser.add_argument("--origin", type=float, help="real UTC seconds; without it: now")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds in a real one")
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="end when idle for so long")
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
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    return over


def serve(server: Any, over: threading.Event, idle_seconds: float, busy: Callable[[], bool]) -> None:
    """Print the address and wait until ``over`` is set; with ``idle_seconds``, also until it was idle for that long.

    It is idle while no request arrives, by the server's counter ``heard``, and ``busy`` returns False.
    """
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    heard = -1
    while not over.wait(idle_seconds or None):
        if heard == server.heard and not busy():
            break
        heard = server.heard


# Processes that outlived an emulator.
def clear(folder: Path) -> None:
    """End every process that works below ``folder`` and remove the folder, so that the new account is empty.

    An unknown process that went on would publish at the same time as the session that replaces it.
    """
    end_unknown(folder, frozenset())
    shutil.rmtree(folder, ignore_errors=True)


def end_unknown(folder: Path, keys: Collection[str]) -> None:
    """End every process that works below ``folder``, except in the folders ``keys``."""
    for _ in range(_ROUNDS):
        pids = _kernels(folder, keys)
        if not pids:
            break
        kill(pids)


def _kernels(folder: Path, keys: Collection[str] = ()) -> list[int]:
    mark = f"{MARK}={folder}/".encode()
    passed_over = {f"{MARK}={session}".encode() for session in keys}
    result = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "environ").read_bytes().split(b"\0")
            if any(word.startswith(mark) and word not in passed_over for word in words):
                result.append(int(process.name))
    return result
