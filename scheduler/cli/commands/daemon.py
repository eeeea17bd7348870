"""`schedctl daemon`."""

from __future__ import annotations

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl daemon", "schedctl --config /etc/uff-scheduler/config.toml daemon")
def daemon(cli: Cli) -> None:
    """Plan, launch and reconcile sessions until SIGTERM or Ctrl-C. Running sessions go on without it.

    SIGHUP makes it reload its settings; settings with an error change nothing. Logs go to standard error or
    the file of the settings. Exits with 8 when another daemon of this state folder
    runs, or another one takes over; where that one has another state folder but the same database, it stands by.
    """
    from scheduler.cli.run_daemon import run_daemon

    run_daemon(cli)
