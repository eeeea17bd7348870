"""Completion of names. The shell asks on every press of Tab, so only the database's cheapest reader is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from scheduler.cli.commands.queue_list import STATES
from scheduler.cli.shell.exits import Exit, code_of

if TYPE_CHECKING:
    from scheduler.cli.shell.context import Cli


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs whose name begins so; none when the database cannot be read."""
    from scheduler.store.listing import list_jobs

    cli: Cli = ctx.find_root().obj
    try:
        return [job.name for job in list_jobs(cli.paths.database_url) if job.name.startswith(incomplete)]
    except Exception as error:
        # A mistake of ours must show; that there is no database yet is no news while typing.
        if code_of(error) is Exit.BUG:
            raise
        return []


def states(incomplete: str) -> list[str]:
    """Return the job states that begin so."""
    return [state for state in STATES if state.startswith(incomplete)]
