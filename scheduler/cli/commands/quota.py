"""`schedctl quota`: each pool's metered hours and money."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scheduler.cli.commands.complete import pool_names
from scheduler.cli.shell.command import Listing, command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import find_pool
from scheduler.cli.shell.output import amount

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl quota", "schedctl quota kaggle --json", kind=Listing)
def quota(
    cli: Cli,
    pool: Annotated[
        str | None, typer.Argument(metavar="POOL", help="Only of this pool.", autocompletion=pool_names)
    ] = None,
) -> None:
    """Show of each quota the limit, what is used, reserved and free, and its reset."""
    from scheduler.service.quota.usage import meters

    if pool is not None:
        find_pool(cli.app.pools, pool)

    with cli.app.database.read() as tx:
        found = [one for one in meters(tx, cli.app.pools, cli.now) if pool in {None, one.pool}]
    cli.out.data({"quotas": [asdict(meter) for meter in found]})
    cli.out.table(
        ("pool", "~quota", "-->limit", "-->used", "--->reserved", ">free", "-resets", "----~source"),
        [
            (
                meter.pool,
                meter.quota,
                amount(meter.limit, meter.unit),
                amount(meter.used, meter.unit),
                amount(meter.held, meter.unit),
                amount(meter.free, meter.unit),
                cli.out.moment(meter.resets_at),
                f"{meter.source} {meter.as_of}".strip(),
            )
            for meter in found
        ],
    )
    for meter in found:
        if meter.waited:
            cli.out.line(
                f"{meter.pool}, {meter.quota}: of {amount(meter.used, meter.unit)} used, "
                f"{amount(meter.waited, meter.unit)} were billed while sessions waited in the platform's queue."
            )
    if not found:
        cli.out.say("No pool has a quota. See: schedctl pools")
