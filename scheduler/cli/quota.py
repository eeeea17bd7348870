"""`schedctl quota`: each pool's metered hours and money."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from scheduler.cli.command import command
from scheduler.cli.context import Cli
from scheduler.cli.output import hours

if TYPE_CHECKING:
    from scheduler.service.meters import Meter

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl quota", "schedctl quota --json")
def quota(ctx: typer.Context) -> None:
    """Show for each pool and quota the limit, what is used, held and free, and when it resets."""
    from scheduler.service.meters import meters

    cli: Cli = ctx.obj
    with cli.app.database.read() as tx:
        found = meters(tx, cli.app.pools, cli.now)
    if cli.options.json:
        cli.out.data({"quotas": [asdict(meter) for meter in found]})
        return
    cli.out.table(
        ("pool", "~quota", ">limit", ">used", ">held", ">free", "resets", "~source"),
        [
            (
                meter.pool,
                meter.quota,
                _amount(meter, meter.limit),
                _amount(meter, meter.used),
                _amount(meter, meter.held),
                _amount(meter, meter.free),
                cli.out.instant(meter.resets_at),
                f"{meter.source} {meter.as_of}".strip(),
            )
            for meter in found
        ],
    )
    if not found:
        cli.out.say("No pool has a quota. See: schedctl pools")


def _amount(meter: Meter, amount: int) -> str:
    return f"${amount / 1_000_000:.2f}" if meter.unit == "microdollars" else hours(amount)
