"""Versions shown: lists, one with all its verdicts, two side by side, and one as a folder for others."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import amount, figure, hours
from scheduler.service.requests.models import meant, meant_exactly
from scheduler.store.evaluations import StoredVerdict
from scheduler.views import models
from scheduler.views.models import ModelCost, VersionFacts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.cli.shell.output import Output
    from scheduler.service.requests.model_export import Merge
    from scheduler.views.models import Model

_COMPARED = ("step", "state", "parent", "code", "environment", "corpus", "mixture", "digest")
_FIGURES = ("value", "before", "items", "clusters", "low", "high", "smallest_effect")  # of what a gate found
_DIGEST_CHARACTERS = 16  # characters of a digest
_WORDS_SHOWN = 100


def show_versions(out: Output, listed: Sequence[Model]) -> bool:
    """Write the versions of models, and which of these a person must promote; return whether there are versions."""
    versions = [version for one in listed for version in one.versions]
    if versions:
        out.listing(
            versions,
            {
                "version": lambda one: one.name,
                ">step": lambda one: str(one.step),
                "state": lambda one: one.state,
                "promoted": lambda one: "yes" if one.in_force else "",
                "-initialised from": lambda one: one.parent,
                "-deployed to": lambda one: ", ".join(one.serving),
                "--made": lambda one: out.moment(one.created_at),
                "~why": lambda one: one.why,
            },
        )
    for one in listed:
        if one.paused:
            remedy = f"schedctl models promote {one.name}@N"
            out.say(f"{one.name}: a version was rolled back, so a person must promote the next one: {remedy}")
    return bool(versions)


def list_models(cli: Cli, name: str | None) -> None:
    """List models, or one. Raises UnknownJob."""
    with cli.app.database.read() as tx:
        listed = models.models(tx) if name is None else [models.model(tx, name)]
    cli.out.data({"models": [asdict(one) for one in listed]})
    if not show_versions(cli.out, listed):
        cli.out.say("No versions yet. One is made when a model with [evaluation] has saved enough: docs/models.md")


def show_version(cli: Cli, name: str) -> None:
    """Show one version, and the tree that it stands in. Raises NotFound, UnknownJob, Refusal."""
    with cli.app.database.read() as tx:
        facts = models.facts(tx, meant(tx, name))
        family = models.models(tx)
    cli.out.data({"version": facts.document()})
    cli.out.facts(_facts(facts))
    for verdict in facts.verdicts:
        _show_verdict(cli, verdict)
    for ruling in facts.overrules:
        cli.out.line()
        cli.out.line(
            f"{ruling.by} changed {ruling.was} to {ruling.verdict}, {cli.out.instant(ruling.at)}: {ruling.why}"
        )
    cli.out.line()
    for line in models.tree(family, {one.in_force: "promoted" for one in family if one.in_force}):
        cli.out.line(line)


def compare_versions(cli: Cli, first: str, second: str) -> None:
    """Show what two versions are made of and what was measured of them. Raises NotFound."""
    with cli.app.database.read() as tx:
        both = [models.facts(tx, meant_exactly(tx, name)) for name in (first, second)]
    documents = [facts.document() for facts in both]
    measured = [_measured(facts) for facts in both]
    metrics = sorted({*measured[0], *measured[1]})
    values = {name: [one.get(name) for one in measured] for name in metrics}
    values_by_metric = [{"metric": name, "values": pair} for name, pair in values.items()]
    cli.out.data({"versions": documents, "metrics": values_by_metric})
    rows = [(key, *(_plain(document[key]) for document in documents)) for key in _COMPARED]
    rows += [("cost", *(_cost(facts.training + facts.evaluating) for facts in both))]
    rows += [(name, *map(figure, pair)) for name, pair in values.items()]
    cli.out.table(("", first, second), rows)
    if metrics:
        cli.out.say("Figures of other test sets or scorers cannot be compared; a gate of kind better decides by item.")


def export_version(cli: Cli, name: str, place: str, *, merging: bool, base: str, python: str) -> None:
    """Make a folder of a version for others, or publish it as one of the Hub or MLflow.

    ``merging``: of an adapter, one model with its base, which is the folder ``base`` or the job's input of that name.
    Raises NotFound, Refusal, StoreError, TargetError.
    """
    from platforms.publish import publish_in_mlflow, publish_on_hub
    from scheduler.report.model_card import model_card
    from scheduler.service.requests.model_export import export, is_adapter
    from scheduler.store import checkpoints, jobs

    with cli.app.database.read() as tx:
        version = meant(tx, name)
        document = models.facts(tx, version).document()
        manifest = checkpoints.get(tx, version.checkpoint).manifest
        record = jobs.find(tx, version.model)
    sources = [one.source for one in record.spec.inputs if one.name == "base"] if record else []
    home = next((source[3:].partition("#")[0].partition("@")[0] for source in sources if source.startswith("hf:")), "")
    kind, _, where = place.partition(":")
    wanted = _merge(base, sources, python) if merging else None
    card = model_card(document, home, adapter=is_adapter(manifest) and wanted is None)
    files = (cli.app.artifacts, version, manifest, card, document)
    if kind in {"hf", "mlflow"}:
        with tempfile.TemporaryDirectory(prefix="schedctl-export-") as scratch:
            folder = Path(scratch) / "model"
            exported = export(*files, folder, base=home, wanted=wanted)
            path = (
                publish_on_hub(folder, where, version.name, cli.app.hub_token())
                if kind == "hf"
                else publish_in_mlflow(folder, where, version.name, document)
            )
    else:
        exported = export(*files, Path(place), base=home, wanted=wanted)
        path = str(Path(place).absolute())
    data = {"folder": path, "files": list(exported.files), "left_out": list(exported.left_out)}
    cli.out.data({"version": version.name, **data})
    where = path if kind in {"hf", "mlflow"} else place
    cli.out.line(f"{version.name} is in {where}: {', '.join(exported.files)}.")
    if exported.left_out:
        cli.out.say(f"Left out, as of use to its training alone or not plain data: {', '.join(exported.left_out)}")


def _merge(base: str, sources: Sequence[str], python: str) -> Merge:
    """Return how to merge. Raises UsageFault where no base is given and the job's own is no folder here."""
    from scheduler.service.requests.model_export import Merge

    folder = base or next((source for source in sources if Path(source).is_dir()), "")
    if not folder:
        reason = f", which is {sources[0]} and no folder here" if sources else ", of which its job names none"
        raise UsageFault(
            "--merge needs --base", f"weights are added to those of the base{reason}", "Give its folder: --base DIR"
        )
    return Merge(folder, python)


