"""`schedctl queue restart`: a job begins again as its next generation."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from jobs.payload.bounds import STEP_MAX, digits
from scheduler.cli.commands.queue_show import start_line
from scheduler.cli.shell.confirm import confirm
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.service.requests.restart import restart
from scheduler.store import jobs
from scheduler.views.documents import job_json

if TYPE_CHECKING:
    from scheduler.cli.shell.context import Cli


def restart_job(cli: Cli, name: str, start: str, *, yes: bool) -> None:
    """Begin a job again from ``start``: a step of its parent, or newest.

    Raises UnknownJob, QueueError, UsageFault, and Refusal when nobody agreed.
    """
    step = digits(start, STEP_MAX)
    if start != "newest" and step is None:
        raise UsageFault(f"--from {start} cannot be read", "it is a step of the parent, or newest", "Write --from 4000")
    with cli.app.database.read() as tx:
        done = jobs.get(tx, name).done_step
    question = (
        f"Begin {name} again at step 0? It is at step {done}; what it saved stays, and it does not go on from that."
    )
    confirm(cli, question, yes=yes)
    record, generation, waiting = restart(cli.app.database, name, step, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "generation": asdict(generation)})
    told = start_line(record.spec.start_from, [generation])
    cli.out.line(f"{name} begins its generation {generation.number}{f', from {told}' if told else ''}.")
    if waiting:
        cli.out.say(f"Its steps count from 0 again, so {listed(waiting)} may wait for it again.")
    cli.wake_daemon()
