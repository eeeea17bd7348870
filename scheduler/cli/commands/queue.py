"""`schedctl queue list`: its options. The listing is in queue_list, which starts faster because it needs no parser."""

from typing import Annotated

from scheduler.cli.commands.complete import states
from scheduler.cli.commands.queue_list import STATES, list_queue
from scheduler.cli.shell.command import Listing, command, option
from scheduler.cli.shell.context import Cli


@command(
    "schedctl queue list",
    "schedctl queue list --state held --json",
    "schedctl queue list --columns job,done,why",
    kind=Listing,
)
def list_(
    cli: Cli,
    state: Annotated[
        list[str] | None,
        option(
            "--state STATE", f"Only jobs in this state: {', '.join(STATES)}; may be repeated.", autocompletion=states
        ),
    ] = None,
    each: Annotated[bool, option("--all", "Each job of a sweep on a line of its own.")] = False,
) -> None:
    """List the jobs in queue order, with what each waits for. Those of a sweep stand in one line."""
    list_queue(cli, state or [], each=each)
