"""`schedctl submit`: one line to train, from any folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from scheduler.cli.commands import job_options as options
from scheduler.cli.shell.command import command, group
from scheduler.cli.shell.context import Cli

app = group("One line to train: a script and its folder become a job.")

_PROBE_SECONDS = 30


@command(
    app,
    "schedctl submit train.py --target-step 2000 -- --lr 3e-6",
    "schedctl submit train.py --max-time 3h --gpus 1 --env WANDB_MODE=offline --dry-run",
    "schedctl submit train.py --target-step 2000 --sweep lr=1e-5,3e-5 --sweep seed=0..2",
    script="train.py",
)
def submit(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python or shell script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="What the script is given.", show_default=False)
    ] = None,
    fields: Annotated[dict[str, Any], options.described("code", "command", "not_before")] = options.NOTHING,
    probe: Annotated[
        int, typer.Option("--probe", min=0, max=3_600, help="Try it here for at most so many seconds; 0: do not.")
    ] = _PROBE_SECONDS,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=VALUES", help="A job for each of lr=1e-5,3e-5 or seed=0..2; may be repeated."
        ),
    ] = None,
    dry_run: options.DryRun = False,
    expect: options.Expect = "",
    allow_secrets: options.AllowSecrets = False,
    and_wait: Annotated[bool, typer.Option("--and-wait", help="Wait until it is done; 9 if it is not.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="As --and-wait, and write what its sessions print.")
    ] = False,
) -> None:
    """Queue a script with its folder, and estimate what is not given.

    Its speed is measured by a short trial here, as a session would run it. A script that saves no checkpoints takes
    --max-time instead of --target-step: what it leaves in ./output is collected. Options of the script go after --.
    """
    from scheduler.cli.commands.submit_jobs import Submission, submit_jobs

    submission = Submission(script, arguments or [], options.table_of(fields), sweep or [], probe)
    options.allowing(
        cli,
        lambda: submit_jobs(cli, submission, dry_run=dry_run, expect=expect, wait=and_wait, logs=follow),
        wanted=allow_secrets,
    )
