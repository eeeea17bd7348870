"""`schedctl queue clone`: a new job from the definition of another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.catalogue import job_from_table
from jobs.job_table import table_of
from scheduler.cli.commands.queue_add import add_specs
from scheduler.cli.commands.queue_edit import changed_table
from scheduler.store import jobs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.cli.shell.context import Cli

_NAME_MAX = 40


def clone_job(cli: Cli, name: str, settings: Sequence[str]) -> None:
    """Add a job that differs from ``name`` in what is set, with the very code of it unless that is set too.

    Raises CatalogueError, QueueError, UnknownJob, UsageFault.
    """
    with cli.app.database.read() as tx:
        old = jobs.get(tx, name).spec
        known = {record.spec.name for record in jobs.everything(tx)}
    free = (f"{name[: _NAME_MAX - 4]}-{number}" for number in range(2, len(known) + 3))
    table = {**table_of(old), "name": next(other for other in free if other not in known)}
    spec = job_from_table(changed_table(table, settings), f"queue clone {name}")
    add_specs(cli, [spec], f"queue clone {name}", kept=old)
