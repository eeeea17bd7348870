"""Follow jobs of the queue until none of them is under way: what becomes of them, and what their sessions print."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from threading import Event

import typer

from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit
from scheduler.cli.shell.output import clean
from scheduler.core.job import Active, Done, Queued
from scheduler.core.why import why
from scheduler.service.requests.sessions import followed_log, lines
from scheduler.store import jobs, plans, runs
from scheduler.store.jobs import JobRecord

_LOOK_AGAIN_SECONDS = 1.0


def follow_jobs(cli: Cli, names: Sequence[str], *, logs: bool) -> None:
    """Tell each change until every job is done, failed, held or cancelled; ``logs``: and what sessions print.

    Raises typer.Exit when one of them is not done.
    """
    told: dict[str, str] = {}
    pause = Event()
    while True:
        with cli.app.database.read() as tx:
            records = [jobs.get(tx, name) for name in names]
            waits = {name: plans.reason(tx, name) for name in names}
        for record in records:
            name, reason = record.spec.name, waits[record.spec.name]
            said = why(record.state, reason.to_json() if reason else None, cli.out.zone, cli.now)
            line = f"{name}: {type(record.state).__name__.lower()}" + (f", {said}" if said else "")
            if told.get(name) != line:
                cli.out.say(f"{line} ({record.done_step} of {record.spec.target_step} steps)")
                told[name] = line
        under_way = [record for record in records if isinstance(record.state, Queued | Active)]
        if not under_way:
            break
        running = next((record for record in under_way if isinstance(record.state, Active)), None)
        if logs and len(names) == 1 and running is not None:
            _write_log(cli, running, pause)
        pause.wait(_LOOK_AGAIN_SECONDS)
    missed = [record.spec.name for record in records if not isinstance(record.state, Done)]
    if missed:
        cli.out.say(f"Not done: {', '.join(missed)}. See: schedctl queue show {missed[0]}")
        raise typer.Exit(Exit.VIOLATIONS)


def _write_log(cli: Cli, record: JobRecord, pause: Event) -> None:
    """Write what a job's session prints until it ends."""
    state = record.state
    if not isinstance(state, Active):
        raise TypeError(f"{record.spec.name} has no session")
    with cli.app.database.read() as tx:
        run = runs.get(tx, state.run)
    platform = cli.platform(run.pool)
    for line in lines(followed_log(cli.app.database, platform, run.key, lambda: pause.wait(_LOOK_AGAIN_SECONDS))):
        sys.stdout.write(cli.redact(clean(line.decode("utf-8", "replace").removesuffix("\n"))) + "\n")
        sys.stdout.flush()
