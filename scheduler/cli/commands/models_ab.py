"""A/B tests of training approaches: listed, queued for their next day, and told what came of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import structlog

from jobs.catalogue import AbTest
from jobs.duration import DAYS
from jobs.problem import NotFound, Refusal
from scheduler.cli.commands.queue_add import add_specs
from scheduler.cli.shell.command import Tables, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import meant as near
from scheduler.cli.shell.output import figure
from scheduler.service.requests.ab_tests import result, specs_of
from scheduler.store import jobs


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
        _list(cli)
    elif start:
        _start(cli, test)
    else:
        _show(cli, test)


def _list(cli: Cli) -> None:
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


def _start(cli: Cli, name: str) -> None:
    """Queue both arms of a test for its next day. Raises NotFound, Refusal, and what adding jobs raises."""
    test = _test(cli, name)
    with cli.app.database.read() as tx:
        specs = specs_of(tx, test, cli.now)
        kept = jobs.get(tx, test.models[0]).spec
        there = [spec.name for spec in specs if (record := jobs.find(tx, spec.name)) and record.removed_at is None]
    if there:
        why = f"{there[0]} is in the queue"
        raise Refusal(f"{name} was queued already", why, f"See: schedctl models ab {name}")
    add_specs(cli, specs, f"ab {name}", kept=kept)  # the model's own code and test set, not what lies there by now


def _show(cli: Cli, name: str) -> None:
    """Show what the runs of a test say together. Raises NotFound, StoreError."""
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
            ">as it is": lambda one: figure(one.before),
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
        remedy = near(name, sorted(tests), "docs/models.md") if tests else "Write [[ab]] first: docs/models.md"
        raise NotFound("unknown A/B test", f"the models file defines no {name}", remedy)
    return tests[name]
