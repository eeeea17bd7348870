"""`schedctl models`: evaluate, promote, roll back, overrule, deploy and watch versions, and run A/B tests."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import structlog

from jobs.catalogue import AbTest
from jobs.duration import DAYS
from jobs.problem import NotFound, Refusal
from jobs.scores import VotesError
from jobs.size import size
from scheduler.cli.commands.complete import Model, NamedVersion, VersionName
from scheduler.cli.commands.queue_add import add_specs
from scheduler.cli.shell.command import Reason, Tables, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import PlatformFault, UsageFault, Violations
from scheduler.cli.shell.names import suggest
from scheduler.cli.shell.output import figure
from scheduler.core.version import Deployment
from scheduler.judge.evidence import ALARM
from scheduler.service.deploy.deployer import FOLDER, Deployer, deploy_now, served_parts
from scheduler.service.requests import models
from scheduler.service.requests.ab_tests import result, specs_of
from scheduler.service.versions import promotion
from scheduler.service.versions.model_sync import read_watch, roll_back_by_votes
from scheduler.store import checkpoints, jobs, versions
from scheduler.store.versions import Version
from scheduler.views import models as views


@command("schedctl models evaluate ufm", "schedctl models evaluate ufm --step 4000", "schedctl models evaluate ufm@3")
def evaluate(
    cli: Cli,
    model: Annotated[str, argument("MODEL[@N]", "A model, or a version to evaluate again.")],
    step: Annotated[int | None, option("--step", "Default: its newest checkpoint.", min=1)] = None,
) -> None:
    """Create a version from a checkpoint and queue its evaluation. The daemon does so when a model is done."""
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


@command('schedctl models promote ufm@3 --reason "better on what users ask"')
def promote(cli: Cli, version: VersionName, reason: Reason = "") -> None:
    """Promote an accepted version. The version before is retired and can be promoted again."""
    with cli.app.database.write() as tx:
        promoted = promotion.promote(tx, versions.named(tx, version), reason, cli.now, cli.who)
    _changed(cli, promoted.model, f"{promoted.name} is promoted.")


@command('schedctl models rollback ufm --reason "invents modules"')
def rollback(cli: Cli, model: Model, reason: Reason = "") -> None:
    """Reject the promoted version and promote the one before again.

    After that, no version is promoted automatically until a person promotes one.
    """
    why = _needed(reason)
    with cli.app.database.write() as tx:
        jobs.get(tx, model, removed=True)
        withdrawn, back = promotion.rollback(tx, model, why, cli.now, cli.who)
    _changed(cli, model, f"{withdrawn.name} is rolled back; {f'{back.name} is' if back else 'no version is'} promoted.")


@command(
    'schedctl models overrule ufm@3 --reason "item 17 of the set is wrong"',
    'schedctl models overrule ufm@3 --reject --reason "unsafe code"',
)
def overrule(
    cli: Cli,
    version: VersionName,
    reject: Annotated[bool, option("--reject", "Refuse it; it is accepted if this is left out.")] = False,
    reason: Reason = "",
) -> None:
    """Replace the result of an evaluation by yours. Both stay on record, with your reason."""
    verdict: Literal["accepted", "rejected"] = "rejected" if reject else "accepted"
    why = _needed(reason)
    with cli.app.database.write() as tx:
        overruled = promotion.overrule(tx, versions.named(tx, version), verdict, why, cli.now, cli.who)
    _changed(cli, overruled.model, f"{overruled.name} is {overruled.state}.")


def _needed(reason: str) -> str:
    if not reason.strip():
        raise UsageFault("a reason is missing", "it is kept beside what was decided", 'Write --reason "why"')
    return reason


def _changed(cli: Cli, model: str, sentence: str) -> None:
    """Report a decision about a model, and let the daemon plan again."""
    with cli.app.database.read() as tx:
        cli.out.data({"model": asdict(views.model(tx, model))})
    cli.out.line(sentence)
    cli.wake_daemon()


@command("schedctl models deploy ufm --to griffith", "schedctl models deploy ufm@3 --to griffith --dry-run")
def deploy(
    cli: Cli,
    name: NamedVersion,
    to: Annotated[str, option("--to TARGET", "One of [[targets]].")],
    reason: Reason = "",
    dry_run: Annotated[bool, option("--dry-run", "Show what would be done; change nothing.")] = False,
) -> None:
    """Deploy an accepted version to a target: copy, check, switch, and test an answer; else roll back."""
    deployer = _deployer(cli, to)
    with deployer.read() as tx:
        version = models.meant(tx, name)
        manifest = checkpoints.get(tx, version.checkpoint).manifest
    models.may_be_deployed(deployer, version, to)
    if dry_run:
        _show_plan(cli, deployer, version, to, [(part.name, part.bytes) for part in served_parts(manifest)])
        return
    done = deploy_now(deployer, version, to, cli.who, reason)
    cli.out.data({"deployment": _document(done)})
    if done.state == "serving":
        cli.out.line(f"{done.version} is deployed to {to}.")
    else:
        back = "The version before is deployed again, unless the reason says otherwise"
        remedy = f"{'See' if done.state == 'failed' else back}: schedctl models show {done.version}"
        raise PlatformFault(f"{done.version} is not deployed to {to}", done.why, remedy)


@command("schedctl models sync griffith", "schedctl models sync griffith --dry-run")
def sync(
    cli: Cli,
    target: Annotated[str, argument("TARGET", "One of [[targets]].")],
    dry_run: Annotated[bool, option("--dry-run", "Tell what differs; change nothing.")] = False,
) -> None:
    """Deploy what is promoted to a target again, and check every file. Exits with 9 on drift."""
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


@command("schedctl models resume ufm")
def resume(cli: Cli, model: Model) -> None:
    """Let the daemon deploy a model again after it stopped."""
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
        remedy = suggest(target, app.targets, "docs/deployment.md") if app.targets else "Write [[targets]] first"
        raise NotFound("unknown target", f"the settings have no target {target}", remedy)
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


@command("schedctl models watch ufm", "schedctl models watch ufm --votes votes.jsonl --rollback")
def watch(
    cli: Cli,
    name: NamedVersion,
    votes: Annotated[Path | None, option("--votes FILE", "Default: what the model's evaluation names.")] = None,
    usual: Annotated[float | None, option("--usual", "Harmless share of worse votes.", min=0.001, max=0.999)] = None,
    rollback: Annotated[bool, option("--rollback", "Take it back if harm is shown.")] = False,
) -> None:
    """Show what users' votes say of a version. Look as often as you like. Exits with 9 where they show harm."""
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
            # Only the promoted version is rolled back: an earlier alarm may have withdrawn this one already.
            if in_force is not None and in_force.number == version.number:
                undone, (_, back) = True, roll_back_by_votes(tx, version, result, cli.now, cli.who)
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


