"""The servers of `schedctl`: `web` for browsers, `port` for programs, `mcp` for coding agents."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import structlog
import typer

from config.logging import configure
from jobs.problem import InvalidInput, Refusal
from scheduler.bridge.mcp_server import server
from scheduler.bridge.port import OF_THE_PORT, FrameReader, Port, Writer, take_over
from scheduler.cli.shell.command import command, load_command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import PlatformFault, UsageFault, document_of
from scheduler.verbs.proposals import AgentSurface
from scheduler.verbs.surface import Surface
from scheduler.verbs.table import document

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_LIMITED = "The agent's name: its changes are made under it, within the hours that the settings allow agents."


@command("schedctl web serve", "schedctl web serve --port 8080")
def serve(
    cli: Cli,
    port: Annotated[int | None, option("--port", "Instead of the settings'; 0: any free.", min=0, max=65_535)] = None,
) -> None:
    """Serve the status page until SIGTERM or Ctrl-C. The daemon need not run.

    It only reads, unless web.actions_file is set. Other machines reach it only at an address of the settings
    (web.host), and only with a token (web.bearer_file).
    """
    settings = cli.app.settings
    if port is not None:
        settings = settings.model_copy(update={"web": settings.web.model_copy(update={"port": port})})
    try:
        from scheduler.web.actors import ACTIONS, Actors, read_bearer
        from scheduler.web.server import serve as serve_site
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed"
        raise Refusal("no status page", why, "Install the extra: pip install 'uff-scheduler[web]'") from None
    try:
        bearer = read_bearer(settings.web.bearer_file, os.environ, exposed=settings.web.exposed)
        acting = read_bearer(settings.web.actions_file, os.environ, exposed=False, credential=ACTIONS)
    except InvalidInput as error:
        raise InvalidInput(f"no status page: {error.what}", error.why, error.remedy) from None
    served = type(cli.app)(settings)
    configure(settings.logging, served.redact)
    with closing(served.reading):
        try:
            actors = Actors(acting) if acting is not None else None
            serve_site(served, bearer, structlog.get_logger("web"), lambda address: _show(cli, address), actors=actors)
        except OSError as error:
            why = f"{settings.web.host} port {settings.web.port}: {error.strerror}"
            raise PlatformFault("no status page", why, "Choose another --port") from None


def _show(cli: Cli, address: str) -> None:
    cli.out.data({"address": address})
    cli.out.line(f"The status page: {address} (Ctrl-C ends it)")
    sys.stdout.flush()


@command("schedctl port", "schedctl port --describe", "schedctl port --agent elias")
def port(
    cli: Cli,
    describe: Annotated[bool, option("--describe", "Write the verbs' arguments and answers as JSON schemas.")] = False,
    agent: Annotated[str, option("--agent NAME", _LIMITED)] = "",
) -> None:
    """Answer a program over standard input and output. A frame is four bytes of length, then JSON.

    It has the rights of its parent process, and never owns a training. docs/bridges.md has the protocol.
    """
    if describe:
        replace(cli.out, as_json=True).data(document(OF_THE_PORT.values()))
        return
    surface = surface_of(cli, agent)
    source, sink = take_over()
    Port(surface, FrameReader(source), Writer(sink)).serve()


def surface_of(cli: Cli, agent: str) -> Surface:
    """Return the verbs for a program, or for the coding agent of this name. Raises ConfigError, UsageFault."""
    tell = partial(document_of, options=cli.options)
    if not agent:
        return Surface(cli.app, cli.who, cli.options.config, tell)
    if not _NAME.fullmatch(agent):
        raise UsageFault(f"--agent {agent}", "this is not a name", "Use a to z and 0 to 9, after the first also . _ -")
    return AgentSurface(cli.app, agent, cli.options.config, tell)


@command("schedctl mcp", "schedctl mcp --allow-changes --agent claude")
def mcp(
    ctx: typer.Context,
    allow_changes: Annotated[
        bool, option("--allow-changes", "Have tools that change something; each shows first what it would do.")
    ] = False,
    agent: Annotated[str, option("--agent NAME", _LIMITED)] = "mcp",
) -> None:
    """Serve a coding agent over the Model Context Protocol (extra mcp).

    Without --allow-changes it only reads. docs/bridges.md says how to configure agents.
    """
    cli: Cli = ctx.obj
    surface = surface_of(cli, agent)
    try:
        serving = server(surface, lambda: manual(ctx), changes=allow_changes)
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed"
        raise Refusal("no MCP server", why, "Install the extra: pip install 'uff-scheduler[mcp]'") from None
    try:
        serving.run("stdio")
    finally:
        surface.commands.close()


def manual(ctx: typer.Context) -> str:
    """Return the help texts of all commands as one text."""

    def pages(words: str, entry: Any, parent: Any) -> Iterator[str]:
        context = typer.Context(entry, info_name=words, parent=parent)
        yield entry.get_help(context)
        for name in entry.list_commands(context) if hasattr(entry, "list_commands") else ():
            yield from pages(name, load_command(entry.get_command(context, name)), context)

    return "\n\n".join(pages("schedctl", ctx.find_root().command, None))
