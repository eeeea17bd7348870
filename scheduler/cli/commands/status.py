"""`schedctl status`: show actions required, jobs, sessions and pools on one screen."""

from typing import Annotated

from scheduler.cli.commands.complete import job_names
from scheduler.cli.commands.queue_list import empty_queue
from scheduler.cli.parts import OVER
from scheduler.cli.shell.command import Tables, argument, command, option
from scheduler.cli.shell.context import Cli

_ROWS = {"Actions required": 5, "Jobs": 8, "Sessions": 5, "Pools": 6, "Under way": 4, OVER: 4}


@command("schedctl status", "schedctl status ufm", "schedctl status --json", kind=Tables)
def status(
    cli: Cli,
    job: Annotated[str | None, argument("JOB", "Show this job instead.", autocompletion=job_names)] = None,
    everything: Annotated[bool, option("--all", "Every row, however many there are.")] = False,
) -> None:
    """Show whether training is on track, the actions required, jobs with their ETA, sessions, hours and money."""
    if job is not None:
        from scheduler.cli.commands.queue_show import show_job

        show_job(cli, job)
        return
    from scheduler.cli.parts.screen import cut, headline, overview_json, read_overview, sections, verdict_line

    overview = read_overview(cli)
    cli.out.data(overview_json(overview))
    lines = [verdict_line(overview, cli.out), headline(overview, cli.out)]
    for line in reversed(lines) if overview.daemon.problem else lines:  # the daemon's problem comes first
        cli.out.line(line)
    for warning in overview.plan_warnings:
        cli.out.warn(f"the newest plan: {warning}", in_data=True)
    for section in sections(overview, cli.out):
        if section.title == OVER and overview.live and not everything:
            continue  # leave the rows to live sessions
        rows, hidden = cut(section, len(section.rows) if everything else _ROWS[section.title])
        cli.out.line()
        cli.out.line(section.title)
        cli.out.table(section.columns, rows)
        if hidden:
            cli.out.line(f"and {hidden} more: {section.more}")
    if not overview.jobs:
        cli.out.say(empty_queue(cli))
