"""`schedctl queue`: what is to be trained, in which order, and whether it may run."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.commands.complete import states
from scheduler.cli.commands.queue_list import STATES, list_queue
from scheduler.cli.shell.command import Listing, command, group, later
from scheduler.cli.shell.context import Cli

app = group("The jobs: add, list, edit, hold, cancel, remove, reorder.", "list")


@command(
    app,
    "schedctl queue list",
    "schedctl queue list --state held --json",
    "schedctl queue list --columns job,done,why",
    name="list",
    kind=Listing,
)
def list_(
    cli: Cli,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only jobs in this state: {', '.join(STATES)}; may be repeated.",
            autocompletion=states,
        ),
    ] = None,
    each: Annotated[bool, typer.Option("--all", help="Each job of a sweep on a line of its own.")] = False,
) -> None:
    """List the jobs in queue order, with what each waits for. Those of a sweep stand in one line."""
    list_queue(cli, state or [], each=each)


_CHANGES = {
    "show": ("queue_show:show_job", "Show all of one job."),
    "add": ("queue_add:add", "Add a job from a file or options, or all models of the settings."),
    "edit": ("queue_changes:edit", "Change a job's definition by --set, from a file, or in $EDITOR."),
    "update": ("queue_changes:update", "Take a job's code and packages again for its next session, or what is named."),
    "clone": ("queue_changes:clone", "Add a job with the definition and code of another."),
    "remove": ("queue_each:remove", "Remove a job, which frees its name, after a confirmation."),
    "retry": ("queue_each:retry", "Let failed jobs try again at once, with a fresh count of failures."),
    "restart": (
        "queue_changes:restart_job",
        "Begin a job again from step 0, as its next generation, after a confirmation.",
    ),
    "cancel": ("queue_each:cancel", "Cancel jobs; a running session saves first."),
    "hold": ("queue_each:hold", "Keep jobs from starting; a running session saves and ends."),
    "release": ("queue_each:release", "Let held, failed or cancelled jobs run again; with --all, the held ones."),
    "priority": (
        "queue_each:priority",
        "Change the priority of a job: the planner multiplies each of its hours by it.",
    ),
    "move": ("queue_each:move", "Move a job in the queue."),
}
later(app, _CHANGES)
