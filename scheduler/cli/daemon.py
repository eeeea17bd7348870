"""`schedctl daemon`."""

from __future__ import annotations

import typer

from scheduler.cli.command import command
from scheduler.cli.context import Cli

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl daemon", "schedctl --config /etc/uff-scheduler/config.toml daemon")
def daemon(ctx: typer.Context) -> None:
    """Plan, launch and settle in the foreground until SIGTERM or Ctrl-C. Running sessions go on without it.

    Logs go to standard error or the file of the settings. Exits with 8 when another daemon runs or takes over.
    """
    import structlog

    from config.describe import secrets
    from config.logging import configure
    from scheduler.daemon import Daemon

    cli: Cli = ctx.obj
    settings = cli.app.settings
    configure(settings.logging, secrets(settings))
    Daemon(cli.app, structlog.get_logger("scheduler")).run()
