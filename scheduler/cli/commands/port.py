"""`schedctl port`: for programs of other languages, and for their supervisors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl port", "schedctl port --describe")
def port(
    cli: Cli,
    describe: Annotated[
        bool, typer.Option("--describe", help="Write the verbs with their arguments and answers as JSON schemas.")
    ] = False,
) -> None:
    """Answer a program over standard input and output. A frame is four bytes of length, then JSON.

    It has the rights of whoever started it, and never owns a training. docs/bridges.md has the protocol.
    """
    from scheduler.bridge.frames import Reader, Writer
    from scheduler.bridge.port import OF_THE_PORT, Port, take_over
    from scheduler.bridge.verbs import document

    if describe:
        replace(cli.out, as_json=True).data(document(OF_THE_PORT))
        return
    surface = surface_of(cli)
    source, sink = take_over()
    Port(surface, Reader(source), Writer(sink)).serve()


def surface_of(cli: Cli) -> Surface:
    """Return what programs may ask, with the settings of this command line. Raises ConfigError."""
    from scheduler.bridge.surface import Surface
    from scheduler.cli.shell.exits import document_of

    return Surface(cli.app, cli.who, cli.options.config, lambda error: document_of(error, cli.options))
