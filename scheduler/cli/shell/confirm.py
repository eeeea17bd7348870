"""Confirmation: what cannot be taken back, or not easily, asks a person before it is done."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Refusal

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]

REASON = ("--reason", "--why")
"""The names of the option for a reason."""


def confirm(cli: Cli, question: str, *, yes: bool) -> None:
    """Ask a person at the terminal whether to go on, unless ``yes``. Raises Refusal without their consent."""
    if yes:
        return
    remedy = "To do it without being asked, add --yes"
    if cli.options.json or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise Refusal("nothing was changed", f'nobody can be asked here: "{question}"', remedy)
    sys.stderr.write(cli.redact(f"{question} [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Refusal("nothing was changed", "the answer was not yes", remedy)
