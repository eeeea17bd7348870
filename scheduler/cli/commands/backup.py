"""`schedctl backup`: everything that a new machine needs, but credentials, in one folder."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from jobs.plural import counted
from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Refusal

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl backup /backups/$(date +%F)", "schedctl backup /backups/whole-$(date +%F) --artifacts")
def backup(
    cli: Cli,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")],
    artifacts: Annotated[
        bool, typer.Option("--artifacts", help="Also the artifact store: checkpoints, code, inputs, corpora.")
    ] = False,
) -> None:
    """Write database and settings into a folder while the daemon goes on, and prove that they can be restored.

    The copy is restored into a temporary folder and checked there, with --artifacts every byte of each checkpoint too.
    Credentials are not inside: secret values of settings read [secret].
    """
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise Refusal("no backup made", f"{folder} is there already and not an empty folder", "Name another folder")
    from config.layers import SYSTEM_FILE, own_file
    from scheduler.service.requests.backup import back_up

    app = cli.app
    own = own_file(cli.options.config, os.environ)
    files = [file for file in (own if own.exists() else SYSTEM_FILE, *app.settings.models) if file.exists()]
    store = app.artifacts if artifacts else None
    made = back_up(app.database, dict.fromkeys(files), store, folder, app.redact, cli.now)
    cli.out.data({"folder": str(folder.absolute()), **asdict(made)})
    cli.out.line(f"Wrote {folder}: {made.database}, {counted(len(made.settings), 'file')} of settings.")
    if made.artifacts is not None:
        checked = counted(made.checkpoints_verified, "checkpoint")
        cli.out.line(f"Copied {counted(made.artifacts, 'object')} of the artifact store; {checked} read whole.")
    cli.out.line("A restore into a temporary folder was in order.")
    left_out = list(made.not_inside) + ([] if made.artifacts is not None else ["artifacts (--artifacts)"])
    cli.out.say(f"Not inside: {', '.join(left_out)}. To restore: docs/service.md, Back up and restore.")
