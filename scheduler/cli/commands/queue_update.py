"""`schedctl queue update`: another state of a job's own code for its next sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.plural import counted
from scheduler.cli.commands.queue_show import code_line
from scheduler.core.job import Active
from scheduler.service.requests import code, concerns
from scheduler.store import jobs
from scheduler.views.documents import job_json

if TYPE_CHECKING:
    from jobs.spec import Code
    from scheduler.cli.shell.context import Cli


def update_job(cli: Cli, name: str, wanted: Code) -> None:
    """Take the code of a job anew. Raises CodeError, CodeGoes, StoreError, UnknownJob."""
    app = cli.app
    with app.database.read() as tx:
        before = jobs.get(tx, name)
    taken = code.keep(app.database, app.artifacts, wanted, cli.now + app.policy.retention.grace_seconds)
    same = before.spec.code is not None and before.spec.code.digest == taken.digest
    record = before if before.spec.code == taken else code.change(app.database, name, taken, cli.now, cli.who)
    if cli.options.json:
        cli.out.data({"job": job_json(record), "changed": not same})
    else:
        cli.out.line(f"{name} {'has the same code as before' if same else 'has other code'}: {code_line(taken)}.")
    for doubt in concerns.of_jobs(app.settings, [record.spec], app.bundle, "command line"):
        cli.out.warn(str(doubt))
    if not same and isinstance(record.state, Active):
        cli.out.say(
            f"{record.state.run} goes on with what it has. To change over now: schedctl runs stop {record.state.run}"
        )
    if not same and record.done_step:
        steps = counted(record.done_step, "step")
        cli.out.say(f"It goes on from its checkpoint, {steps} of which the code before made.")
    cli.wake_daemon()
