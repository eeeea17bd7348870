"""An MCP client that talks to `schedctl mcp` as a coding agent does, over real pipes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio

from scheduler.store import jobs
from tests.lab.port import command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.client import Client

    from tests.lab.web.world import World


def talk(world: World, work: Callable[[Client], Awaitable[None]], *words: str, **options: Any) -> None:
    """Start the server as an agent would, and let ``work`` talk to it; ``options`` are the client's."""
    from mcp import StdioServerParameters
    from mcp.client import Client
    from mcp.client.stdio import stdio_client

    program, *rest = command(world.config, "mcp", *words)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDCTL_")}
    parameters = StdioServerParameters(command=program, args=rest, env=environ)

    async def run() -> None:
        with world.config.with_name("mcp.log").open("a") as log, anyio.fail_after(200):
            async with Client(stdio_client(parameters, errlog=log), **options) as client:
                await work(client)

    anyio.run(run)


async def used(client: Client, tool: str, **args: Any) -> dict[str, Any]:
    found = await client.call_tool(tool, args)
    assert not found.is_error, found.content
    assert isinstance(found.structured_content, dict)
    return found.structured_content


async def refused(client: Client, tool: str, **args: Any) -> str:
    found = await client.call_tool(tool, args)
    assert found.is_error, found.structured_content
    return "".join(getattr(part, "text", "") for part in found.content)


def state(world: World, job: str) -> str:
    with world.database.read() as tx:
        return type(jobs.get(tx, job).state).__name__.lower()
