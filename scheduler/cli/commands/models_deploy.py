"""Versions by hand at targets and after promotion: deployed, compared, resumed, watched by votes and rolled back."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs.problem import NotFound, Refusal
from jobs.scores import VotesError
from jobs.size import size
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import PlatformFault, UsageFault, Violations
from scheduler.cli.shell.names import meant as near
from scheduler.core.deployment import Deployment
from scheduler.judge.evidence import ALARM
from scheduler.service.deploy.deployer import FOLDER, Deployer
from scheduler.service.deploy.release_files import served_parts
from scheduler.service.requests import models
from scheduler.service.versions.watching import read_watch, take_back
from scheduler.store import checkpoints, jobs, versions
from scheduler.store.versions import Version


def deploy(cli: Cli, name: str, target: str, reason: str, *, dry_run: bool) -> None:
    """Bring a version to a target, or show what that would do. Raises Refusal, TargetError, NotServing."""
    deployer = _deployer(cli, target)
    with deployer.read() as tx:
        version = models.meant(tx, name)
        manifest = checkpoints.get(tx, version.checkpoint).manifest
    models.may_be_deployed(deployer, version, target)
    if dry_run:
        _show_plan(cli, deployer, version, target, [(part.name, part.bytes) for part in served_parts(manifest)])
        return
    done = models.deploy(deployer, version, target, cli.who, reason)
    cli.out.data({"deployment": _document(done)})
    if done.state == "serving":
        cli.out.line(f"{done.version} is deployed to {target}.")
    else:
        stays = (
            "See"
            if done.state == "failed"
            else "The version before is deployed again, unless the reason says otherwise"
        )
        raise PlatformFault(
            f"{done.version} is not deployed to {target}", done.why, f"{stays}: schedctl models show {done.version}"
        )


def sync(cli: Cli, target: str, *, dry_run: bool) -> None:
    """Deploy what is promoted to a target and report what differed. Raises TargetError, Violations."""
    deployer = _deployer(cli, target)
    result = []
    for one in models.sync(deployer, target, cli.who, look_only=dry_run):
        result.append(one)
        if one.drift and one.did:
            cli.out.say(f"{one.model}: {one.drift}; {one.did}")
    cli.out.data({"target": target, "models": [asdict(one) for one in result]})
    rows = [
        (one.model, _number(one.wanted), _number(one.served), one.drift if one.still else "", one.did) for one in result
    ]
    cli.out.table(("model", "->promoted", ">deployed", "~drift", "~did"), rows)
    if left := [one for one in result if one.still]:
        names = ", ".join(one.model for one in left)
        remedy = (
            f"Bring it there: schedctl models sync {target}"
            if dry_run
            else f"See why, and deploy by hand: schedctl models deploy {left[0].model} --to {target}"
        )
        raise Violations(f"{target} is not as it should be", f"{names}: {left[0].drift}", remedy)


def resume(cli: Cli, model: str) -> None:
    """Let the daemon deploy a model again. Raises Refusal."""
    app = cli.app
    deployer = Deployer(app.database.read, app.database.write, app.artifacts, {}, app.settings.state_dir, app.clock.now)
    kept = models.resume(deployer, model, cli.who)
    cli.out.data({"model": model, "resumed": [_document(one) for one in kept]})
    cli.out.line(f"{model} is deployed again where its targets say so.")
    for one in kept:
        cli.out.say(f"Before, {one.version} was {one.state} at {one.target}: {one.why}")
    cli.wake_daemon()


def _deployer(cli: Cli, target: str) -> Deployer:
    app = cli.app
    if target not in app.targets:
        remedy = near(target, sorted(app.targets), "docs/deployment.md") if app.targets else "Write [[targets]] first"
        raise NotFound("unknown target", f"the settings name no target {target}", remedy)
    folder = app.settings.state_dir / "inputs" / FOLDER
    base, now = app.database, app.clock.now
    return Deployer(base.read, base.write, app.artifacts, app.targets, folder, now, app.redact)


def _show_plan(cli: Cli, deployer: Deployer, version: Version, target: str, parts: list[tuple[str, int]]) -> None:
    live = deployer.targets[target].open().read(version.model)
    there = live.proven and live.version == version.number
    files = [{"name": name, "bytes": count} for name, count in parts]
    data = {"version": version.name, "target": target, "serves": live.version, "proven": live.proven}
    cli.out.data({**data, "files": [] if there else files})
    serves = f"{version.model}@{live.version}" if live.version is not None else "nothing"
    cli.out.line(
        f"{target} serves {serves}{'' if live.proven or live.version is None else ', which has not answered yet'}."
    )
    if there:
        cli.out.line("Nothing would be done.")
        return
    whole = size(sum(count for _, count in parts))
    cli.out.line(f"{version.name} would be copied there ({whole}), switched to and asked to answer:")
    for name, count in parts:
        cli.out.line(f"  {name} ({size(count)})")
    back = f"{version.model}@{live.version} would serve again" if live.version is not None else "nothing would serve"
    cli.out.line(f"If it does not answer, {back}.")


def _number(number: int | None) -> str:
    return "" if number is None else f"@{number}"


def _document(done: Deployment) -> dict[str, Any]:
    return {**asdict(done), "version": done.version}


def watch(cli: Cli, name: str, votes: Path | None, usual: float | None, *, rollback: bool) -> None:
    """Show what votes say of a version, and take it back if asked and they show harm.

    Raises NotFound, UnknownJob, Refusal, UsageFault for votes that cannot be read, Stale, and
    Violations where harm is shown.
    """
    with cli.app.database.read() as tx:
        version = models.meant(tx, name)
        record = jobs.find(tx, version.model)
    wanted = record.spec.evaluation if record else None
    path = votes or (Path(wanted.votes) if wanted and wanted.votes else None)
    if path is None:
        why = f"the definition of {version.model} names no file of votes"
        raise UsageFault("which votes?", why, "Give --votes FILE, or write votes in its evaluation: docs/models.md")
    share = usual if usual is not None else wanted.usual if wanted else 0.5
    try:
        result = read_watch(version, path, share)
    except VotesError as error:
        where = f"{path}, line {error.line}" if error.line else str(path)
        raise Refusal(f"{where} cannot be used", error.why, error.remedy.capitalize()) from None
    undone, back = False, None
    if rollback and result.alarm:
        with cli.app.database.write() as tx:
            in_force = versions.in_force(tx, version.model)
            # One that is not promoted stays as it is, since the alarm was heard before.
            if in_force is not None and in_force.number == version.number:
                undone, (_, back) = True, take_back(tx, version, result, cli.now, cli.who)
    data = {**asdict(result), **asdict(result.watched), "alarm": result.alarm, "taken_back": undone}
    del data["watched"]
    cli.out.data({**data, "in_force": back.name if back else None} if undone else data)
    evidence = result.watched.log_evidence
    strength = f"{math.exp(evidence):.3g}" if evidence < 50 else f"e^{evidence:.0f}"
    cli.out.line(f"{version.name}: {result.text}.")
    cli.out.line(f"Evidence of harm {strength}; above {ALARM:g}, at any vote, is an alarm.")
    if undone:
        cli.out.line(f"{version.name} is rolled back; {f'{back.name} is' if back else 'no version is'} promoted.")
        cli.wake_daemon()
    if result.alarm:
        words = [f"schedctl models watch {name}"]
        words += [f"--votes {votes}"] if votes else []
        words += [f"--usual {usual:g}"] if usual is not None else []
        again = " ".join([*words, "--rollback"])
        then = f"See: schedctl models show {version.name}" if undone else f"Roll it back: {again}"
        raise Violations(f"{version.name} does harm", f"shown at vote {result.watched.alarm_at}", then)
