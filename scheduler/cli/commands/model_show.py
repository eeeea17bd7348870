"""`schedctl models`: list, show, compare, copy and export versions."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from jobs.size import size
from platforms.publish import publish_in_mlflow, publish_on_hub
from scheduler.cli.commands.complete import NamedVersion, VersionName, job_names
from scheduler.cli.shell.command import Listing, Tables, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.output import Output, amount, figure, hours
from scheduler.service.requests import checkpoint_files
from scheduler.service.requests.checkpoint_files import Merge, export, is_adapter
from scheduler.service.requests.models import meant
from scheduler.store import checkpoints, jobs, versions
from scheduler.store.evaluations import StoredVerdict
from scheduler.views import models
from scheduler.views.models import Model, ModelCost, VersionFacts

_COMPARED = ("step", "state", "parent", "code", "environment", "corpus", "mixture", "digest")
_FIGURES = ("value", "before", "items", "clusters", "low", "high", "smallest_effect")  # columns of a check result
_DIGEST_CHARACTERS = 16  # characters of a digest that are shown
_WORDS_SHOWN = 100  # characters of an example that are shown


def show_versions(out: Output, listed: Sequence[Model]) -> bool:
    """Write the versions of models, and which models a person must promote; return whether there is a version."""
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


@command("schedctl models list", "schedctl models list ufm", kind=Listing)
def list_models(
    cli: Cli, model: Annotated[str | None, argument("MODEL", "Only of this model.", autocompletion=job_names)] = None
) -> None:
    """List models and what became of their versions."""
    with cli.app.database.read() as tx:
        listed = models.models(tx) if model is None else [models.model(tx, model)]
    cli.out.data({"models": [asdict(one) for one in listed]})
    if not show_versions(cli.out, listed):
        cli.out.say("No versions yet. One is made when a model with [evaluation] has saved enough: docs/models.md")


@command("schedctl models show ufm", "schedctl models show ufm@3", kind=Tables)
def show_version(cli: Cli, version: NamedVersion) -> None:
    """Show a version: lineage, evaluation results, cost, where it is deployed."""
    with cli.app.database.read() as tx:
        facts = models.facts(tx, meant(tx, version))
        family = models.models(tx)
    cli.out.data({"version": facts.document()})
    cli.out.facts(*_facts(facts))
    for verdict in facts.verdicts:
        _show_verdict(cli, verdict)
    for one in facts.overrules:
        cli.out.line()
        cli.out.line(f"{one.by} changed {one.was} to {one.verdict}, {cli.out.instant(one.at)}: {one.why}")
    cli.out.line()
    for line in models.tree(family, {one.in_force: "promoted" for one in family if one.in_force}):
        cli.out.line(line)


@command("schedctl models compare ufm@2 ufm@3")
def compare(cli: Cli, first: VersionName, second: VersionName) -> None:
    """Compare two versions: what they are made of, and what quality gates measured."""
    with cli.app.database.read() as tx:
        both = [models.facts(tx, versions.named(tx, name)) for name in (first, second)]
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


@command("schedctl models pull ufm@3 ./ufm-3")
def pull(cli: Cli, version: NamedVersion, folder: Annotated[Path, argument("DIR", "A new or empty folder.")]) -> None:
    """Copy a version's checkpoint out of the store, checked."""
    with cli.app.database.read() as tx:
        chosen = meant(tx, version)
        manifest = checkpoints.get(tx, chosen.checkpoint).manifest
    checkpoint_files.pull(cli.app.artifacts, manifest, folder)
    names = [component.name for component in manifest.components]
    cli.out.data({"version": chosen.name, "folder": str(folder.absolute()), "files": names})
    cli.out.line(f"{chosen.name} (step {chosen.step}) is in {folder} ({size(manifest.size)}).")


