"""`schedctl queue`: what is to be trained, in which order, and whether it may run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli.command import command, group
from scheduler.cli.complete import job_names, states
from scheduler.cli.context import Cli
from scheduler.cli.exits import UsageFault
from scheduler.cli.loss import warn_of_loss
from scheduler.cli.queue_list import STATES, list_queue

if TYPE_CHECKING:
    from scheduler.store.jobs import JobRecord

app = group("The jobs: add, list, hold, cancel, reorder.")

Job = Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.", autocompletion=job_names)]


@command(app, "schedctl queue list", "schedctl queue list --state held --json", name="list")
def list_(
    ctx: typer.Context,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in this state: {', '.join(STATES)}; may be repeated.",
            autocompletion=states,
        ),
    ] = None,
) -> None:
    """List the jobs in queue order, with what each waits for."""
    list_queue(ctx.obj, state or [])


@command(app, "schedctl queue show ufm")
def show(ctx: typer.Context, job: Job) -> None:
    """Show all there is to know about one job."""
    from scheduler.cli.queue_show import show_job

    show_job(ctx.obj, job)


@command(
    app,
    "schedctl queue add job.toml",
    "schedctl queue add --models",
    "schedctl queue add --name tiny --command 'python train.py' --target-step 500 --steps-per-hour 1000",
)
def add(  # noqa: PLR0913, PLR0917 - one parameter for each option
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A job definition (TOML).", show_default=False)
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="Add every model of the settings that is not in the queue yet.")
    ] = False,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job.")] = None,
    run: Annotated[
        str | None, typer.Option("--command", help="Training command, as one would type it in a shell.")
    ] = None,
    target_step: Annotated[int | None, typer.Option("--target-step", help="Train up to this step.")] = None,
    steps_per_hour: Annotated[
        float | None, typer.Option("--steps-per-hour", help="A guess of its speed; measured soon.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="main or manager.")] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Worth of one hour, others have 1.")] = None,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", help="A pool it may use; may be repeated. Default: any.")
    ] = None,
    vram_gib: Annotated[float | None, typer.Option("--vram-gib", help="Memory it needs on a device.")] = None,
    deadline: Annotated[str | None, typer.Option("--deadline", help="Finish before, 2026-12-01T09:00:00Z.")] = None,
    not_before: Annotated[str | None, typer.Option("--not-before", help="Start no earlier than this.")] = None,
) -> None:
    """Add a job from a file or from options, or all models of the settings.

    Options change what a file says. A job that no pool can ever run is added with a warning.
    """
    from scheduler.cli.queue_add import add_jobs, table_of

    table = table_of(
        name=name,
        command=run,
        target_step=target_step,
        steps_per_hour=steps_per_hour,
        role=role,
        weight=weight,
        pools=pool,
        vram_gib=vram_gib,
        deadline=deadline,
        not_before=not_before,
    )
    if models and (file or table):
        raise UsageFault("--models stands alone", "it takes its jobs from the settings", "Leave the rest out")
    if not (models or file or table):
        raise UsageFault("nothing to add", "no job was named", "Give a FILE, --models, or --name and its options")
    add_jobs(ctx.obj, file, table, from_models=models)


@command(app, "schedctl queue cancel ufm")
def cancel(ctx: typer.Context, job: Job) -> None:
    """Cancel a job; a running session saves and ends first. Its checkpoints stay."""
    from scheduler.service import queue

    cli: Cli = ctx.obj
    _changed(cli, queue.cancel(cli.app.database, job, cli.now, cli.who), "is cancelled")


@command(app, "schedctl queue hold ufm --why 'data are being cleaned'")
def hold(
    ctx: typer.Context, job: Job, why: Annotated[str, typer.Option("--why", help="For whoever asks.")] = ""
) -> None:
    """Keep a job from starting until it is released; a running session saves and ends first."""
    from scheduler.service import queue

    cli: Cli = ctx.obj
    _changed(cli, queue.hold(cli.app.database, job, why, cli.now, cli.who), "is held")


@command(app, "schedctl queue release ufm")
def release(ctx: typer.Context, job: Job) -> None:
    """Let a held or failed job run again."""
    from scheduler.service import queue

    cli: Cli = ctx.obj
    _changed(cli, queue.release(cli.app.database, job, cli.now, cli.who), "may run again")


@command(app, "schedctl queue priority ufm 4")
def priority(
    ctx: typer.Context,
    job: Job,
    weight: Annotated[float, typer.Argument(metavar="WEIGHT", help="Worth of one hour; new jobs have 1.")],
) -> None:
    """Change what an hour of a job is worth; the planner gives hours to where they are worth most."""
    from math import isfinite

    from scheduler.service import queue

    if not isfinite(weight) or weight <= 0:
        raise UsageFault("no such weight", f"{weight:g} is not above zero", "Hold the job to keep it from running")
    cli: Cli = ctx.obj
    record = queue.change(cli.app.database, job, cli.now, cli.who, weight=weight)
    _changed(cli, record, f"has weight {weight:g}")


@command(app, "schedctl queue move ufm 1")
def move(
    ctx: typer.Context,
    job: Job,
    place: Annotated[int, typer.Argument(metavar="PLACE", min=1, help="1 is the front.")],
) -> None:
    """Move a job to another place; jobs of equal worth are served in this order."""
    from scheduler.service import queue

    cli: Cli = ctx.obj
    record = queue.move(cli.app.database, job, place, cli.now, cli.who)
    _changed(cli, record, f"is at place {record.position}")


def _changed(cli: Cli, record: JobRecord, done: str) -> None:
    from scheduler.cli.queue_show import job_json
    from scheduler.core.job import Active

    if cli.options.json:
        document: dict[str, Any] = {"job": job_json(record)}
        cli.out.data(document)
    elif isinstance(record.state, Active) and record.state.wish is not None:
        cli.out.line(f"{record.spec.name} {done} as soon as {record.state.run} has saved and ended.")
        warn_of_loss(cli, record.state.run, record.spec.name)
    else:
        cli.out.line(f"{record.spec.name} {done}.")
    cli.wake_daemon()
