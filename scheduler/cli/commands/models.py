"""`schedctl models`: versions of models, how they were judged, which one is promoted."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from jobs.size import size
from scheduler.cli.commands.complete import job_names, version_names
from scheduler.cli.shell.command import REASON, Listing, Tables, command, group
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault

app = group("Versions of models: list, show, compare, evaluate, promote, roll back, export.", "list")

Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model's job.", autocompletion=job_names)]
Version = Annotated[
    str, typer.Argument(metavar="MODEL@N", help="A version, such as ufm@3.", autocompletion=version_names)
]
Named = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@N]",
        help="A version, or a model: its promoted version, else its newest.",
        autocompletion=version_names,
    ),
]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]
Reason = Annotated[str, typer.Option(*REASON, metavar="TEXT", help="It is kept and shown.", show_default=False)]


@command(app, "schedctl models list", "schedctl models list ufm", name="list", kind=Listing)
def list_(
    cli: Cli,
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Only of this model.", autocompletion=job_names)
    ] = None,
) -> None:
    """List models and what became of their versions."""
    from scheduler.cli.commands.model_show import list_models

    list_models(cli, model)


@command(app, "schedctl models show ufm", "schedctl models show ufm@3", kind=Tables)
def show(cli: Cli, version: Named) -> None:
    """Show a version: lineage, evaluation results, cost, where it is deployed."""
    from scheduler.cli.commands.model_show import show_version

    show_version(cli, version)


@command(app, "schedctl models compare ufm@2 ufm@3")
def compare(cli: Cli, first: Version, second: Version) -> None:
    """Compare two versions: what they are made of, and what quality gates measured."""
    from scheduler.cli.commands.model_show import compare_versions

    compare_versions(cli, first, second)


@command(
    app, "schedctl models evaluate ufm", "schedctl models evaluate ufm --step 4000", "schedctl models evaluate ufm@3"
)
def evaluate(
    cli: Cli,
    model: Annotated[str, typer.Argument(metavar="MODEL[@N]", help="A model, or a version to evaluate again.")],
    step: Annotated[int | None, typer.Option("--step", min=1, help="Default: its newest checkpoint.")] = None,
) -> None:
    """Create a version from a checkpoint and queue its evaluation. The daemon does so when a model is done."""
    from scheduler.service.requests import models

    if step is not None and "@" in model:
        raise UsageFault(f"--step {step} and {model} do not go together", "a version has its step", "Leave out one")
    app = cli.app
    version, job = models.evaluate(
        app.database,
        app.artifacts,
        lambda: app.training_data.folder,
        app.bundle,
        model,
        step,
        keep_seconds=app.policy.retention.grace_seconds,
        now=cli.now,
        by=cli.who,
    )
    cli.out.data({"version": {**asdict(version), "name": version.name}, "job": job})
    cli.out.line(f"{version.name} (step {version.step}) is evaluated by the job {job}.")
    cli.out.say(f"Its result, when there is one: schedctl models show {version.name}")
    cli.wake_daemon()


@command(app, 'schedctl models promote ufm@3 --reason "better on what users ask"')
def promote(cli: Cli, version: Version, reason: Reason = "") -> None:
    """Promote an accepted version. The version before is retired and can be promoted again."""
    from scheduler.service.requests import models

    promoted = models.promote(cli.app.database, version, reason, cli.now, cli.who)
    _changed(cli, promoted.model, f"{promoted.name} is promoted.")


@command(app, 'schedctl models rollback ufm --reason "invents modules"')
def rollback(cli: Cli, model: Model, reason: Reason = "") -> None:
    """Reject the promoted version and promote the one before again.

    After that, no version is promoted automatically until a person promotes one.
    """
    from scheduler.service.requests import models

    withdrawn, back = models.rollback(cli.app.database, model, _needed(reason), cli.now, cli.who)
    _changed(cli, model, f"{withdrawn.name} is rolled back; {f'{back.name} is' if back else 'no version is'} promoted.")


@command(app, "schedctl models watch ufm", "schedctl models watch ufm --votes votes.jsonl --rollback")
def watch(
    cli: Cli,
    version: Named,
    votes: Annotated[
        Path | None, typer.Option("--votes", metavar="FILE", help="Default: what the model's evaluation names.")
    ] = None,
    usual: Annotated[
        float | None, typer.Option("--usual", min=0.001, max=0.999, help="Share of worse votes that is no harm.")
    ] = None,
    rollback: Annotated[bool, typer.Option("--rollback", help="Take it back if harm is shown.")] = False,
) -> None:
    """Show what users' votes say of a version. Look as often as you like. Exits with 9 where they show harm."""
    from scheduler.cli.commands import models_deploy

    models_deploy.watch(cli, version, votes, usual, rollback=rollback)


