"""Run the emulator as a program: python -m platforms.emulators.kaggle FOLDER --port N --owner NAME --key-file FILE.

Without a key file the API key is the first line of the standard input, and it ends when that is closed, so that it does
not outlive whoever started it. It ends with SIGTERM and SIGINT in any case. With --idle-seconds it goes on, as the real
place does, until no session has run and nobody has asked for that long. Started again on the same folder and clock, it
goes on with the account and the sessions that ran meanwhile; on another clock the account begins empty.
"""

from __future__ import annotations

import argparse
import sys
import threading
from functools import partial
from pathlib import Path

from jobs.instant import parse_instant
from jobs.payload.clock import Clock
from platforms.emulators.kaggle.memory import live_folders, recall, save
from platforms.emulators.kaggle.place import Place
from platforms.emulators.kaggle.rules import Rules
from platforms.emulators.kaggle.server import Server
from platforms.emulators.leftovers import clear, end_unknown
from platforms.emulators.program import ending, serve


def main() -> None:
    """Serve until told to end; print the address when ready."""
    parser = argparse.ArgumentParser(prog="python -m platforms.emulators.kaggle", description=__doc__)
    parser.add_argument(
        "folder", type=Path, help="where kernels and datasets live; an account of another clock is removed"
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--owner", default="alice")
    parser.add_argument("--key-file", type=Path, help="holds the API key; without it: the standard input")
    parser.add_argument(
        "--epoch", type=parse_instant, help="what its clock shows at --origin; without it: that instant"
    )
    parser.add_argument("--origin", type=float, help="real UTC seconds; without it: now")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds in a real one")
    parser.add_argument("--gpu-hours", type=float, default=30.0, help="GPU hours of a week")
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="outlive the standard input until this idle")
    options = parser.parse_args()
    try:
        key = (options.key_file.read_text() if options.key_file else sys.stdin.readline()).strip()
    except OSError as error:
        parser.error(f"the key file cannot be read: {error}")
    if not key:
        parser.error(f"{options.key_file or 'the standard input'} holds no API key: any word will do")
    origin = Clock().now() if options.origin is None else options.origin
    clock = Clock(origin if options.epoch is None else options.epoch, origin, options.scale)
    folder = options.folder.absolute()
    rules = Rules(gpu_seconds_per_week=round(options.gpu_hours * 3600))
    place = Place(folder, clock, options.owner, key, rules, remembers=True)
    over = ending()
    server = Server(place, options.port)  # nobody is answered yet
    if recall(place):
        end_unknown(folder, live_folders(place))
    else:
        clear(folder)
    place.note = partial(save, place)
    place.note()
    with server:
        for session in place.sessions():
            session.resume()
        if options.idle_seconds <= 0 and not options.key_file:
            threading.Thread(target=_set_at_end_of_input, args=(over,), name="end of input", daemon=True).start()
        serve(server, over, options.idle_seconds, lambda: any(session.live for session in place.sessions()))


def _set_at_end_of_input(over: threading.Event) -> None:
    sys.stdin.read()
    over.set()


if __name__ == "__main__":
    main()
