"""Run the emulator as a program: python -m platforms.emulators.sagemaker FOLDER --port N --bucket NAME."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path

from jobs.payload.clock import Clock
from platforms.emulators.sagemaker.place import Place
from platforms.emulators.sagemaker.rules import Rules
from platforms.emulators.sagemaker.server import Server


def main() -> None:
    """Serve until SIGTERM or SIGINT; print the address when ready."""
    parser = argparse.ArgumentParser(prog="python -m platforms.emulators.sagemaker", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the instances' disks live")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", default="", help="a bucket to begin with")
    parser.add_argument("--epoch", type=float, default=0.0, help="scheduled second at the instant --origin")
    parser.add_argument("--origin", type=float, default=0.0, help="real second at which --epoch was shown")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds in a real one")
    parser.add_argument("--instances", type=int, default=1, help="instances that the account may use at a time")
    options = parser.parse_args()
    clock = Clock(options.epoch, options.origin, options.scale)
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    place = Place(options.folder.absolute(), clock, Rules(instances_max=options.instances))
    with Server(place, options.port) as server:
        if options.bucket:
            server.make_bucket(options.bucket)
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        over.wait()


if __name__ == "__main__":
    main()
