"""`schedctl config`: what is set, where it was set, and whether it can be used."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.command import command, group
from scheduler.cli.context import Cli

app = group("The settings and where they come from.")


@command(app, "schedctl config show", "schedctl config show daemon --json")
def show(
    ctx: typer.Context,
    prefix: Annotated[str, typer.Argument(metavar="KEY", help="Only keys that begin so.", show_default=False)] = "",
) -> None:
    """Show every setting with its value and the file or variable that set it. Secrets are hidden."""
    from config.describe import describe

    cli: Cli = ctx.obj
    found = [entry for entry in describe(cli.app.settings) if entry[0].startswith(prefix)]
    if cli.options.json:
        cli.out.data({"settings": [{"key": key, "value": value, "source": source} for key, value, source in found]})
    else:
        cli.out.table(("key", "~value", "~set by"), found)


@command(app, "schedctl config check", "schedctl --config new.toml config check")
def check(ctx: typer.Context) -> None:
    """Check settings and model definitions without touching anything. Exits with 3 when they cannot be used."""
    cli: Cli = ctx.obj
    pools, models = sorted(cli.app.pools), [spec.name for spec in cli.app.catalogue.jobs]
    if cli.options.json:
        cli.out.data({"pools": pools, "models": models})
    else:
        cli.out.line(f"The settings can be used. Pools: {', '.join(pools)}. Models: {', '.join(models)}.")
