"""Completion of names in the shell, and the command-line arguments whose values can be completed.

The shell starts a completion at every press of Tab, so job names come from the listing, which starts fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli.commands.queue_list import STATES
from scheduler.cli.shell.command import argument
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, code_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_RUNS = 200  # only the newest are offered


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs whose name starts with ``incomplete``; none if the database cannot be read."""
    from scheduler.store.listing import list_jobs

    return _matching(ctx, incomplete, lambda cli: (job.name for job in list_jobs(cli.paths.database_url)))


def _stored(table: str, read: Callable[[Any, Connection], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion of names; ``read`` gets them from the module ``table`` of ``scheduler.store``."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        def names(cli: Cli) -> list[str]:
            with cli.app.database.read() as tx:
                return list(read(import_module(f"scheduler.store.{table}"), tx))

        return _matching(ctx, incomplete, names)

    return complete


run_keys = _stored("runs", lambda runs, tx: (run.key for run in runs.recent(tx, _RUNS)))
checkpoint_keys = _stored("checkpoints", lambda saved, tx: (one.manifest.key for one in saved.everything(tx)))
version_names = _stored("versions", lambda versions, tx: (one.name for one in versions.everything(tx)))


def pool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configured pools whose name starts with ``incomplete``."""
    return _matching(ctx, incomplete, lambda cli: sorted(cli.app.pools))


def _matching(ctx: typer.Context, incomplete: str, names: Callable[[Cli], Iterable[str]]) -> list[str]:
    """Return the names that start with ``incomplete``; none if settings or database cannot be read."""
    try:
        return [name for name in names(ctx.find_root().obj) if name.startswith(incomplete)]
    except Exception as error:
        # A bug must be visible. A missing database is normal: a user may type before `schedctl init`.
        if code_of(error) is Exit.BUG:
            raise
        return []


def states(incomplete: str) -> list[str]:
    """Return the job states that start with ``incomplete``."""
    return [state for state in STATES if state.startswith(incomplete)]


Job = Annotated[str, argument("JOB", "Name of the job.", autocompletion=job_names)]
OnlyJob = Annotated[str | None, argument("JOB", "Only of this job.", autocompletion=job_names)]
PoolName = Annotated[str, argument("POOL", "Name of the pool.", autocompletion=pool_names)]
Model = Annotated[str, argument("MODEL", "Name of the model's job.", autocompletion=job_names)]
VersionName = Annotated[str, argument("MODEL@N", "A version, such as ufm@3.", autocompletion=version_names)]
NamedVersion = Annotated[
    str,
    argument(
        "MODEL[@N]", "A version, or a model: its promoted version, else its newest.", autocompletion=version_names
    ),
]
