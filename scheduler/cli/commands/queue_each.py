"""`schedctl queue` hold, release, cancel and retry for one or more jobs; remove, priority and move for one job."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

from jobs.definition import RANGES
from jobs.problem import Refusal
from jobs.size import counted
from scheduler.cli.commands.complete import Job, job_names
from scheduler.cli.parts.runs_table import warn_of_loss
from scheduler.cli.shell.command import Reason, Yes, argument, command, confirm, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.core.job import Active, Cancelled, Failed, Held, JobState, Queued
from scheduler.service.requests import queue
from scheduler.store import jobs
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import job_json

CAN_BE: dict[str, Callable[[JobState], bool]] = {
    "held": lambda state: isinstance(state, Queued) or (isinstance(state, Active) and state.wish is None),
    "released": lambda state: isinstance(state, Held) or (isinstance(state, Active) and state.wish == "hold"),
    "cancelled": lambda state: isinstance(state, Queued | Active | Held | Failed),
    "tried again": lambda state: isinstance(state, Failed),
}
"""For each change, whether ``--all`` includes a job in this state."""
_NOW = {"held": "is held", "released": "may run again", "cancelled": "is cancelled", "tried again": "is tried again"}
"""The end of the message about a job, by change."""

Jobs = Annotated[list[str] | None, argument("JOB...", "Names of the jobs.", autocompletion=job_names)]
All = Annotated[bool, option("--all", "Every job that this can be done to, instead of names.")]


@command("schedctl queue retry ufm", "schedctl queue retry --all")
def retry(cli: Cli, names: Jobs = None, everything: All = False) -> None:
    """Let failed jobs try again at once, with a fresh count of failures. With --all, every failed one."""
    _change(cli, names, everything, "tried again", queue.retry)


@command("schedctl queue cancel ufm", "schedctl queue cancel ufm ucm", "schedctl queue cancel --all --yes")
def cancel(cli: Cli, names: Jobs = None, why: Reason = "", everything: All = False, yes: Yes = False) -> None:
    """Cancel jobs; a running session saves first. Their checkpoints stay: queue release undoes it.

    With --all, every job that is not over, after a confirmation.
    """
    _change(cli, names, everything, "cancelled", partial(queue.cancel, why=why), yes=yes)


@command("schedctl queue hold ufm --reason 'data are being cleaned'", "schedctl queue hold --all")
def hold(cli: Cli, names: Jobs = None, why: Reason = "", everything: All = False) -> None:
    """Keep jobs from starting; a running session saves and ends."""
    _change(cli, names, everything, "held", lambda db, name, now, by: queue.hold(db, name, why, now, by))


@command("schedctl queue release ufm", "schedctl queue release --all")
def release(cli: Cli, names: Jobs = None, everything: All = False) -> None:
    """Let held, failed or cancelled jobs run again; with --all, the held ones. Cancelled ones are named."""
    _change(cli, names, everything, "released", queue.release)


def _change(
    cli: Cli,
    names: Sequence[str] | None,
    everything: bool,
    done: str,
    change: Callable[[Database, str, int, str], JobRecord],
    *,
    yes: bool = True,
) -> None:
    """Change the jobs in ``names``, or with ``everything`` all that can be ``done``, a key of :data:`CAN_BE`.

    Unless ``yes``, a change of all asks for a confirmation. A job that refuses the change does not stop the others.
    Raises UsageFault and UnknownJob before the first change, and Refusal before it or at the end.
    """
    if bool(names) == everything:
        raise UsageFault("which jobs", "names or --all are needed, and not both", "See: schedctl queue list")
    with cli.app.database.read() as tx:
        if everything:
            records = [record for record in jobs.everything(tx) if CAN_BE[done](record.state)]
        else:
            records = [jobs.get(tx, name) for name in dict.fromkeys(names or ())]
    if everything and records:
        live = sum(isinstance(record.state, Active) for record in records)
        ending = f" {counted(live, 'session')} will save and end." if live else ""
        named = listed([record.spec.name for record in records])
        confirm(cli, f"Cancel {counted(len(records), 'job')} ({named})?{ending}", yes=yes)
    changed, refused = [], []
    for record in records:
        try:
            changed.append(change(cli.app.database, record.spec.name, cli.now, cli.who))
        except Refusal as error:
            if len(records) == 1:
                raise
            refused.append(str(error))
    one = len(names or ()) == 1
    cli.out.data({"job": job_json(changed[0])} if one else {"jobs": [job_json(record) for record in changed]})
    for record in changed:
        _report(cli, record, _NOW[done])
    if everything and not records:
        cli.out.say(f"No job can be {done}.")
    if everything and done == "released":
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
    """Report the jobs that stay cancelled, for a person who cancelled all by mistake."""
    with cli.app.database.read() as tx:
        records = jobs.everything(tx)
    names = [
        record.spec.name
        for record in records
        if isinstance(record.state, Cancelled) or (isinstance(record.state, Active) and record.state.wish == "cancel")
    ]
    if names:
        stay = "stays" if len(names) == 1 else "stay"
        one = f"{counted(len(names), 'cancelled job')} {stay} cancelled. To let them run again, name them"
        cli.out.say(f"{one}: schedctl queue release {' '.join(names)}")


def _report(cli: Cli, record: JobRecord, done: str) -> None:
    """Report the change of a job, unless JSON is wanted."""
    state = record.state
    if cli.options.json:
        return
    if isinstance(state, Active) and state.wish is not None:
        cli.out.line(f"{record.spec.name} {done} as soon as {state.run} has saved and ended.")
        warn_of_loss(cli, state.run, record.spec.name)
    else:
        cli.out.line(f"{record.spec.name} {done}.")


@command("schedctl queue remove ufm", "schedctl queue remove ufm --yes")
def remove(cli: Cli, job: Job, yes: Yes = False) -> None:
    """Remove a job, which frees its name, after a confirmation. Its runs, hours and checkpoints stay."""
    with cli.app.database.read() as tx:
        jobs.get(tx, job)
    confirm(cli, f"Remove {job} from the queue? Its runs, hours and checkpoints stay.", yes=yes)
    record = queue.remove(cli.app.database, job, cli.now, cli.who)
    cli.out.data({"job": job_json(record)})
    kept = f" Its checkpoint at step {record.done_step} stays: schedctl queue add --continue goes on from it."
    cli.out.line(f"{job} is out of the queue.{kept if record.checkpoint else ''}")
    cli.wake_daemon()


@command("schedctl queue priority ufm 4")
def weigh(
    cli: Cli,
    job: Job,
    value: Annotated[float, argument("PRIORITY", "Value of a training hour relative to other jobs; new jobs have 1.")],
) -> None:
    """Change the priority of a job: the planner multiplies each of its hours by it."""
    if not RANGES["priority"].holds(value):
        remedy = "Hold the job to keep it from running" if value <= 0 else "Write one in the range"
        raise UsageFault("no such priority", f"{value:g} is not in the range {RANGES['priority']}", remedy)
    record = queue.change(cli.app.database, job, cli.now, cli.who, weight=value)
    _changed(cli, record, f"has priority {value:g}")


@command("schedctl queue move ufm 1")
def move(cli: Cli, job: Job, place: Annotated[int, argument("POSITION", "1 is the front.", min=1)]) -> None:
    """Move a job in the queue. The position decides between jobs of equal value."""
    record = queue.change(cli.app.database, job, cli.now, cli.who, position=place)
    _changed(cli, record, f"is at position {record.position}")


def _changed(cli: Cli, record: JobRecord, done: str) -> None:
    cli.out.data({"job": job_json(record)})
    _report(cli, record, done)
    cli.wake_daemon()
