"""`schedctl cost`: what training has cost and will cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scheduler.cli.shell.command import Listing, command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import amount, hours

app = typer.Typer(add_completion=False, rich_markup_mode=None)

_WEEK = 7 * 86_400


@command(app, "schedctl cost", "schedctl cost --weeks 4", "schedctl cost --columns job,spent,planned", kind=Listing)
def cost(
    cli: Cli,
    weeks: Annotated[int, typer.Option("--weeks", min=1, max=100, help="So many weeks, this one included.")] = 1,
) -> None:
    """Show the hours and the money of each job, pool and week: spent, and planned by the newest plan.

    Spent includes what is reserved for sessions that run. Jobs that share a session share its cost by their devices.
    """
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo

    from scheduler.views.costs import costs

    with cli.app.database.read() as tx:
        found = costs(tx, cli.app.pools, cli.now - (weeks - 1) * _WEEK, cli.out.zone, cli.now)
    total = [sum(getattr(one, name) for one in found) for name in ("microdollars", "planned_microdollars")]
    cli.out.data({"costs": [asdict(one) for one in found], "microdollars": total[0], "planned_microdollars": total[1]})
    cli.out.table(
        ("week", "job", "pool", ">hours", ">spent", ">planned hours", ">planned"),
        [
            (
                datetime.fromtimestamp(one.week, UTC).astimezone(ZoneInfo(cli.out.zone)).strftime("%G-W%V"),
                one.job or "(not of a job)",
                one.pool,
                hours(one.seconds),
                amount(one.microdollars, "microdollars"),
                hours(one.planned_seconds),
                amount(one.planned_microdollars, "microdollars"),
            )
            for one in found
        ],
    )
    spent, planned = (amount(value, "microdollars") for value in total)
    cli.out.line(f"Spent {spent}, planned {planned}. What is left: schedctl quota" if found else "Nothing was spent.")
