"""`schedctl agents`: list the changes that coding agents propose; a person approves or rejects each."""

import json
from dataclasses import asdict
from typing import Annotated

from jobs.nouns.window import HOUR
from scheduler.cli.shell.command import Listing, Reason, Yes, argument, command, confirm
from scheduler.cli.shell.context import Cli
from scheduler.service.requests import agents
from scheduler.verbs.proposals import approve as approved

Id = Annotated[str, argument("ID", "ID of the proposal, as agents list shows it.")]


@command("schedctl agents list", "schedctl agents list --json", kind=Listing)
def list_(cli: Cli) -> None:
    """List what waits for a person, and the hours that agents reserved today.

    The day is that of UTC. A job counts with its budget, and when it is over with what it used.
    """
    limits = cli.app.settings.agents.limits
    with cli.app.database.read() as tx:
        waiting, today = agents.waiting(tx), agents.reserved_on_day(tx, cli.now)
    proposals, allowed = [asdict(one) for one in waiting], limits and limits._asdict()
    cli.out.data({"proposals": proposals, "reserved_seconds": today, "limits": allowed})
    rows = [(one.id, one.agent, one.verb, cli.out.moment(one.since), one.why) for one in waiting]
    cli.out.table(("id", "agent", "-change", "-since", "_why"), rows)
    if limits is None:
        cli.out.say("Agents have no limits here: docs/bridges.md#limits-in-hours")
    else:
        cli.out.say(f"Reserved by agents today: {today / HOUR:.2f} of {limits.day_seconds / HOUR:g} device hours.")


@command("schedctl agents approve 3f2a9c0d1b7e", "schedctl agents approve 3f2a9c0d1b7e --yes")
def approve(cli: Cli, proposal: Id, yes: Yes = False) -> None:
    """Make a change that an agent proposed, after a confirmation.

    Its preview is shown first. It is refused if the contents have changed since: the job, its code, packages or
    inputs, or the state of a job.
    """
    with cli.app.database.read() as tx:
        offer = agents.find(tx, proposal)
    cli.out.line(f"{offer.agent} proposes {offer.verb}: {offer.why}.")
    for line in json.dumps({"arguments": offer.args, **offer.preview}, indent=2, ensure_ascii=False).splitlines():
        cli.out.line(line)
    question = f"Make this change of {offer.agent}?"
    answer = approved(cli.app, offer, cli.who, cli.options.config, lambda: confirm(cli, question, yes=yes))
    cli.out.data({"proposal": asdict(offer), "answer": answer})
    cli.out.line(f"Done: {offer.verb}, proposed by {offer.agent}, approved by {cli.who}.")
    cli.wake_daemon()


@command("schedctl agents reject 3f2a9c0d1b7e --reason 'wait for the new data'")
def reject(cli: Cli, proposal: Id, why: Reason = "") -> None:
    """Reject a change that an agent proposed. It cannot propose the same within a day."""
    with cli.app.database.read() as tx:
        offer = agents.find(tx, proposal)
    agents.close(cli.app.database, offer, cli.now, cli.who, is_approved=False, why=why)
    cli.out.data({"proposal": asdict(offer)})
    cli.out.line(f"Rejected: {offer.verb}, proposed by {offer.agent}.")
