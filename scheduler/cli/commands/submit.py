"""`schedctl submit`: one line to train, from any folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.shell.command import command, group
from scheduler.cli.shell.context import Cli

app = group("One line to train: a script and its folder become a job.")

_PROBE_SECONDS = 30


@command(
    app,
    "schedctl submit train.py --target-step 2000 -- --lr 3e-6",
    "schedctl submit train.py --whole 3h --dry-run",
    "schedctl submit train.py --target-step 2000 --sweep lr=1e-5,3e-5 --sweep seed=0..2",
    script="train.py",
)
def submit(  # noqa: PLR0913, PLR0917 - one parameter for each option
    cli: Cli,
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="A Python or shell script.", show_default=False)],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]...", help="What the script is given.", show_default=False)
    ] = None,
    target_step: Annotated[int | None, typer.Option("--target-step", help="Train up to this step.")] = None,
    whole: Annotated[
        str | None,
        typer.Option(
            "--whole", metavar="TIME", help="Run it to its end in one session, for at most 3h, say; it cannot resume."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the job. Default: that of the folder.")] = None,
    role: Annotated[str | None, typer.Option("--role", help="main or manager.")] = None,
    pool: Annotated[
        list[str] | None, typer.Option("--pool", help="A pool it may use; may be repeated. Default: any.")
    ] = None,
    weight: Annotated[float | None, typer.Option("--weight", help="Worth of one hour, others have 1.")] = None,
    vram_gib: Annotated[float | None, typer.Option("--vram-gib", help="Memory it needs on a device.")] = None,
    steps_per_hour: Annotated[
        float | None, typer.Option("--steps-per-hour", help="A guess of its speed, instead of trying it here.")
    ] = None,
    probe: Annotated[
        int, typer.Option("--probe", min=0, max=3_600, help="Try it here for at most so many seconds; 0: do not.")
    ] = _PROBE_SECONDS,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="KEY=VALUES", help="A job for each of lr=1e-5,3e-5 or seed=0..2; may be repeated."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="NAME=SOURCE", help="A folder or hf:ORG/NAME@REVISION that it reads; may be repeated."
        ),
    ] = None,
    requirements: Annotated[
        str | None,
        typer.Option(
            "--requirements", metavar="FILE", help="The packages it needs. Default: the folder's requirements.txt."
        ),
    ] = None,
    secret: Annotated[
        list[str] | None, typer.Option("--secret", metavar="NAME", help="A secret it is given; may be repeated.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the job, its plan and what would be uploaded; change nothing.")
    ] = False,
    expect: Annotated[
        str, typer.Option("--expect", metavar="DIGEST", help="Add only what a dry run showed: its fingerprint.")
    ] = "",
    and_wait: Annotated[bool, typer.Option("--and-wait", help="Wait until it is done; 9 if it is not.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="As --and-wait, and write what its sessions print.")
    ] = False,
) -> None:
    """Queue a script with its folder, guessing what is not said.

    Its speed is measured by trying it here for a moment, as a session would run it. A script that knows nothing of
    checkpoints is given --whole instead of --target-step: what it leaves in ./output comes home.
    """
    from scheduler.cli.commands.queue_add import inputs_of
    from scheduler.cli.commands.submit_jobs import Submission, submit_jobs

    table = {  # as in a job file
        "name": name,
        "role": role,
        "target_step": target_step,
        "whole": whole,
        "steps_per_hour": steps_per_hour,
        "pools": pool,
        "weight": weight,
        "inputs": inputs_of(inputs),
        "secrets": secret,
        "requirements": requirements and str(Path(requirements).expanduser().resolve()),
        "needs": None if vram_gib is None else {"vram_gib": vram_gib},
    }
    given = {key: value for key, value in table.items() if value is not None}
    asked = Submission(script, arguments or [], given, sweep or [], probe)
    submit_jobs(cli, asked, dry_run=dry_run, expect=expect, wait=and_wait, logs=follow)
