"""What is done to one job, to several, or to all of some states: hold, release, cancel, retry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobs.plural import counted
from jobs.problem import Refusal
from scheduler.cli.parts.runs_table import warn_of_loss
from scheduler.cli.shell.command import confirm
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.core.job import Active, Cancelled, Failed, Held, JobState, Queued
from scheduler.store import jobs
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json

CAN_BE: dict[str, Callable[[JobState], bool]] = {
    "held": lambda state: isinstance(state, Queued) or (isinstance(state, Active) and state.wish is None),
    "released": lambda state: isinstance(state, Held) or (isinstance(state, Active) and state.wish == "hold"),
    "cancelled": lambda state: isinstance(state, Queued | Active | Held | Failed),
    "tried again": lambda state: isinstance(state, Failed),
}
"""What --all means, by what is done."""


def change_each(
    cli: Cli,
    names: Sequence[str] | None,
    every: str | None,
    change: Callable[[str], JobRecord],
    done: str,
    *,
    asks: str | None = None,
) -> None:
    """Change the named jobs, or else all that can be ``every`` of :data:`CAN_BE`; ``done`` says what was done.

    ``asks`` is the verb of the question whether to change all; None asks nothing. One that refuses stays as it is, the
    others are changed. Raises UsageFault, UnknownJob before any is changed, and Refusal then or at the end.
    """
    if bool(names) == bool(every):
        raise UsageFault("which jobs", "names or --all are needed, and not both", "See: schedctl queue list")
    with cli.app.database.read() as tx:
        if every:
            records = [record for record in jobs.everything(tx) if CAN_BE[every](record.state)]
        else:
            records = [jobs.get(tx, name) for name in dict.fromkeys(names or ())]
    if every and records and asks:
        live = sum(isinstance(record.state, Active) for record in records)
        ending = f" {counted(live, 'session')} will save and end." if live else ""
        named = listed([record.spec.name for record in records])
        confirm(cli, f"{asks} {counted(len(records), 'job')} ({named})?{ending}", yes=False)
    changed, refused = [], []
    for record in records:
        try:
            changed.append(change(record.spec.name))
        except Refusal as error:
            if len(records) == 1:
                raise
            refused.append(str(error))
    one = len(names or ()) == 1
    cli.out.data({"job": job_json(changed[0])} if one else {"jobs": [job_json(record) for record in changed]})
    for record in changed:
        tell(cli, record, done)
    if every and not records:
        cli.out.say(f"No job can be {every}.")
    if every == "released":
        _name_cancelled(cli)
    if changed:
        cli.wake_daemon()
    if refused:
        raise Refusal(
            f"{len(refused)} of {counted(len(records), 'job')} stay as they are",
            "; ".join(refused),
            "See: schedctl status",
        )


def _name_cancelled(cli: Cli) -> None:
    """Say which cancelled jobs stay so, for a person who cancelled all and changes their mind."""
    with cli.app.database.read() as tx:
        names = [record.spec.name for record in jobs.everything(tx) if _is_cancelled(record.state)]
    if names:
        stay = "stays" if len(names) == 1 else "stay"
        one = f"{counted(len(names), 'cancelled job')} {stay} cancelled. To let them run again, name them"
        cli.out.say(f"{one}: schedctl queue release {' '.join(names)}")


def _is_cancelled(state: JobState) -> bool:
    return isinstance(state, Cancelled) or (isinstance(state, Active) and state.wish == "cancel")


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
