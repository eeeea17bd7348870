"""Run the emulator as a program: python -m platforms.emulators.sagemaker FOLDER --port N --bucket NAME.

It ends on SIGTERM or SIGINT. With --idle-seconds it also ends after so many seconds without a job or a request. The
next emulator on the same folders restores the jobs and, with --objects, the bucket.
"""

from pathlib import Path

from platforms.emulators.program import clear, clock_of, ending, options_of, serve
from platforms.emulators.sagemaker.place import SageMakerAccount, SageMakerRules
from platforms.emulators.sagemaker.server import SageMakerServer


def main() -> None:
    """Serve until a signal; print the address when ready."""
    parser = options_of("sagemaker", __doc__, "where jobs and the instances' disks live")
    parser.add_argument("--bucket", default="", help="a bucket to create at the start")
    parser.add_argument("--other-bucket", action="append", default=[], help="a further bucket; may be repeated")
    parser.add_argument("--objects", type=Path, help="the folder in which the bucket's objects are kept")
    parser.add_argument("--region", default="us-east-1")
    parser.add_argument("--role", default="", help="name of an execution role to create at the start")
    parser.add_argument("--instances", type=int, default=1, help="instances that the account may use at the same time")
    parser.set_defaults(epoch=0.0, origin=0.0)  # its clock is the real one times the scale
    options = parser.parse_args()
    if options.objects and not options.bucket:
        parser.error("--objects needs --bucket")
    ended = ending()
    rules = SageMakerRules(instances_max=options.instances)
    account = SageMakerAccount(options.folder.absolute(), clock_of(options), rules, options.region)
    clear(account.disks)
    with SageMakerServer(account, options.port) as server:
        if options.bucket:
            server.make_bucket(options.bucket, options.objects and options.objects.absolute())
        for bucket in options.other_bucket:
            server.make_bucket(bucket)
        if options.role:
            server.make_role(options.role)
        serve(server, ended, options.idle_seconds, lambda: any(job.live for job in list(account.jobs.values())))


if __name__ == "__main__":
    main()
