"""`schedctl corpus`: build, show, compare and verify versions of the training data, and change its sources."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from jobs.corpus.errors import CorpusError, NoSuchVersion
from jobs.corpus.export import export_corpus
from jobs.corpus.folder import difference
from jobs.corpus.manifest import CorpusManifest
from jobs.corpus.mixture import open_mixture
from jobs.corpus.read.sources import parse_source
from jobs.payload.scorers.items import BadItems, read_items
from jobs.problem import InvalidInput, NotFound, Refusal
from jobs.secret_scan import PERSONAL, require_no_secrets
from jobs.size import counted, size
from scheduler.cli.commands.job_options import allowing
from scheduler.cli.shell.command import argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Violations
from scheduler.cli.shell.names import listed, suggest
from scheduler.cli.shell.output import share
from scheduler.service.requests.checkpoint_files import new_folder
from scheduler.service.requests.models import meant
from scheduler.service.requests.queue import jobs_by_version
from scheduler.service.versions.item_sets import Trained, leaks_of, lineage, places_of
from scheduler.store import events
from scheduler.views.documents import corpus_json

_BUILDS = 1_000  # number of newest builds whose times are shown


@command("schedctl corpus build")
@allowing
def build(cli: Cli) -> None:
    """Build the corpus from its sources as they are now. The same text is the same version. New jobs get it.

    Jobs that train stay on the version that they have. Without this command the first launch of a job that needs a
    corpus builds it.
    """
    data = cli.app.training_data
    before = data.folder.current().version
    manifest = data.build(cli.who, _progress(cli))
    with cli.app.database.read() as tx:
        users = jobs_by_version(tx)
    others = sorted(name for version, names in users.items() if version not in {"", manifest.version} for name in names)
    cli.out.data({"corpus": corpus_json(manifest), "before": before, "jobs_elsewhere": others})
    same = " It was the current version before." if before == manifest.version else ""
    cli.out.line(f"Corpus {manifest.version}: {_amount(manifest)}, {_held_out(manifest)} held out.{same}")
    if before not in {"", manifest.version}:
        cli.out.say(f"What changed: schedctl corpus diff {before} {manifest.version}")
    if others:
        cli.out.say(
            f"{listed(others)} {'stays' if len(others) == 1 else 'stay'} on another version. "
            f"To change over: schedctl queue update {others[0]} --corpus newest"
        )
    cli.wake_daemon()


@command("schedctl corpus show", "schedctl corpus show 3f2a")
def show_corpus(
    cli: Cli,
    version: Annotated[str | None, argument("VERSION", "Its beginning is enough; default: the current one.")] = None,
) -> None:
    """Show a version: its texts, what is held out, what was odd, who trains on it."""
    data = cli.app.training_data
    current = data.folder.current()
    if version is None and not current.version:
        raise NotFound("no corpus yet", "none was built", "Build it: schedctl corpus build")
    manifest = data.folder.open(data.folder.find(version) if version else current.version)
    with cli.app.database.read() as tx:
        users = jobs_by_version(tx)
        built = {event.subject: event for event in events.tail(tx, limit=_BUILDS, kinds=("corpus.built",))}
    as_set = current.recipe == data.fingerprint()
    versions = [
        {
            "version": one,
            "current": one == current.version,
            "jobs": users.get(one, []),
            "built_at": built[one].at if one in built else None,
        }
        for one in data.folder.versions()
    ]
    sources = list(data.sources)
    cli.out.data({"corpus": corpus_json(manifest), "versions": versions, "sources": sources, "as_set": as_set})
    out, event = cli.out, built.get(manifest.version)
    cli.out.facts(
        ("version", manifest.version + (", the current one" if manifest.version == current.version else "")),
        ("built", f"{out.instant(event.at)} by {event.by}" if event else ""),
        ("texts", f"{_amount(manifest)}, {counted(manifest.duplicates, 'copy', 'copies')} left out"),
        ("clusters", f"{manifest.clusters:,}"),
        ("held out", _held_out(manifest)),
        ("jobs", ", ".join(users.get(manifest.version, []))),
        ("folder", str(manifest.folder)),
    )
    _tables(cli, manifest)
    others = [one for one in data.folder.versions() if one != manifest.version]
    rows = [(one, out.instant(built[one].at) if one in built else "", ", ".join(users.get(one, ()))) for one in others]
    out.table(("other version", "built", "~jobs"), rows, below=True)
    if not as_set:
        out.say("Settings or sources have changed since it was built. Build it again: schedctl corpus build")


def _progress(cli: Cli) -> Callable[[str], None]:
    """Return a function that shows a build's progress: on a terminal in a single line, otherwise a line per step."""
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


