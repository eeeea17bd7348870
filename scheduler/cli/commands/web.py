"""`schedctl web`: the status page."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from scheduler.cli.shell.command import command, group
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import CommandError, Exit, Refusal

if TYPE_CHECKING:
    from config.settings import WebSettings

app = group("The status page in a browser, its JSON API and metrics.")


@app.callback()
def web() -> None:
    """Keep ``serve`` a word of its own."""


class Unserved(CommandError):
    """This machine does not let the page be served."""

    code = Exit.PLATFORM


@command(app, "schedctl web serve", "schedctl web serve --port 8080")
def serve(
    cli: Cli,
    port: Annotated[
        int | None,
        typer.Option("--port", min=0, max=65_535, help="Instead of that of the settings; 0 is any free one."),
    ] = None,
) -> None:
    """Serve the status page until SIGTERM or Ctrl-C. The daemon need not run.

    It only reads, unless web.actions_file is set. Other machines reach it only at an address of the settings
    (web.host), and only with a token (web.bearer_file).
    """
    import structlog

    from config.logging import configure

    settings = cli.app.settings
    if port is not None:
        settings = settings.model_copy(update={"web": settings.web.model_copy(update={"port": port})})
    try:
        from scheduler.web.actors import ACTIONS, Actors, BearerError, read_bearer
        from scheduler.web.server import serve as serve_site
    except ModuleNotFoundError as error:
        why = f"{error.name} is not installed"
        raise Refusal("no status page", why, "Install the extra: pip install 'uff-scheduler[web]'") from None
    try:
        bearer = read_bearer(settings.web.bearer_file, os.environ, exposed=settings.web.exposed)
        acting = read_bearer(settings.web.actions_file, os.environ, exposed=False, credential=ACTIONS)
    except BearerError as error:
        raise BearerRefused("no status page", error.why, error.remedy) from None
    served = type(cli.app)(settings)
    configure(settings.logging, served.redact)
    with closing(served.reading):
        try:
            actors = Actors(acting) if acting is not None else None
            serve_site(served, bearer, structlog.get_logger("web"), lambda address: _tell(cli, address), actors=actors)
        except OSError as error:
            raise Unserved(
                "no status page", f"{_place(settings.web)}: {error.strerror}", "Choose another --port"
            ) from None


class BearerRefused(CommandError):
    """The token that readers are to show cannot be used."""

    code = Exit.CONFIG


def _tell(cli: Cli, address: str) -> None:
    cli.out.data({"address": address})
    cli.out.line(f"The status page: {address} (Ctrl-C ends it)")
    import sys

    sys.stdout.flush()


def _place(settings: WebSettings) -> str:
    return f"{settings.host} port {settings.port}"
