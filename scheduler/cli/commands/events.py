"""`schedctl events`: what happened, from the event log."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.shell.command import Listing, command
from scheduler.cli.shell.context import Cli

if TYPE_CHECKING:
    from collections.abc import Iterable

    from scheduler.cli.shell.output import Output
    from scheduler.store.events import Event

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl events", "schedctl events ufm --limit 5", kind=Listing)
def events(
    cli: Cli,
    subject: Annotated[
        str | None, typer.Argument(metavar="SUBJECT", help="Only of this job, run, pool or version.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many, the newest.")] = 50,
) -> None:
    """List what happened, the newest last."""
    from scheduler.store.events import tail

    with cli.app.database.read() as tx:
        found = tail(tx, limit=limit, subject=subject)
    cli.out.data({"events": [asdict(event) for event in found]})
    write_events(cli.out, found, with_subject=True)
    if not found:
        cli.out.say(f"No event of {subject} is kept." if subject else "Nothing has happened yet.")


def write_events(out: Output, found: Iterable[Event], *, with_subject: bool = False) -> None:
    """Write events as a table."""
    subject = ("subject",) if with_subject else ()
    out.table(
        ("at", *subject, "event", "-by", "~reason"),
        [
            (
                out.moment(one.at),
                *([one.subject] if with_subject else []),
                one.kind,
                one.by,
                str(one.data.get("why", "")),
            )
            for one in found
        ],
    )
