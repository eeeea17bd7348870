"""`schedctl checkpoints`: list, verify, copy and pin checkpoints; show retention."""

from pathlib import Path
from typing import Annotated, Any

from jobs.problem import NotFound
from jobs.size import counted, size
from scheduler.cli.commands.complete import Job, OnlyJob, checkpoint_keys
from scheduler.cli.shell.command import Listing, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Violations
from scheduler.cli.shell.names import suggest
from scheduler.cli.shell.output import figure
from scheduler.service.facts.verification import verify as verify_all
from scheduler.service.requests import checkpoint_files
from scheduler.service.requests.stored import pull_code
from scheduler.service.upkeep.housekeeping import judge
from scheduler.store import checkpoints, jobs
from scheduler.views.documents import checkpoint_json, picked

Key = Annotated[
    str, argument("KEY", "Key of the checkpoint, as checkpoints list shows it.", autocompletion=checkpoint_keys)
]


@command("schedctl checkpoints list ufm", "schedctl checkpoints list ufm --columns step,key", kind=Listing)
def list_(cli: Cli, job: OnlyJob = None) -> None:
    """List checkpoints by job, highest step first."""
    with cli.app.database.read() as tx:
        if job is not None:
            jobs.get(tx, job, removed=True)
        records = checkpoints.everything(tx, job)
    cli.out.data({"checkpoints": [checkpoint_json(record) for record in records]})
    cli.out.listing(
        records,
        {
            "job": lambda one: one.manifest.job,
            ">step": lambda one: str(one.manifest.step),
            "state": lambda one: one.state,
            "-->size": lambda one: size(one.manifest.size),
            "->loss": lambda one: figure(
                one.manifest.metrics.get("held_out_loss", one.manifest.metrics.get("loss")), ".4f"
            ),
            "-made": lambda one: cli.out.moment(one.manifest.created_at),
            "---pinned": lambda one: "yes" if one.pinned else "",
            "--key": lambda one: one.manifest.key,
            "~why": lambda one: one.why,
        },
        none="No checkpoints yet. Sessions make them: schedctl runs list",
    )


@command("schedctl checkpoints retention", "schedctl checkpoints retention ufm", kind=Listing)
def retention(cli: Cli, job: OnlyJob = None) -> None:
    """Show which checkpoints stay or go, when, and why. Nothing is changed: the daemon deletes, after a grace.

    The rules are the settings of [retention]. What should stay for good: schedctl checkpoints pin KEY
    """
    with cli.app.database.read() as tx:
        if job is not None:
            jobs.get(tx, job, removed=True)
        judged = judge(tx, cli.app.policy.retention, cli.now, job)
    documents = [
        {
            "key": one.record.manifest.key,
            "bytes": one.record.manifest.size,
            **picked(one.verdict, "stays", "why"),
            "delete_at": one.delete_at,
        }
        for one in judged
    ]
    cli.out.data({"checkpoints": documents})
    cli.out.listing(
        judged,
        {
            "job": lambda one: one.record.manifest.job,
            ">step": lambda one: str(one.record.manifest.step),
            "verdict": lambda one: "stays" if one.verdict.stays else "goes",
            "goes": lambda one: "" if one.verdict.stays else cli.out.moment(one.delete_at) or "to be marked",
            "->size": lambda one: size(one.record.manifest.size),
            "~why": lambda one: one.verdict.why,
        },
    )
    freed = sum(one.record.manifest.size for one in judged if not one.verdict.stays)
    cli.out.say(f"Up to {size(freed)} will be freed; components that other checkpoints share stay.")


@command("schedctl checkpoints verify", "schedctl checkpoints verify ufm")
def verify(cli: Cli, subject: Annotated[str | None, argument("JOB|KEY", "Default: all.")] = None) -> None:
    """Check every byte of checkpoints. Exits with 9 when one is damaged.

    Nothing is changed: a session that would restore a damaged checkpoint finds that out and takes the one before.
    """
    with cli.app.database.read() as tx:
        try:
            records = checkpoint_files.select(tx, subject)
        except NotFound:
            if subject is None or "/" not in subject:
                raise
            raise _no_such(tx, subject) from None
    checked, bad = [], []
    for verdict in verify_all(cli.app.artifacts, records):
        manifest, words = verdict.record.manifest, "; ".join(verdict.findings)
        checked.append({"key": manifest.key, "good": not words, "findings": list(verdict.findings)})
        bad += [manifest.job] if words else []
        cli.out.line(f"{manifest.key}  {'bad: ' + words if words else 'good'}")
    cli.out.data({"checkpoints": checked})
    if bad:
        raise Violations(
            f"{len(bad)} of {len(checked)} checkpoints are damaged",
            "the next session uses the newest one that is whole",
            f"See: schedctl checkpoints list {bad[0]}",
        )
    cli.out.say(f"{counted(len(checked), 'checkpoint')} found whole.")


@command("schedctl checkpoints pull ufm ./ufm-newest", "schedctl checkpoints pull ufm ./ufm-400 --step 400 --with-code")
def pull(
    cli: Cli,
    job: Job,
    folder: Annotated[Path, argument("DIR", "A new or empty folder.")],
    step: Annotated[int | None, option("--step", "Default: the newest good one.", min=0)] = None,
    with_code: Annotated[bool, option("--with-code", "Also the code that made it, into DIR-code beside it.")] = False,
) -> None:
    """Copy a checkpoint out of the store, checked."""
    with cli.app.database.read() as tx:
        manifest = checkpoint_files.choose(tx, job, step)
    checkpoint_files.pull(cli.app.artifacts, manifest, folder)
    beside = folder.absolute().with_name(f"{folder.absolute().name}-code")
    digest = pull_code(cli.app.database, cli.app.artifacts, manifest, beside) if with_code else None
    names = [component.name for component in manifest.components]
    document = {"key": manifest.key, "step": manifest.step, "folder": str(folder.absolute()), "files": names}
    cli.out.data({**document, "code": digest})
    cli.out.line(f"Step {manifest.step} of {job} is in {folder} ({size(manifest.size)}).")
    if digest is not None:
        cli.out.line(f"The code that made it ({digest[:12]}) is in {beside}.")
    elif with_code:
        cli.out.say("The session that made it ran no code of the job's own.")


@command("schedctl checkpoints pin jobs/ufm/manifests/000000000400-000006.json")
def pin(cli: Cli, key: Key) -> None:
    """Keep a checkpoint until it is unpinned."""
    _pin(cli, key, pinned=True)


@command("schedctl checkpoints unpin jobs/ufm/manifests/000000000400-000006.json")
def unpin(cli: Cli, key: Key) -> None:
    """Let a checkpoint expire like any other."""
    _pin(cli, key, pinned=False)


def _pin(cli: Cli, key: str, *, pinned: bool) -> None:
    try:
        with cli.app.database.write() as tx:
            checkpoints.pin(tx, key, pinned, cli.now, cli.who)
    except NotFound:
        with cli.app.database.read() as tx:
            raise _no_such(tx, key) from None
    with cli.app.database.read() as tx:
        cli.out.data({"checkpoint": checkpoint_json(checkpoints.get(tx, key))})
    cli.out.line(f"{key} is {'kept for good' if pinned else 'no longer kept for good'}.")
    cli.wake_daemon()


def _no_such(tx: Any, key: str) -> NotFound:
    keys = [record.manifest.key for record in checkpoints.everything(tx)]
    return NotFound("unknown checkpoint", f"{key} is no key", suggest(key, keys, "schedctl checkpoints list"))
