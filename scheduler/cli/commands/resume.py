"""`schedctl resume`: the end of `schedctl pause`."""

from __future__ import annotations

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl resume")
def resume(cli: Cli) -> None:
    """Start new sessions again. Closed pools stay closed, and jobs on hold stay on hold."""
    from scheduler.store import limits

    with cli.app.database.write() as tx:
        before = limits.paused(tx)
        limits.open_pool(tx, limits.EVERY, cli.now, cli.who)
    cli.out.data({"paused": False, "was_paused": before is not None})
    if before is None:
        cli.out.line("Nothing was paused.")
    else:
        cli.out.line(
            f"Resumed: new sessions start again. (Until now, since {cli.out.instant(before.at)}: {before.why}.)"
        )
    cli.wake_daemon()