def _facts(facts: VersionFacts) -> list[tuple[str, str]]:
    listed, version = facts.listed, facts.version
    parent = listed.parent or "random weights"
    evaluated = [f"{one.job} {one.state}{f': {one.error}' if one.error else ''}" for one in facts.evaluations]
    rows = [
        ("version", f"{listed.name}{', promoted' if listed.in_force else ''}"),
        ("state", f"{version.state}{f': {version.why}' if version.why else ''}"),
        ("checkpoint", f"step {version.step}, {version.checkpoint}"),
        ("content", version.digest),
        ("initialised from", f"{parent}, which was rolled back since" if facts.returned_parent else parent),
        ("initialised from it", ", ".join(facts.children)),
        ("code", version.code or ""),
        ("packages", version.environment or ""),
        ("corpus", " ".join(filter(None, (version.corpus, version.mixture)))),
        ("training", _cost(facts.training)),
        ("evaluation", _cost(facts.evaluating) if facts.evaluations else ""),
        *(("evaluated by", sentence) for sentence in evaluated),
        *(("target", f"{one.target} {one.state}{f': {one.why}' if one.why else ''}") for one in facts.deployments),
    ]
    return [(name, value) for name, value in rows if value]


def _show_verdict(cli: Cli, verdict: StoredVerdict) -> None:
    evidence = verdict.evidence
    cli.out.line()
    against = f", compared with {evidence['in_force']}" if evidence.get("in_force") else ""
    cli.out.line(f"{verdict.verdict} {cli.out.instant(verdict.at)}{against}: {evidence.get('reason', '')}")
    findings = evidence.get("findings", ())
    cli.out.table(
        (
            *("~gate", "outcome", ">value", "->before", "-->items", "--->clusters", "->low", "->high"),
            *("-->smallest effect", "--test"),
        ),
        [
            (_gate(one["gate"]), one["outcome"], *(figure(one[name]) for name in _FIGURES), one["test"])
            for one in findings
        ],
    )
    for finding in findings:
        for example in finding["examples"]:
            before = "" if example["before"] is None else f", before {example['before']:.4g}"
            text = example["text"][:_WORDS_SHOWN]
            cli.out.line(
                f"  {finding['gate']['metric']} of {example['item']}: {example['value']:.4g}{before}  {text}".rstrip()
            )
    for sentence in (evidence.get("leaks") or {}).get("sentences", ()):
        cli.out.line(f"  leak check: {sentence}")
    for note in evidence.get("notes", ()):
        cli.out.line(f"  scored so: {note}")
    cli.out.line(
        f"  test set {verdict.set_digest[:_DIGEST_CHARACTERS]}, used for {evidence.get('set_uses', 1)} decisions so far"
    )


def _gate(gate: Mapping[str, Any]) -> str:
    limits = [f"{word} {gate[key]:g}" for word, key in (("at least", "minimum"), ("at most", "maximum")) if key in gate]
    return " ".join([gate["metric"], gate["kind"], *limits])


def _measured(facts: VersionFacts) -> dict[str, float]:
    """Return what the newest verdict measured, by metric."""
    newest = facts.verdicts[-1].evidence.get("findings", ()) if facts.verdicts else ()
    return {one["gate"]["metric"]: one["value"] for one in newest if one["value"] is not None}


def _plain(value: Any) -> str:
    text = "" if value is None else str(value)
    return text[:_DIGEST_CHARACTERS] if len(text) == 64 and text.isalnum() else text  # a digest


def _cost(cost: ModelCost) -> str:
    money = f", {amount(cost.microdollars, 'microdollars')}" if cost.microdollars else ""
    return f"{hours(cost.seconds)}{money}"