def _tables(cli: Cli, manifest: CorpusManifest) -> None:
    """Write the tables of a version: shares by source, stage and domain, overlaps, keywords and findings."""
    out, texts = cli.out, manifest.rows
    rows = [
        (kind, name, f"{one['texts']:,}", share(one["texts"], texts), size(one["bytes"]), f"{one['held_out']:,}")
        for kind in ("source", "stage", "domain")
        for name, one in sorted(manifest.shares.get(kind, {}).items(), key=lambda item: (item[0] == "none", item[0]))
    ]
    if not rows:  # built by an older version, which counted rows only
        counts: Mapping[str, Mapping[str, int]] = {"stage": manifest.stages, "domain": manifest.domains}
        rows = [
            (kind, name, f"{count:,}", share(count, texts), "", "")
            for kind, names in counts.items()
            for name, count in sorted(names.items())
        ]
    out.line()
    out.table(("by", "name", ">texts", ">share", ">size", ">held out"), rows)
    names = sorted(manifest.domains)
    if manifest.overlap:
        out.line()
        table = [(one, *(_both(manifest, one, other) for other in names)) for one in names]
        out.table(("of the texts of", *(f"->also {name}" for name in names)), table)
    words = {
        name: sorted(counts_of.items(), key=lambda one: (-one[1], one[0]))
        for name, counts_of in sorted(manifest.keywords.items())
    }
    cells = [(name, ", ".join(f"{word} {share(count, texts)}" for word, count in by)) for name, by in words.items()]
    out.table(("domain", "~texts that hold its keywords"), cells, below=True)
    kinds = [(kind, f"{count:,}") for kind, count in sorted(manifest.findings.items())]
    out.table(("finding", ">times"), kinds, below=True)
    if manifest.findings:
        out.say(f"Where they are: {manifest.findings_path}; what they mean: docs/corpus.md")


def _both(manifest: CorpusManifest, one: str, other: str) -> str:
    """Return the share of the texts of domain ``one`` that also belong to ``other``; empty for the same domain."""
    first, second = sorted((one, other))
    shared = manifest.overlap.get(first, {}).get(second, 0)
    return "" if one == other else share(shared, manifest.domains[one])


@command("schedctl corpus diff", "schedctl corpus diff 3f2a 9c01")
def show_difference(
    cli: Cli,
    old: Annotated[str | None, argument("OLD", "Default: the current one before.")] = None,
    new: Annotated[str | None, argument("NEW", "Default: the current one.")] = None,
) -> None:
    """Compare two versions text by text."""
    folder = cli.app.training_data.folder
    current = folder.current()
    before = folder.find(old) if old else current.before
    after = folder.find(new) if new else current.version
    if not before or not after:
        raise NotFound("nothing to compare", "there was no version before the current one", "See: schedctl corpus show")
    changes = difference(folder.open(before), folder.open(after))
    cli.out.data({"difference": asdict(changes)})
    cli.out.facts(
        ("from", changes.old),
        ("to", changes.new),
        ("texts in both", f"{changes.same:,}"),
        ("added", _by_source(changes.added)),
        ("removed", _by_source(changes.removed)),
        ("held out now", f"{changes.now_held_out:,} that were trained on" if changes.now_held_out else ""),
        ("trained on now", f"{changes.now_trained:,} that were held out" if changes.now_trained else ""),
        ("tagged otherwise", f"{changes.retagged:,}" if changes.retagged else ""),
    )
    rows = [
        (name, *("" if value is None else json.dumps(value) for value in pair))
        for name, pair in changes.parameters.items()
    ]
    cli.out.table(("parameter", "~from", "~to"), rows, below=True)
    if changes.now_held_out:
        cli.out.say("A model that was trained on the old version knows these texts: their loss flatters it.")


@command("schedctl corpus leaks items.jsonl", "schedctl corpus leaks items.jsonl --model ufm@3")
def show_leaks(
    cli: Cli,
    file: Annotated[Path, argument("SET", "A test set: a file of items.")],
    version: Annotated[str | None, option("--corpus VERSION", "Default: the current one.")] = None,
    model: Annotated[
        str | None, option("--model MODEL[@N]", "Compare with what this and its ancestors were trained on instead.")
    ] = None,
) -> None:
    """Show which items of a test set stand in a corpus, also reformatted, reworded or with other names."""
    folder = cli.app.training_data.folder
    try:
        items = read_items(file).items
    except BadItems as error:
        raise InvalidInput(f"{file} is no test set", str(error), "docs/gates.md shows one") from None
    trained: list[tuple[str, Trained]]
    if model is not None:
        with cli.app.database.read() as tx:
            trained = lineage(tx, meant(tx, model))
    else:
        trained = [("a job that trains on it", folder.open(folder.find(version or folder.current().version)).version)]
    leaks = leaks_of(items, trained, places_of(trained, folder))
    cli.out.data({"leaks": leaks})
    for sentence, row in zip(leaks["sentences"], leaks["corpora"], strict=True):
        cli.out.line(sentence)
        for item, leak in row.get("items", {}).items():
            cli.out.line(f"  {item}: {leak['kind']}, in {leak['source']}")


