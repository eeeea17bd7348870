"""Run the emulator as a program: python -m platforms.emulators.sagemaker FOLDER --port N --bucket NAME.

It ends with SIGTERM or SIGINT. With --idle-seconds it also ends by itself, once no job has run and no request has come
for that long. Jobs, and with --objects the bucket, are found again by the next emulator on the same folders.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from jobs.payload.clock import Clock
from platforms.emulators.program import clear, ending, serve
from platforms.emulators.sagemaker.job import SageMakerRules
from platforms.emulators.sagemaker.place import SageMakerAccount
from platforms.emulators.sagemaker.server import SageMakerServer


def main() -> None:
    """Serve until told to end; print the address when ready."""
    parser = argparse.ArgumentParser(prog="python -m platforms.emulators.sagemaker", description=__doc__)
    parser.add_argument("folder", type=Path, help="where jobs and the instances' disks live")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--bucket", default="", help="a bucket to begin with")
    parser.add_argument("--other-bucket", action="append", default=[], help="a further one; may be repeated")
    parser.add_argument("--objects", type=Path, help="the folder in which the bucket's objects are kept")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--role", default="", help="name of an execution role to begin with")
    parser.add_argument("--epoch", type=float, default=0.0, help="scheduled second at the instant --origin")
    parser.add_argument("--origin", type=float, default=0.0, help="real second at which --epoch was shown")
    parser.add_argument("--scale", type=float, default=1.0, help="scheduled seconds in a real one")
    parser.add_argument("--instances", type=int, default=1, help="instances that the account may use at a time")
    parser.add_argument("--idle-seconds", type=float, default=0.0, help="end when idle for so long")
    options = parser.parse_args()
    if options.objects and not options.bucket:
        parser.error("--objects needs --bucket")
    clock = Clock(options.epoch, options.origin, options.scale)
    over = ending()
    place = SageMakerAccount(
        options.folder.absolute(), clock, SageMakerRules(instances_max=options.instances), options.region
    )
    clear(place.disks)
    with SageMakerServer(place, options.port) as server:
        if options.bucket:
            server.make_bucket(options.bucket, options.objects and options.objects.absolute())
        for bucket in options.other_bucket:
            server.make_bucket(bucket)
        if options.role:
            server.make_role(options.role)
        serve(server, over, options.idle_seconds, lambda: any(job.live for job in list(place.jobs.values())))


if __name__ == "__main__":
    main()
