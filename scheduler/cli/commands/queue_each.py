"""What is done to one job, to several, or to all of some states: hold, release, cancel, retry."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.plural import counted
from scheduler.cli.parts.loss import warn_of_loss
from scheduler.cli.shell.exits import Refusal, UsageFault
from scheduler.core.job import Active, Failed, Held, Queued
from scheduler.service.requests.queue import QueueError
from scheduler.store import jobs
from scheduler.views.documents import job_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from scheduler.cli.shell.context import Cli
    from scheduler.core.job import JobState
    from scheduler.store.jobs import JobRecord


CAN_BE: dict[str, Callable[[JobState], bool]] = {
    "held": lambda state: isinstance(state, Queued) or (isinstance(state, Active) and state.wish is None),
    "released": lambda state: isinstance(state, Held) or (isinstance(state, Active) and state.wish == "hold"),
    "cancelled": lambda state: isinstance(state, Queued | Active | Held | Failed),
    "tried again": lambda state: isinstance(state, Failed),
}
"""What --all means, by what is done."""


def change_each(
    cli: Cli, names: Sequence[str] | None, every: str | None, change: Callable[[str], JobRecord], done: str
) -> None:
    """Change the named jobs, or else all that can be ``every`` of :data:`CAN_BE`; ``done`` says what was done.

    One that refuses stays as it is, the others are changed. Raises UsageFault, UnknownJob before any is changed, and
    Refusal at the end.
    """
    if bool(names) == bool(every):
        raise UsageFault("which jobs", "names or --all are needed, and not both", "See: schedctl queue list")
    with cli.app.database.read() as tx:
        if every:
            asked = [record for record in jobs.everything(tx) if CAN_BE[every](record.state)]
        else:
            asked = [jobs.get(tx, name) for name in dict.fromkeys(names or ())]
    changed, refused = [], []
    for record in asked:
        try:
            changed.append(change(record.spec.name))
        except QueueError as error:
            if len(asked) == 1:
                raise
            refused.append(str(error))
    one = len(names or ()) == 1
    cli.out.data({"job": job_json(changed[0])} if one else {"jobs": [job_json(record) for record in changed]})
    for record in changed:
        tell(cli, record, done)
    if not asked:
        cli.out.say(f"No job can be {every}.")
    if changed:
        cli.wake_daemon()
    if refused:
        raise Refusal(
            f"{len(refused)} of {counted(len(asked), 'job')} stay as they are",
            "; ".join(refused),
            "See: schedctl status",
        )


def tell(cli: Cli, record: JobRecord, done: str) -> None:
    """Say what was done to a job, unless a program asked."""
    state = record.state
    if cli.options.json:
        return
    if isinstance(state, Active) and state.wish is not None:
        cli.out.line(f"{record.spec.name} {done} as soon as {state.run} has saved and ended.")
        warn_of_loss(cli, state.run, record.spec.name)
    else:
        cli.out.line(f"{record.spec.name} {done}.")
