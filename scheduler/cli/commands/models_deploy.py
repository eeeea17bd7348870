"""Versions brought to targets by hand: deployed, compared with what is in force, resumed after a return."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from jobs.size import size
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import CommandError, Exit, NotFound, Violations
from scheduler.cli.shell.names import meant as near
from scheduler.service.deploy.deployer import FOLDER, Deployer
from scheduler.service.deploy.release_files import served_parts
from scheduler.service.requests import deploying
from scheduler.service.requests.models import meant
from scheduler.store import checkpoints
from scheduler.store.deployments import Deployment
from scheduler.store.versions import Version


class NotServing(CommandError):
    """A version was brought to a target and does not serve there."""

    code = Exit.PLATFORM


def deploy(cli: Cli, name: str, target: str, reason: str, *, dry_run: bool) -> None:
    """Bring a version to a target, or show what that would do. Raises VersionRefused, TargetError, NotServing."""
    deployer = _deployer(cli, target)
    with deployer.read() as tx:
        version = meant(tx, name)
        manifest = checkpoints.get(tx, version.checkpoint).manifest
    deploying.may_be_deployed(deployer, version, target)
    if dry_run:
        _show_plan(cli, deployer, version, target, [(part.name, part.bytes) for part in served_parts(manifest)])
        return
    done = deploying.deploy(deployer, version, target, cli.who, reason)
    cli.out.data({"deployment": _document(done)})
    if done.state == "serving":
        cli.out.line(f"{done.version} is deployed to {target}.")
    else:
        stays = (
            "See"
            if done.state == "failed"
            else "The version before is deployed again, unless the reason says otherwise"
        )
        raise NotServing(
            f"{done.version} is not deployed to {target}", done.why, f"{stays}: schedctl models show {done.version}"
        )


def sync(cli: Cli, target: str, *, dry_run: bool) -> None:
    """Deploy what is promoted to a target and report what differed. Raises TargetError, Violations."""
    deployer = _deployer(cli, target)
    found = []
    for one in deploying.sync(deployer, target, cli.who, look_only=dry_run):
        found.append(one)
        if one.drift and one.did:
            cli.out.say(f"{one.model}: {one.drift}; {one.did}")
    cli.out.data({"target": target, "models": [asdict(one) for one in found]})
    rows = [
        (one.model, _number(one.wanted), _number(one.served), one.drift if one.still else "", one.did) for one in found
    ]
    cli.out.table(("model", "->promoted", ">deployed", "~drift", "~did"), rows)
    if left := [one for one in found if one.still]:
        names = ", ".join(one.model for one in left)
        remedy = (
            f"Bring it there: schedctl models sync {target}"
            if dry_run
            else f"See why, and deploy by hand: schedctl models deploy {left[0].model} --to {target}"
        )
        raise Violations(f"{target} is not as it should be", f"{names}: {left[0].drift}", remedy)


def resume(cli: Cli, model: str) -> None:
    """Let the daemon deploy a model again. Raises VersionRefused."""
    app = cli.app
    deployer = Deployer(app.database.read, app.database.write, app.artifacts, {}, app.settings.state_dir, app.clock.now)
    kept = deploying.resume(deployer, model, cli.who)
    cli.out.data({"model": model, "resumed": [_document(one) for one in kept]})
    cli.out.line(f"{model} is deployed again where its targets say so.")
    for one in kept:
        cli.out.say(f"Before, {one.version} was {one.state} at {one.target}: {one.why}")
    cli.wake_daemon()


def _deployer(cli: Cli, target: str) -> Deployer:
    app = cli.app
    if target not in app.targets:
        known = near(target, sorted(app.targets), "docs/deployment.md") if app.targets else "Write [[targets]] first"
        raise NotFound("unknown target", f"the settings name no target {target}", known)
    folder = app.settings.state_dir / "inputs" / FOLDER
    base, now = app.database, app.clock.now
    return Deployer(base.read, base.write, app.artifacts, app.targets, folder, now, app.redact)


def _show_plan(cli: Cli, deployer: Deployer, version: Version, target: str, parts: list[tuple[str, int]]) -> None:
    seen = deployer.targets[target].open().read(version.model)
    there = seen.proven and seen.version == version.number
    files = [{"name": name, "bytes": count} for name, count in parts]
    told = {"version": version.name, "target": target, "serves": seen.version, "proven": seen.proven}
    cli.out.data({**told, "files": [] if there else files})
    serves = f"{version.model}@{seen.version}" if seen.version is not None else "nothing"
    cli.out.line(
        f"{target} serves {serves}{'' if seen.proven or seen.version is None else ', which nobody saw answer'}."
    )
    if there:
        cli.out.line("Nothing would be done.")
        return
    whole = size(sum(count for _, count in parts))
    cli.out.line(f"{version.name} would be copied there ({whole}), switched to and asked to answer:")
    for name, count in parts:
        cli.out.line(f"  {name} ({size(count)})")
    back = f"{version.model}@{seen.version} would serve again" if seen.version is not None else "nothing would serve"
    cli.out.line(f"If it does not answer, {back}.")


def _number(number: int | None) -> str:
    return "" if number is None else f"@{number}"


def _document(done: Deployment) -> dict[str, Any]:
    return {**asdict(done), "version": done.version}
