"""`schedctl queue add`: job definitions from a file, from options or from the settings."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from scheduler.cli.exits import UsageFault
from scheduler.cli.names import listed
from scheduler.cli.queue_show import job_json
from scheduler.service import queue
from scheduler.service.feasibility import obstacles
from scheduler.service.snapshot import load_snapshot
from scheduler.store import jobs

if TYPE_CHECKING:
    from pathlib import Path

    from jobs.spec import JobSpec
    from scheduler.cli.context import Cli
    from scheduler.core.reasons import Reason

_STEPS_PER_HOUR = 1_000  # when the user has no idea; the first session measures it


def table_of(**given: Any) -> dict[str, Any]:
    """Return options as the table of a job file; what was not given is left out. Raises UsageFault."""
    table = {key: value for key, value in given.items() if value is not None}
    if "command" in table:
        try:
            table["command"] = shlex.split(table["command"])
        except ValueError as error:
            words = str(error).lower()
            raise UsageFault("--command cannot be read", words, "Quote it as in a shell") from None
    if "vram_gib" in table:
        table["needs"] = {"vram_gib": table.pop("vram_gib")}
    return table


def add_jobs(cli: Cli, file: Path | None, table: dict[str, Any], *, from_models: bool) -> None:
    """Add jobs, all or none, and warn about those that nothing here can run. Raises CatalogueError, QueueError."""
    if from_models:
        with cli.app.database.read() as tx:
            known = {record.spec.name for record in jobs.everything(tx)}
        specs = [spec for spec in cli.app.catalogue.jobs if spec.name not in known]
    else:
        specs = [read_spec(file, table)]
    added = queue.add(cli.app.database, specs, cli.now, cli.who)
    found = _obstacles(cli, specs)
    if cli.options.json:
        cli.out.data({"jobs": [job_json(record, found.get(record.spec.name)) for record in added]})
    elif added:
        cli.out.line(f"Added {listed([record.spec.name for record in added])}.")
    else:
        cli.out.line("All models are in the queue already.")
    for name, reason in found.items():
        cli.out.warn(
            f"{name} can never start here: {reason.sentence(cli.out.zone)}. See: schedctl pools; "
            f"schedctl queue cancel {name}"
        )
    if added:
        cli.wake_daemon()


def read_spec(file: Path | None, table: dict[str, Any]) -> JobSpec:
    """Return the job that a file and the keys of ``table``, which come first, define. Raises CatalogueError."""
    from jobs.catalogue import CatalogueError, job_from_table
    from jobs.problem import ProblemsFound
    from jobs.toml_file import read_toml

    if file is None:
        defaults = {"role": "manager", "steps_per_hour": _STEPS_PER_HOUR}
        return job_from_table({**defaults, **table}, "command line")
    try:
        document = read_toml(file)
    except ProblemsFound as error:
        raise CatalogueError(error.problems) from None
    return job_from_table({**document, **table}, str(file))


def _obstacles(cli: Cli, specs: list[JobSpec]) -> dict[str, Reason]:
    if not specs:
        return {}
    app = cli.app
    with app.database.read() as tx:
        snapshot = load_snapshot(tx, app.pools, cli.now, app.policy.horizon_seconds)
    return obstacles(snapshot, {spec.name for spec in specs})
