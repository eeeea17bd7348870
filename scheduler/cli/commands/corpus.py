"""`schedctl corpus`: what the models train on, in versions that people build, look at and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.shell.command import command, group, later
from scheduler.cli.shell.context import Cli

app = group("Training data: build, show, compare, verify.", "show")

_VERSIONS = {
    "build": ("corpus_show:build", "Build the corpus from its sources as they are now."),
    "show": ("corpus_show:show_corpus", "Show a version: its texts, what is held out, what was odd, who trains on it."),
    "diff": ("corpus_show:show_difference", "Compare two versions text by text."),
    "verify": ("corpus_show:verify_corpora", "Check every byte of versions and their mixtures."),
    "leaks": (
        "corpus_show:show_leaks",
        "Show which items of a test set stand in a corpus, also reformatted, reworded or with other names.",
    ),
}
later(app, _VERSIONS)


@command(app, "schedctl corpus add ~/garden/episodes")
def add(
    cli: Cli, source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file, a folder, or stdlib.")]
) -> None:
    """Add a source to those of the settings. The next version that is built has it."""
    from jobs.corpus.read.sources import parse_source

    parse_source(source)  # refuses what is not there
    source = source if source == "stdlib" else str(Path(source).expanduser().resolve())
    data = cli.app.training_data
    is_listed = source in data.recipe.sources
    if not is_listed:
        data.folder.change_added(add=[source])
    _tell_sources(cli, f"{source} is a source {'already' if is_listed else 'now'}.", changed=not is_listed)


@command(app, "schedctl corpus drop ~/garden/episodes")
def drop(cli: Cli, source: Annotated[str, typer.Argument(metavar="SOURCE", help="One that corpus add added.")]) -> None:
    """Take an added source out again. Versions that were built with it stay as they are."""
    from jobs.problem import NotFound, Refusal
    from scheduler.cli.shell.names import meant

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