@command(
    "schedctl models export ufm@3 ./ufm-3",
    "schedctl models export ufm@3 ./ufm-3 --merge --base ~/deepseek-coder-6.7b-base --python ~/torch/bin/python",
    "schedctl models export ufm@3 hf:org/ufm",
)
def export_version(
    cli: Cli,
    version: NamedVersion,
    place: Annotated[str, argument("DIR", "A new or empty folder, hf:org/name[@branch] or mlflow:NAME.")],
    merge: Annotated[bool, option("--merge", "Of an adapter: one model with its base, in 16 bit.")] = False,
    base: Annotated[str, option("--base DIR", "The base's folder, or name on the Hub.")] = "",
    python: Annotated[str, option("--python FILE", "A Python with torch, transformers, peft.")] = "python3",
) -> None:
    """Make a folder for others: weights, a model card, digests."""
    if not merge and base:
        raise UsageFault("--base is for --merge", "an adapter is exported without its base", "Add --merge")
    with cli.app.database.read() as tx:
        chosen = meant(tx, version)
        document = models.facts(tx, chosen).document()
        manifest = checkpoints.get(tx, chosen.checkpoint).manifest
        record = jobs.find(tx, chosen.model)
    sources = [one.source for one in record.spec.inputs if one.name == "base"] if record else []
    home = next((source[3:].partition("#")[0].partition("@")[0] for source in sources if source.startswith("hf:")), "")
    kind, _, where = place.partition(":")
    wanted = _merge(base, sources, python) if merge else None
    card = _model_card(document, home, adapter=is_adapter(manifest) and wanted is None)
    files = (cli.app.artifacts, chosen, manifest, card, document)
    if kind in {"hf", "mlflow"}:
        with tempfile.TemporaryDirectory(prefix="schedctl-export-") as scratch:
            folder = Path(scratch) / "model"
            exported = export(*files, folder, base=home, wanted=wanted)
            path = (
                publish_on_hub(folder, where, chosen.name, cli.app.hub_token())
                if kind == "hf"
                else publish_in_mlflow(folder, where, chosen.name, document)
            )
    else:
        exported = export(*files, Path(place), base=home, wanted=wanted)
        path = str(Path(place).absolute())
    data = {"folder": path, "files": list(exported.files), "left_out": list(exported.left_out)}
    cli.out.data({"version": chosen.name, **data})
    where = path if kind in {"hf", "mlflow"} else place
    cli.out.line(f"{chosen.name} is in {where}: {', '.join(exported.files)}.")
    if exported.left_out:
        cli.out.say(f"Left out, as of use to its training alone or not plain data: {', '.join(exported.left_out)}")


def _merge(base: str, sources: Sequence[str], python: str) -> Merge:
    """Return the settings of a merge with ``base``, else with the first folder in ``sources``. Raises UsageFault."""
    folder = base or next((source for source in sources if Path(source).is_dir()), "")
    if not folder:
        reason = f", which is {sources[0]} and no folder here" if sources else ", of which its job names none"
        raise UsageFault(
            "--merge needs --base", f"weights are added to those of the base{reason}", "Give its folder: --base DIR"
        )
    return Merge(folder, python)


def _facts(facts: VersionFacts) -> list[tuple[str, str]]:
    """Return the facts about a version as names and values; unknown ones are left out."""
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
    """Write one evaluation result: the outcome of each quality gate, examples, leak check and test set."""
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
    """Return the measured values of the newest evaluation result, by metric."""
    newest = facts.verdicts[-1].evidence.get("findings", ()) if facts.verdicts else ()
    return {one["gate"]["metric"]: one["value"] for one in newest if one["value"] is not None}


def _plain(value: Any) -> str:
    text = "" if value is None else str(value)
    return text[:_DIGEST_CHARACTERS] if len(text) == 64 and text.isalnum() else text  # a digest


def _cost(cost: ModelCost) -> str:
    money = f", {amount(cost.microdollars, 'microdollars')}" if cost.microdollars else ""
    return f"{hours(cost.seconds)}{money}"


