"""`schedctl report`: show, write or send the weekly report."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from jobs.payload.whole_file import write_whole
from jobs.problem import Refusal
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.report.picture import Picture
from scheduler.report.report import Report
from scheduler.store import outbox
from scheduler.views.weekly_report import make_report, render, week_named

_ENDINGS: dict[str, Literal["html", "markdown", "json"]] = {".html": "html", ".md": "markdown", ".json": "json"}


@command(
    "schedctl report weekly",
    "schedctl report weekly --week this",
    "schedctl report weekly --week 2026-W47 --out week.html",
)
def weekly(
    cli: Cli,
    week: Annotated[str | None, option("--week", "ISO week like 2026-W47, or this; the last one that is over.")] = None,
    form: Annotated[
        Literal["text", "html", "markdown", "json", "slack"] | None,
        option("--format", "What to write; what the file's ending says, else text."),
    ] = None,
    out: Annotated[Path | None, option("--out", "Write to this file; .html, .md and .json say the format.")] = None,
    send: Annotated[bool, option("--send", "Have the daemon send it; once a week and channel.")] = False,
) -> None:
    """Show the report of a week: headline, actions, models, hours and money."""
    zone = cli.app.settings.zone
    try:
        span = week_named(week or "last", zone, cli.now)
    except ValueError:
        raise UsageFault(f"--week {week}", "there is no such week", "Write it like 2026-W47, or: this") from None
    document = make_report(cli.app.database, cli.app.pools, span, zone, cli.now)
    if send:
        _send(cli, document)
        return
    by_name = _ENDINGS.get(out.suffix.lower()) if out else None
    wanted = "json" if cli.options.json else form or by_name or "text"
    pictures = _pictures(cli, document) if wanted == "html" else ()
    text = cli.redact(render(document, wanted, pictures))
    if out is None:
        sys.stdout.write(text)
        return
    if not out.parent.is_dir():
        raise UsageFault(f"--out {out}", f"there is no folder {out.parent}", f"Make it: mkdir -p {out.parent}")
    write_whole(out, text)
    cli.out.say(f"written: {out}")


def _pictures(cli: Cli, document: Report) -> Sequence[Picture]:
    from scheduler.views.chart_facts import pictures_of

    return pictures_of(cli.app.database, cli.app.pools, document)


def _send(cli: Cli, document: Report) -> None:
    from scheduler.notify.deliver import redacted
    from scheduler.notify.mail import WEEKLY, message_of

    channels = list(cli.app.channels)
    if not channels:
        raise Refusal(
            "report not sent", "neither a mail server nor Slack is configured", "Set report.smtp or report.slack"
        )
    body = redacted(message_of(document, _pictures(cli, document)), cli.redact)
    with cli.app.database.write() as tx:
        added = [name for name in channels if outbox.add(tx, WEEKLY, document.label, name, body, cli.now)]
    cli.out.data({"week": document.label, "queued": added, "known": sorted(set(channels) - set(added))})
    for name in channels:
        cli.out.say(f"{name}: {'the daemon sends it' if name in added else 'was sent before, or waits to be sent'}")
    if added:
        cli.wake_daemon()
