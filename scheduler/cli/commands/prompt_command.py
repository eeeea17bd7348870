"""`schedctl prompt` as the command tree knows it; the plain form never comes here (see scheduler.cli.main)."""

from __future__ import annotations

import typer

from scheduler.cli.prompt import show_line
from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl prompt")
def prompt(cli: Cli) -> None:
    """Print the daemon's cached line for shell prompts. No daemon yet: nothing.

    The line lies in the file status.line of the state folder, and in /run/uff-scheduler for the service.
    """
    config = cli.options.config
    show_line(None if config is None else str(config))