@command(app, "schedctl models ab", "schedctl models ab lr", "schedctl models ab lr --start", kind=Tables)
def ab(
    cli: Cli,
    test: Annotated[str | None, typer.Argument(metavar="TEST", help="One of [[ab]]; all are listed without.")] = None,
    start: Annotated[bool, typer.Option("--start", help="Queue both arms for its next day.")] = False,
) -> None:
    """Show what an A/B test found, or queue its runs. Runs, not items, are its evidence."""
    from scheduler.cli.commands import models_ab

    if test is None:
        if start:
            raise UsageFault("--start needs a TEST", "each is queued by itself", "See: schedctl models ab")
        models_ab.list_tests(cli)
    elif start:
        models_ab.start(cli, test)
    else:
        models_ab.show(cli, test)


@command(
    app,
    'schedctl models overrule ufm@3 --reason "item 17 of the set is wrong"',
    'schedctl models overrule ufm@3 --reject --reason "unsafe code"',
)
def overrule(
    cli: Cli,
    version: Version,
    reject: Annotated[bool, typer.Option("--reject", help="Refuse it; it is accepted if this is left out.")] = False,
    reason: Reason = "",
) -> None:
    """Replace the result of an evaluation by yours. Both stay on record, with your reason."""
    from scheduler.service.requests import models

    verdict: Literal["accepted", "rejected"] = "rejected" if reject else "accepted"
    overruled = models.overrule(cli.app.database, version, verdict, _needed(reason), cli.now, cli.who)
    _changed(cli, overruled.model, f"{overruled.name} is {overruled.state}.")


@command(app, "schedctl models pull ufm@3 ./ufm-3")
def pull(cli: Cli, version: Named, folder: Folder) -> None:
    """Copy a version's checkpoint out of the store, checked."""
    from scheduler.service.requests import checkpoint_files, models
    from scheduler.store import checkpoints

    with cli.app.database.read() as tx:
        chosen = models.meant(tx, version)
        manifest = checkpoints.get(tx, chosen.checkpoint).manifest
    checkpoint_files.pull(cli.app.artifacts, manifest, folder)
    names = [component.name for component in manifest.components]
    cli.out.data({"version": chosen.name, "folder": str(folder.absolute()), "files": names})
    cli.out.line(f"{chosen.name} (step {chosen.step}) is in {folder} ({size(manifest.size)}).")


@command(
    app,
    "schedctl models export ufm@3 ./ufm-3",
    "schedctl models export ufm@3 ./ufm-3 --merge --base ~/deepseek-coder-6.7b-base --python ~/torch/bin/python",
    "schedctl models export ufm@3 hf:org/ufm",
)
def export(
    cli: Cli,
    version: Named,
    place: Annotated[
        str, typer.Argument(metavar="DIR", help="A new or empty folder, hf:org/name[@branch] or mlflow:NAME.")
    ],
    merge: Annotated[bool, typer.Option("--merge", help="Of an adapter: one model with its base, in 16 bit.")] = False,
    base: Annotated[
        str, typer.Option("--base", metavar="DIR", help="The base's folder, or name on the Hub.", show_default=False)
    ] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="FILE", help="A Python with torch, transformers, peft.")
    ] = "python3",
) -> None:
    """Make a folder for others: weights, a model card, digests."""
    from scheduler.cli.commands.model_show import export_version

    if not merge and base:
        raise UsageFault("--base is for --merge", "an adapter is exported without its base", "Add --merge")
    export_version(cli, version, place, merging=merge, base=base, python=python)


@command(app, "schedctl models deploy ufm --to griffith", "schedctl models deploy ufm@3 --to griffith --dry-run")
def deploy(
    cli: Cli,
    version: Named,
    to: Annotated[str, typer.Option("--to", metavar="TARGET", help="One of [[targets]].", show_default=False)],
    reason: Reason = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; change nothing.")] = False,
) -> None:
    """Deploy an accepted version to a target: copy, check, switch, and test an answer; else roll back."""
    from scheduler.cli.commands import models_deploy

    models_deploy.deploy(cli, version, to, reason, dry_run=dry_run)


@command(app, "schedctl models sync griffith", "schedctl models sync griffith --dry-run")
def sync(
    cli: Cli,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="One of [[targets]].")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Tell what differs; change nothing.")] = False,
) -> None:
    """Deploy what is promoted to a target again, and check every file. Exits with 9 on drift."""
    from scheduler.cli.commands import models_deploy

    models_deploy.sync(cli, target, dry_run=dry_run)


@command(app, "schedctl models resume ufm")
def resume(cli: Cli, model: Model) -> None:
    """Let the daemon deploy a model again after it stopped."""
    from scheduler.cli.commands import models_deploy

    models_deploy.resume(cli, model)


def _needed(reason: str) -> str:
    if not reason.strip():
        raise UsageFault("a reason is missing", "it is kept beside what was decided", 'Write --reason "why"')
    return reason


def _changed(cli: Cli, model: str, sentence: str) -> None:
    """Show a model after something was decided of it, and let the daemon plan again."""
    from scheduler.views import models

    with cli.app.database.read() as tx:
        cli.out.data({"model": asdict(models.model(tx, model))})
    cli.out.line(sentence)
    cli.wake_daemon()