# A/B tests of training approaches.
@command("schedctl models ab", "schedctl models ab lr", "schedctl models ab lr --start", kind=Tables)
def ab(
    cli: Cli,
    test: Annotated[str | None, argument("TEST", "One of [[ab]]; all are listed without.")] = None,
    start: Annotated[bool, option("--start", "Queue both arms for its next day.")] = False,
) -> None:
    """Show what an A/B test found, or queue its runs. Runs, not items, are its evidence."""
    if test is None:
        if start:
            raise UsageFault("--start needs a TEST", "each is queued by itself", "See: schedctl models ab")
        _list_tests(cli)
    elif start:
        _start_test(cli, test)
    else:
        _show_test(cli, test)


def _list_tests(cli: Cli) -> None:
    """List the tests that the models file defines."""
    tests = cli.app.catalogue.ab
    with cli.app.database.read() as tx:
        sweeps = [record.spec.sweep for record in jobs.everything(tx)]
    cli.out.data({"ab": [{**asdict(test), "jobs": sweeps.count(test.sweep)} for test in tests]})
    rows = [
        (test.name, " ".join(test.models), DAYS[test.weekday], str(len(test.seeds)), str(sweeps.count(test.sweep)))
        for test in tests
    ]
    cli.out.table(("test", "~models", "on", ">seeds", ">jobs"), rows)
    if not tests:
        cli.out.say("No A/B tests. Write [[ab]] into a models file: docs/models.md")


def _start_test(cli: Cli, name: str) -> None:
    """Queue both arms of a test for its next day. Raises NotFound, Refusal, and what adding jobs raises."""
    test = _test(cli, name)
    with cli.app.database.read() as tx:
        specs = specs_of(tx, test, cli.now)
        kept = jobs.get(tx, test.models[0]).spec
        there = [spec.name for spec in specs if (record := jobs.find(tx, spec.name)) and record.removed_at is None]
    if there:
        why = f"{there[0]} is in the queue"
        raise Refusal(f"{name} was queued already", why, f"See: schedctl models ab {name}")
    add_specs(cli, specs, f"ab {name}", old=kept)  # with the model's stored code and test set, not today's files


def _show_test(cli: Cli, name: str) -> None:
    """Show the runs of a test and the findings from all of them. Raises NotFound, StoreError."""
    test = _test(cli, name)
    outcome = result(cli.app.ports(structlog.get_logger(), 0), test)
    data = {"arms": [asdict(arm) for arm in outcome.arms], "runs": outcome.runs, "missing": list(outcome.missing)}
    cli.out.data({"name": name, **data, "findings": [one.document() for one in outcome.findings]})
    if not outcome.arms:
        cli.out.say(f"{name} was not queued yet. For its next {DAYS[test.weekday]}: schedctl models ab {name} --start")
        return
    rows = [(arm.job, arm.arm, str(arm.seed), arm.state, arm.version, arm.judged) for arm in outcome.arms]
    cli.out.table(("~job", "arm", ">seed", "state", "-version", "-result"), rows)
    for why in outcome.missing:
        cli.out.say(f"Not counted: {why}")
    cli.out.listing(
        outcome.findings,
        {
            "~metric": lambda one: one.gate.metric,
            ">unchanged": lambda one: figure(one.before),
            ">changed": lambda one: figure(one.value),
            ">better by": lambda one: figure(one.gain),
            "->low": lambda one: figure(one.low),
            "->high": lambda one: figure(one.high),
            "->runs": lambda one: str(one.clusters),
            "->p": lambda one: figure(one.p_value, ".2g"),
            "-->design": lambda one: figure(one.design_effect, ".3g"),
        },
        below=True,
    )
    for one in outcome.findings:
        cli.out.line(f"{one.outcome.replace('_', ' ')}: {one.reason}")


def _test(cli: Cli, name: str) -> AbTest:
    tests = {test.name: test for test in cli.app.catalogue.ab}
    if name not in tests:
        remedy = suggest(name, sorted(tests), "docs/models.md") if tests else "Write [[ab]] first: docs/models.md"
        raise NotFound("unknown A/B test", f"the models file defines no {name}", remedy)
    return tests[name]
