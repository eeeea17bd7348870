"""`schedctl pause`: nothing new starts anywhere."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.confirm import REASON
from scheduler.cli.shell.context import Cli

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl pause", "schedctl pause --reason 'the building has no power on Sunday'")
def pause(
    cli: Cli, why: Annotated[str, typer.Option(*REASON, metavar="TEXT", help="It is kept and shown.")] = ""
) -> None:
    """Start nothing new until schedctl resume; running sessions go on."""
    from scheduler.store import limits, runs

    told = f"everything is paused by {cli.who}{': ' * bool(why)}{why}"
    with cli.app.database.write() as tx:
        limits.close_pool(tx, limits.EVERY, None, told, cli.now, cli.who)
        live = len(runs.live(tx))
    cli.out.data({"paused": True, "why": told, "sessions_live": live})
    going = f" {live} {'session goes' if live == 1 else 'sessions go'} on to the end." if live else ""
    cli.out.line(f"Nothing new starts.{going} To go on: schedctl resume")
    cli.wake_daemon()