@command("schedctl corpus export ./corpus", "schedctl corpus export ./corpus --parquet --corpus 3f2a")
def export(
    cli: Cli,
    target: Annotated[Path, argument("DIR", "A new or empty folder.")],
    version: Annotated[str | None, option("--corpus VERSION", "Default: the current one.")] = None,
    parquet: Annotated[bool, option("--parquet", "Parquet instead of JSON lines; needs pyarrow.")] = False,
) -> None:
    """Write a version for others: its texts, a dataset card, and a Croissant file."""
    folder = cli.app.training_data.folder
    manifest = folder.open(folder.find(version or folder.current().version))
    with new_folder(target) as work:
        work.mkdir()
        files = export_corpus(manifest, work, parquet=parquet)
    cli.out.data({"version": manifest.version, "folder": str(target.absolute()), "files": files})
    cli.out.line(f"Corpus {manifest.version} is in {target}: {counted(len(files), 'file')}.")


@command("schedctl corpus verify", "schedctl corpus verify 3f2a")
def verify_corpora(cli: Cli, version: Annotated[str | None, argument("VERSION", "Default: all.")] = None) -> None:
    """Check every byte of versions and their mixtures. Exits with 9 if one is damaged or missing. Changes nothing."""
    folder = cli.app.training_data.folder
    with cli.app.database.read() as tx:
        users = jobs_by_version(tx)
    named = {one for one in users if one} | ({folder.current().version} - {""})
    versions = [folder.find(version)] if version else [*folder.versions(), *sorted(named - set(folder.versions()))]
    checked: list[dict[str, Any]] = []
    for one in versions:
        why = ""
        try:
            manifest = folder.open(one, verify=True)
            for mixture in sorted(manifest.folder.glob("mixtures/[!.]*")):
                if mixture.is_dir():
                    open_mixture(mixture, verify=True)
        except NoSuchVersion:
            why = f"it is not here, and {listed(users.get(one, [])) or 'the list of versions'} needs it"
        except CorpusError as error:
            why = str(error)
        checked.append({"version": one, "good": not why, "why": why})
        cli.out.line(f"{one}  {f'bad: {why}' if why else 'good'}")
    cli.out.data({"versions": checked})
    bad = [one for one in checked if not one["good"]]
    if bad:
        remedy = "From the same sources and settings the same version is built: schedctl corpus build"
        raise Violations(f"{len(bad)} of {counted(len(checked), 'version')} cannot be used", str(bad[0]["why"]), remedy)
    cli.out.say(f"{counted(len(checked), 'version')} found whole.")


@command("schedctl corpus scan", "schedctl corpus scan 3f2a --allow-secrets")
@allowing
def scan(
    cli: Cli,
    version: Annotated[str | None, argument("VERSION", "Its beginning is enough; default: the current one.")] = None,
) -> None:
    """Search a version for secrets and personal data. Exits with 6 when it holds any.

    E-mail addresses, phone numbers, IBANs and card numbers count as personal data. No upload is needed.
    """
    folder = cli.app.training_data.folder
    manifest = folder.open(folder.find(version or folder.current().version))
    require_no_secrets(folder.root, sorted(manifest.folder.glob("*.jsonl")), PERSONAL)
    cli.out.data({"corpus": manifest.version})
    cli.out.line(f"Corpus {manifest.version} holds no secrets and no personal data that this program finds.")


def _amount(manifest: CorpusManifest) -> str:
    return f"{counted(manifest.rows, 'text')}, {size(manifest.train_text_bytes + manifest.held_out.text_bytes)}"


def _held_out(manifest: CorpusManifest) -> str:
    whole = manifest.train_text_bytes + manifest.held_out.text_bytes
    return f"{counted(manifest.held_out.rows, 'text')}, {share(manifest.held_out.text_bytes, whole)} of the bytes"


def _by_source(counts: Mapping[str, int]) -> str:
    parts = ", ".join(f"{count:,} of {name}" for name, count in sorted(counts.items()))
    return f"{sum(counts.values()):,}" + (f": {parts}" if parts else "")


@command("schedctl corpus add ~/garden/episodes")
def add(cli: Cli, source: Annotated[str, argument("SOURCE", "A file, a folder, or stdlib.")]) -> None:
    """Add a source to those of the settings. The next version that is built has it."""
    parse_source(source)  # refuses a missing file or folder
    source = source if source == "stdlib" else str(Path(source).expanduser().resolve())
    data = cli.app.training_data
    is_listed = source in data.sources
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
    if entry is None and {source, path} & set(data.sources):
        where = cli.app.settings.origin("corpus.sources")
        raise Refusal(f"cannot drop {source}", f"it stands in {where}", "Remove it there, from corpus.sources")
    if entry is None:
        raise NotFound("unknown source", f"{source} was not added", suggest(source, added, "schedctl corpus show"))
    data.folder.change_added(drop=[entry])
    _tell_sources(cli, f"{entry} is no source any more.", changed=True)


def _tell_sources(cli: Cli, sentence: str, *, changed: bool) -> None:
    sources = list(cli.app.training_data.sources)
    cli.out.data({"sources": sources, "changed": changed})
    cli.out.line(f"{sentence} All sources: {', '.join(sources)}")
    if changed:
        cli.out.say("It counts in the next version: schedctl corpus build")
