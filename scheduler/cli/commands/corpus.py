"""`schedctl corpus`: what the models train on, in versions that people build, look at and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from jobs.corpus.read.sources import parse_source
from jobs.problem import NotFound, Refusal
from scheduler.cli.shell.command import argument, command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import meant


@command("schedctl corpus add ~/garden/episodes")
def add(cli: Cli, source: Annotated[str, argument("SOURCE", "A file, a folder, or stdlib.")]) -> None:
    """Add a source to those of the settings. The next version that is built has it."""
    parse_source(source)  # refuses what is not there
    source = source if source == "stdlib" else str(Path(source).expanduser().resolve())
    data = cli.app.training_data
    is_listed = source in data.recipe.sources
    if not is_listed:
        data.folder.change_added(add=[source])
    _tell_sources(cli, f"{source} is a source {'already' if is_listed else 'now'}.", changed=not is_listed)


@command("schedctl corpus drop ~/garden/episodes")
def drop(cli: Cli, source: Annotated[str, argument("SOURCE", "One that corpus add added.")]) -> None:
    """Take an added source out again. Versions that were built with it stay as they are."""
    data = cli.app.training_data
    added = data.folder.added()
    path = str(Path(source).expanduser().resolve())
    entry = next((one for one in added if one in {source, path}), None)
    if entry is None and {source, path} & set(data.recipe.sources):
        where = cli.app.settings.origin("corpus.sources")
        raise Refusal(f"cannot drop {source}", f"it stands in {where}", "Remove it there, from corpus.sources")
    if entry is None:
        raise NotFound("unknown source", f"{source} was not added", meant(source, added, "schedctl corpus show"))
    data.folder.change_added(drop=[entry])
    _tell_sources(cli, f"{entry} is no source any more.", changed=True)


def _tell_sources(cli: Cli, sentence: str, *, changed: bool) -> None:
    sources = list(cli.app.training_data.recipe.sources)
    cli.out.data({"sources": sources, "changed": changed})
    cli.out.line(f"{sentence} All sources: {', '.join(sources)}")
    if changed:
        cli.out.say("It counts in the next version: schedctl corpus build")
