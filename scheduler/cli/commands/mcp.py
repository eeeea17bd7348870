"""`schedctl mcp`: for coding agents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from scheduler.cli.shell.command import command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Refusal

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(app, "schedctl mcp", "schedctl mcp --allow-changes")
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
    from scheduler.cli.commands.port import surface_of

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
