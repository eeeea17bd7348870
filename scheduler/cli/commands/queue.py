"""`schedctl queue`: what is to be trained, in which order, and whether it may run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli.commands import job_options as options
from scheduler.cli.commands.complete import job_names, states
from scheduler.cli.commands.queue_list import STATES, list_queue
from scheduler.cli.shell.command import REASON, Listing, Tables, Yes, command, confirm, group
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault

if TYPE_CHECKING:
    from scheduler.store.jobs import JobRecord

app = group("The jobs: add, list, edit, hold, cancel, remove, reorder.", "list")

Jobs = Annotated[
    list[str] | None,
    typer.Argument(metavar="JOB...", help="Names of the jobs.", autocompletion=job_names, show_default=False),
]
All = Annotated[bool, typer.Option("--all", help="Every job that this can be done to, instead of names.")]
Reason = Annotated[str, typer.Option(*REASON, metavar="TEXT", help="It is kept and shown.")]
Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=job_names)]


@command(
    app,
    "schedctl queue list",
    "schedctl queue list --state held --json",
    "schedctl queue list --columns job,done,why",
    name="list",
    kind=Listing,
)
def list_(
    cli: Cli,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in this state: {', '.join(STATES)}; may be repeated.",
            autocompletion=states,
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--all", help="Each job of a sweep on a line of its own.")] = False,
) -> None:
    """List the jobs in queue order, with what each waits for. Those of a sweep stand in one line."""
    list_queue(cli, state or [], each=each)


@command(app, "schedctl queue show ufm", kind=Tables)
def show(cli: Cli, job: Job) -> None:
    """Show all of one job."""
    from scheduler.cli.commands.queue_show import show_job

    show_job(cli, job)


@command(
    app,
    "schedctl queue add job.toml",
    "schedctl queue add job.toml --dry-run",
    "schedctl queue add --models",
    "schedctl queue add --name tiny --command 'python train.py' --target-step 500 --steps-per-hour 1000",
    job_file="job.toml",
)
def add(
    cli: Cli,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A job definition (TOML).", show_default=False)
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="Add every model of the settings that is not in the queue yet.")
    ] = False,
    fields: Annotated[dict[str, Any], options.described("max_time")] = options.NOTHING,
    go_on: Annotated[
        bool,
        typer.Option("--continue", help="Go on from what a removed job of this name saved, instead of from step 0."),
    ] = False,
    dry_run: options.DryRun = False,
    expect: options.Expect = "",
    allow_secrets: options.AllowSecrets = False,
) -> None:
    """Add a job from a file or options, or all models of the settings.

    Options change what a file says. A job that no pool can ever run is added with a warning.
    """
    from scheduler.cli.commands.queue_add import add_jobs

    table = options.table_of(fields)
    if models and (file or table or go_on):
        raise UsageFault("--models stands alone", "it takes its jobs from the settings", "Leave the rest out")
    if not (models or file or table):
        raise UsageFault("nothing to add", "no job was named", "Give a FILE, --models, or --name and its options")
    options.allowing(
        cli,
        lambda: add_jobs(cli, file, table, from_models=models, go_on=go_on, dry_run=dry_run, expect=expect),
        wanted=allow_secrets,
    )


@command(
    app,
    "schedctl queue edit ufm",
    "schedctl queue edit ufm --set target_step=8000 --set needs.vram_gib=15",
    "schedctl queue edit ufm --set deadline=",
)
def edit(
    cli: Cli,
    job: Job,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="The whole new definition (TOML).", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key; empty: its default. May be repeated."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also a command that the recipe of the checkpoint contradicts.")
    ] = False,
) -> None:
    """Change a job's definition by --set, from a file, or in $EDITOR.

    What a running session or the checkpoint contradicts is refused with the reason.
    """
    from scheduler.cli.commands.queue_changes import edit_job

    edit_job(cli, job, file, settings or [], force=force)


@command(
    app,
    "schedctl queue update ufm --code .",
    "schedctl queue update ufm --code ~/trainer --commit v2",
    "schedctl queue update ufm --corpus newest",
    name="update",
)
def update(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    job: Job,
    code: Annotated[
        Path | None, typer.Option("--code", metavar="DIR", help="Default: where it was taken from.", show_default=False)
    ] = None,
    commit: Annotated[str, typer.Option("--commit", help="That commit of it, not the files as they are now.")] = "",
    requirements: Annotated[
        Path | None,
        typer.Option("--requirements", metavar="FILE", help="The packages it needs, locked now.", show_default=False),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NAME[=SOURCE]", help="Take this input again; may be repeated."),
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus", metavar="VERSION", help="Train on this version of the corpus; or newest.", show_default=False
        ),
    ] = None,
    secrets: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="NAME", help="The secrets it is given, all of them; may be repeated."),
    ] = None,
    allow_secrets: options.AllowSecrets = False,
) -> None:
    """Take a job's code and packages again for its next session, or what is named.

    It goes on from the checkpoint. With --input, that input instead, from where it was taken or from another SOURCE;
    with --corpus, that version of the corpus instead; with --secret, these secrets instead of those before ("" for
    none). A job whose mixture says renew = "update" takes up the newest corpus.
    """
    from jobs.spec import Code, Requirements
    from scheduler.cli.commands.queue_changes import update_inputs, update_job, update_secrets
    from scheduler.store import jobs

    with cli.app.database.read() as tx:
        spec = jobs.get(tx, job).spec
    named = code is not None or commit or requirements is not None
    if sum(map(bool, (named, inputs, secrets, corpus is not None))) > 1:
        why = "code and packages, inputs, secrets and corpus are changed one after another"
        raise UsageFault("--input, --secret and --corpus stand alone", why, "Give one of them")
    if secrets:
        update_secrets(cli, spec, secrets)
        return
    renews = spec.mixture is not None and spec.mixture.renew == "update" and not named and not inputs
    if corpus is not None or (renews and spec.code is None and spec.requirements is None):
        update_job(cli, job, None, None, corpus=corpus or "newest")
        return
    if inputs:
        options.allowing(cli, lambda: update_inputs(cli, spec, inputs), wanted=allow_secrets)
        return
    packages = Requirements(str(requirements.expanduser().resolve())) if requirements else None
    wanted = Code(str(code.expanduser().resolve()), commit) if code else None
    if spec.code is not None and wanted is None and (commit or not named):
        wanted = Code(spec.code.source, commit)
    if not named:
        packages = spec.requirements
    if wanted is None and (packages is None or commit):
        raise UsageFault(f"{job} has no code", "it was added without any", "Give it with --code DIR")
    newest = "newest" if renews and cli.app.training_data.folder.current().version else ""
    options.allowing(cli, lambda: update_job(cli, job, wanted, packages, corpus=newest), wanted=allow_secrets)


@command(app, "schedctl queue clone ufm", "schedctl queue clone ufm --set name=ufm-hot --set seed=7")
def clone(
    cli: Cli,
    job: Job,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="What differs; empty: its default. May be repeated."),
    ] = None,
) -> None:
    """Add a job with the definition and code of another. It starts from step 0."""
    from scheduler.cli.commands.queue_changes import clone_job

    clone_job(cli, job, settings or [])


@command(app, "schedctl queue remove ufm", "schedctl queue remove ufm --yes")
def remove(cli: Cli, job: Job, yes: Yes = False) -> None:
    """Remove a job, which frees its name, after a confirmation. Its runs, hours and checkpoints stay."""
    from scheduler.service.requests import queue
    from scheduler.store import jobs
    from scheduler.views.documents import job_json

    with cli.app.database.read() as tx:
        jobs.get(tx, job)
    confirm(cli, f"Remove {job} from the queue? Its runs, hours and checkpoints stay.", yes=yes)
    record = queue.remove(cli.app.database, job, cli.now, cli.who)
    cli.out.data({"job": job_json(record)})
    kept = f" Its checkpoint at step {record.done_step} stays: schedctl queue add --continue goes on from it."
    cli.out.line(f"{job} is out of the queue.{kept if record.checkpoint else ''}")
    cli.wake_daemon()


@command(app, "schedctl queue retry ufm", "schedctl queue retry --all")
def retry(cli: Cli, names: Jobs = None, everything: All = False) -> None:
    """Let failed jobs try again at once, with a fresh count of failures. With --all, every failed one."""
    from scheduler.cli.commands.queue_each import change_each
    from scheduler.service.requests import queue

    every = "tried again" if everything else None
    change_each(cli, names, every, lambda name: queue.retry(cli.app.database, name, cli.now, cli.who), "is tried again")


@command(app, "schedctl queue restart ufm", "schedctl queue restart ufm --from 4000 --yes")
def restart(
    cli: Cli,
    job: Job,
    start: Annotated[
        str, typer.Option("--from", metavar="STEP", help="Which checkpoint of the job it starts from; or newest.")
    ] = "newest",
    yes: Yes = False,
) -> None:
    """Begin a job again from step 0, as its next generation, after a confirmation. What it saved before stays."""
    from scheduler.cli.commands.queue_changes import restart_job

    restart_job(cli, job, start, yes=yes)


@command(app, "schedctl queue cancel ufm", "schedctl queue cancel ufm ucm", "schedctl queue cancel --all --yes")
def cancel(cli: Cli, names: Jobs = None, why: Reason = "", everything: All = False, yes: Yes = False) -> None:
    """Cancel jobs; a running session saves first. Their checkpoints stay: queue release undoes it.

    With --all, every job that is not over, after a confirmation.
    """
    from scheduler.cli.commands.queue_each import change_each
    from scheduler.service.requests import queue

    every = "cancelled" if everything else None
    change_each(
        cli,
        names,
        every,
        lambda name: queue.cancel(cli.app.database, name, cli.now, cli.who, why),
        "is cancelled",
        asks=None if yes else "Cancel",
    )


@command(app, "schedctl queue hold ufm --reason 'data are being cleaned'", "schedctl queue hold --all")
def hold(cli: Cli, names: Jobs = None, why: Reason = "", everything: All = False) -> None:
    """Keep jobs from starting; a running session saves and ends."""
    from scheduler.cli.commands.queue_each import change_each
    from scheduler.service.requests import queue

    every = "held" if everything else None
    change_each(cli, names, every, lambda name: queue.hold(cli.app.database, name, why, cli.now, cli.who), "is held")


@command(app, "schedctl queue release ufm", "schedctl queue release --all")
def release(cli: Cli, names: Jobs = None, everything: All = False) -> None:
    """Let held, failed or cancelled jobs run again; with --all, the held ones. Cancelled ones are named."""
    from scheduler.cli.commands.queue_each import change_each
    from scheduler.service.requests import queue

    every = "released" if everything else None
    change_each(
        cli, names, every, lambda name: queue.release(cli.app.database, name, cli.now, cli.who), "may run again"
    )


@command(app, "schedctl queue priority ufm 4")
def priority(
    cli: Cli,
    job: Job,
    value: Annotated[
        float,
        typer.Argument(metavar="PRIORITY", help="Value of one training hour relative to other jobs; new jobs have 1."),
    ],
) -> None:
    """Change the priority of a job: the planner multiplies each of its hours by it."""
    from jobs.definition import RANGES
    from scheduler.service.requests import queue

    if not RANGES["priority"].holds(value):
        remedy = "Hold the job to keep it from running" if value <= 0 else "Write one in the range"
        raise UsageFault("no such priority", f"{value:g} is not in the range {RANGES['priority']}", remedy)
    record = queue.change(cli.app.database, job, cli.now, cli.who, weight=value)
    _changed(cli, record, f"has priority {value:g}")


@command(app, "schedctl queue move ufm 1")
def move(
    cli: Cli, job: Job, place: Annotated[int, typer.Argument(metavar="POSITION", min=1, help="1 is the front.")]
) -> None:
    """Move a job in the queue. The position decides between jobs of equal value."""
    from scheduler.service.requests import queue

    record = queue.move(cli.app.database, job, place, cli.now, cli.who)
    _changed(cli, record, f"is at position {record.position}")


def _changed(cli: Cli, record: JobRecord, done: str) -> None:
    from scheduler.cli.commands.queue_each import tell
    from scheduler.views.documents import job_json

    cli.out.data({"job": job_json(record)})
    tell(cli, record, done)
    cli.wake_daemon()