# The model card of a version, in the format of the Hugging Face Hub. It states measured facts only.
def _model_card(facts: Mapping[str, Any], base: str, *, adapter: bool = False) -> str:
    """Return the card of a version as Markdown. ``facts`` is the document of ``schedctl models show --json``.

    ``base`` is the Hub repository of the base model, empty if unknown; local paths are never shown. ``adapter`` says
    that the version is an adapter, which works only together with its base.
    """
    head: dict[str, Any] = {"tags": ["uff-scheduler"], "uff_version": facts["name"], "uff_step": facts["step"]}
    if base:
        head |= {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    if facts["parent"]:
        head["uff_parent"] = facts["parent"]
    if results := _results(facts):
        head["model-index"] = [{"name": facts["name"], "results": results}]
    # The Hub reads this head as YAML, and every JSON value is valid YAML.
    front = "".join(f"{key}: {json.dumps(value)}\n" for key, value in head.items())
    return f"---\n{front}---\n\n# {facts['name']}\n\n{_body(facts)}"


def _body(facts: Mapping[str, Any]) -> str:
    rows = [
        ("state", facts["state"] + (", promoted" if facts["in_force"] else "")),
        ("step", f"{facts['step']:,}"),
        ("began with", facts["parent"] or "nothing"),
        ("content", _digest(facts["digest"])),
        ("code", _digest(facts["code"])),
        ("packages", _digest(facts["environment"])),
        ("corpus", facts["corpus"] or "none"),
        ("mixture", facts["mixture"] or "the whole corpus" if facts["corpus"] else "none"),
        ("training", _card_cost(facts["training"])),
        ("evaluation", _card_cost(facts["evaluating"])),
    ]
    lines = ["| what | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows), ""]
    for verdict in facts["verdicts"]:
        lines += [f"## Judged {verdict['verdict']}", "", f"{verdict['evidence'].get('reason', '')}", ""]
        lines += ["| gate | outcome | value | items | clusters | interval | smallest effect |", "|" + " --- |" * 7]
        lines += [_gate_row(finding) for finding in verdict["evidence"].get("findings", ())]
        lines.append("")
    for overrule in facts["overrules"]:
        lines += [
            f"Overruled by {overrule['by']}: {overrule['was']} became {overrule['verdict']}, because {overrule['why']}",
            "",
        ]
    return "\n".join(lines)


def _gate_row(finding: Mapping[str, Any]) -> str:
    gate = finding["gate"]
    interval = f"{figure(finding['low'])} to {figure(finding['high'])}" if finding["low"] is not None else "unknown"
    cells = (
        f"{gate['kind']} on {gate['metric']}",
        finding["outcome"],
        figure(finding["value"]),
        str(finding["items"]),
        str(finding["clusters"]),
        interval,
        figure(finding["smallest_effect"]),
    )
    return f"| {' | '.join(cells)} |"


def _results(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of the newest evaluation result, in the Hub's form of results."""
    newest = facts["verdicts"][-1] if facts["verdicts"] else None
    if newest is None:
        return []
    metrics = [
        {"type": finding["gate"]["metric"], "value": finding["value"]}
        for finding in newest["evidence"].get("findings", ())
        if finding["value"] is not None
    ]
    digest = newest["set_digest"]
    data = {"type": "held-out items", "name": digest[:_DIGEST_CHARACTERS], "revision": digest}
    return [{"task": {"type": "text-generation"}, "dataset": data, "metrics": metrics}] if metrics else []


def _digest(digest: str | None) -> str:
    return f"`{digest[:_DIGEST_CHARACTERS]}`" if digest else "none of its own"


def _card_cost(cost: Mapping[str, int]) -> str:
    money = f", ${cost['microdollars'] / 1e6:.2f}" if cost["microdollars"] else ""
    return f"{cost['seconds'] / 3_600:.1f} h{money}"
