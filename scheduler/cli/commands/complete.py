"""Completion of names, and the arguments that have it.

The shell asks on every press of Tab, so only the database's cheapest reader is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.commands.queue_list import STATES
from scheduler.cli.shell.command import argument
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit, code_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

_RUNS = 200  # the newest ones are offered


def job_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the jobs whose name begins so; none when the database cannot be read."""
    from scheduler.store.listing import list_jobs

    return _begin(ctx, incomplete, lambda cli: (job.name for job in list_jobs(cli.paths.database_url)))


def run_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the launch keys that begin so, of the newest runs."""
    from scheduler.store import runs

    return _stored(ctx, incomplete, lambda tx: [run.key for run in runs.recent(tx, _RUNS)])


def checkpoint_keys(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the keys of checkpoints that begin so."""
    from scheduler.store import checkpoints

    return _stored(ctx, incomplete, lambda tx: [one.manifest.key for one in checkpoints.everything(tx)])


def version_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the versions of models whose name, such as ufm@3, begins so."""
    from scheduler.store import versions

    return _stored(ctx, incomplete, lambda tx: [f"{one.model}@{one.number}" for one in versions.everything(tx)])


def pool_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the configured pools whose name begins so."""
    return _begin(ctx, incomplete, lambda cli: sorted(cli.app.pools))


def _stored(ctx: typer.Context, incomplete: str, read: Callable[[Connection], list[str]]) -> list[str]:
    def names(cli: Cli) -> list[str]:
        with cli.app.database.read() as tx:
            return read(tx)

    return _begin(ctx, incomplete, names)


def _begin(ctx: typer.Context, incomplete: str, names: Callable[[Cli], Iterable[str]]) -> list[str]:
    """Return the names that begin so; none when settings or database cannot be read."""
    try:
        return [name for name in names(ctx.find_root().obj) if name.startswith(incomplete)]
    except Exception as error:
        # A mistake of ours must show; that there is no database yet is no news while typing.
        if code_of(error) is Exit.BUG:
            raise
        return []


def states(incomplete: str) -> list[str]:
    """Return the job states that begin so."""
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
