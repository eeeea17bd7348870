"""For programs: `schedctl port` for those of other languages, `schedctl mcp` for coding agents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scheduler.cli.shell.command import alone
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Refusal

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface


@alone("schedctl port", "schedctl port --describe")
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


@alone("schedctl mcp", "schedctl mcp --allow-changes")
def mcp(
    ctx: typer.Context,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="Have tools that change something; each shows first what it would do."),
    ] = False,
) -> None:
    """Serve a coding agent over the Model Context Protocol (extra mcp).

    Without --allow-changes it only reads. docs/bridges.md says how agents are told of it.
    """
    from scheduler.bridge.mcp_server import server

    cli: Cli = ctx.obj
    surface = surface_of(cli)
    try:
        made = server(surface, lambda: manual(ctx), changes=allow_changes)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed"
        raise Refusal("no MCP server", why, "Install the extra: pip install 'uff-scheduler[mcp]'") from None
    try:
        made.run("stdio")
    finally:
        surface.commands.close()


def manual(ctx: typer.Context) -> str:
    """Return the help of every command, each below its words."""

    def pages(words: str, found: Any, parent: Any) -> Iterator[str]:
        context = typer.Context(found, info_name=words, parent=parent)
        yield found.get_help(context)
        for name in found.list_commands(context) if hasattr(found, "list_commands") else ():
            yield from pages(name, found.get_command(context, name), context)

    return "\n\n".join(pages("schedctl", ctx.find_root().command, None))
