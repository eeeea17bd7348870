"""`schedctl corpus`: what the models train on, in versions that people build, look at and compare."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from scheduler.cli.commands.job_options import AllowSecrets, allowing
from scheduler.cli.shell.command import command, group
from scheduler.cli.shell.context import Cli

app = group("Training data: build, show, compare, verify.", "show")

_VERSION = "VERSION"


@command(app, "schedctl corpus build")
def build(cli: Cli, allow_secrets: AllowSecrets = False) -> None:
    """Build the corpus from its sources as they are now. The same text is the same version. New jobs get it.

    Jobs that train stay on the version that they have. Without this command the first launch of a job that needs a
    corpus builds it.
    """
    from scheduler.cli.commands.corpus_show import tell_built

    before = cli.app.training_data.folder.current().version

    def make() -> None:
        tell_built(cli, cli.app.training_data.build(cli.who, _progress(cli)), before)
        cli.wake_daemon()

    allowing(cli, make, wanted=allow_secrets)


@command(app, "schedctl corpus show", "schedctl corpus show 3f2a")
def show(
    cli: Cli,
    version: Annotated[
        str | None, typer.Argument(metavar=_VERSION, help="Its beginning is enough; default: the current one.")
    ] = None,
) -> None:
    """Show a version: its texts, what is held out, what was odd, who trains on it."""
    from scheduler.cli.commands.corpus_show import show_corpus

    show_corpus(cli, version)


@command(app, "schedctl corpus diff", "schedctl corpus diff 3f2a 9c01")
def diff(
    cli: Cli,
    old: Annotated[
        str | None, typer.Argument(metavar="OLD", help="Default: the current one before.", show_default=False)
    ] = None,
    new: Annotated[
        str | None, typer.Argument(metavar="NEW", help="Default: the current one.", show_default=False)
    ] = None,
) -> None:
    """Compare two versions text by text."""
    from scheduler.cli.commands.corpus_show import show_difference

    show_difference(cli, old, new)


@command(app, "schedctl corpus verify", "schedctl corpus verify 3f2a")
def verify(
    cli: Cli,
    version: Annotated[str | None, typer.Argument(metavar=_VERSION, help="Default: all.", show_default=False)] = None,
) -> None:
    """Check every byte of versions and their mixtures. Exits with 9 when one is damaged or missing.

    Nothing is changed.
    """
    from scheduler.cli.commands.corpus_show import verify_corpora

    verify_corpora(cli, version)


@command(app, "schedctl corpus leaks items.jsonl", "schedctl corpus leaks items.jsonl --model ufm@3")
def leaks(
    cli: Cli,
    file: Annotated[Path, typer.Argument(metavar="SET", help="A test set: a file of items.", show_default=False)],
    version: Annotated[
        str | None, typer.Option("--corpus", metavar=_VERSION, help="Default: the current one.", show_default=False)
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL[@N]", help="All that this and its ancestors were trained on instead."),
    ] = None,
) -> None:
    """Show which items of a test set stand in a corpus, also reformatted, reworded or with other names."""
    from scheduler.cli.commands.corpus_show import show_leaks

    show_leaks(cli, file, version, model)


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


def _progress(cli: Cli) -> Callable[[str], None]:
    """Return what shows how far a build is: on a terminal in one line, else a line for each step."""
    live, last = sys.stderr.isatty() and not cli.options.json, ""

    def say(how_far: str) -> None:
        nonlocal last
        if how_far != last:
            last = how_far
            if live:
                sys.stderr.write(f"\r\x1b[K{how_far}{chr(10) if how_far.endswith('95 % done') else ''}")
                sys.stderr.flush()
            else:
                cli.out.say(how_far)

    return say
