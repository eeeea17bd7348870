"""`schedctl acceptance`: test our assumptions about a platform on a real account, with short sessions of low cost."""

import os
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import typer

from jobs.nouns.pool import Pool
from jobs.nouns.values import amount as parse_amount
from jobs.problem import NotFound, Refusal
from platforms.registry import account_name
from scheduler.cli.shell.command import Yes, argument, command, confirm, option, parsed
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Exit
from scheduler.cli.shell.output import amount, hours
from scheduler.host.acceptance import JOB, PROBES, SITES, Trial, conclude, newest, opened, run_probes, shared


@command(
    "schedctl acceptance kaggle",
    "schedctl acceptance sagemaker --budget 30m --budget '$0.50'",
    "schedctl acceptance kaggle --only stop-session --yes",
    "schedctl acceptance kaggle --export kaggle.json",
)
def acceptance(
    cli: Cli,
    platform: Annotated[str, argument("", "A platform with one pool, or the name of a pool.")],
    budget: Annotated[
        list[Any] | None,
        option(
            "--budget AMOUNT", "At most so much quota or money: 1h and $1 unless given.", parser=parsed(parse_amount)
        ),
    ] = None,
    only: Annotated[str, option("--only PROBE", "This probe alone.")] = "",
    export: Annotated[Path | None, option("--export FILE", "Write only the newest result, no account names.")] = None,
    yes: Yes = False,
) -> None:
    """Try out an account: short sessions test our assumptions about it. Shows plan and cost, and asks first.

    The sessions use the pool's own settings and adapter. After an interruption, call the command again: it cleans up
    and continues. It writes a dated JSON file and a Markdown page into the folder acceptance of the state folder. An
    answer that differs from an assumption becomes a fact of the pool, unless its settings have a value for it. Exits
    with 9 if an answer differs or is open, and with 7 if something may be left at the platform: then call it again.
    """
    pool, state_dir = _pool(cli, platform, SITES), cli.app.settings.state_dir
    folder = state_dir / JOB / pool.name
    if export is not None:
        if (result := newest(folder)) is None:
            raise NotFound("nothing was exported", f"{pool.name} was not tried", f"schedctl acceptance {pool.name}")
        account = account_name(pool.platform, pool.options, os.environ, folder)
        export.write_text(shared(result, [*pool.options.values(), account, pool.name]))
        return
    probes = [probe for probe in PROBES if not probe.platforms or pool.platform in probe.platforms]
    wanted = [probe for probe in probes if only in {"", probe.name}]
    if not wanted:
        raise NotFound(f"probe {only}", "there is none", f"Probes: {', '.join(probe.name for probe in probes)}")
    limits = {"seconds": 3_600, "microdollars": 1_000_000, **{limit.unit: limit.value for limit in budget or ()}}
    with opened(cli.app, pool.name, (limits["seconds"], limits["microdollars"]), cli.out.say) as bench:
        costs = [(probe, bench.cost([Trial(**probe.trial)] * probe.count)) for probe in wanted]
        rows = [
            (one.name, one.question, hours(cost[0]), amount(cost[1], "microdollars"), str(one.count))
            for one, cost in costs
        ]
        if not cli.options.json:
            cli.out.table(("probe", "~question", ">quota at most", ">cost at most", ">sessions"), rows)
        most = f"{hours(limits['seconds'])} of quota and {amount(limits['microdollars'], 'microdollars')}"
        confirm(cli, f"Try {pool.name} for at most {most}? All that it creates is removed again.", yes=yes)
        run_probes(bench, wanted, again=bool(only))
        done, result = bench.state.done, conclude(bench, state_dir)
    cli.out.data(result)
    cli.out.listing(result["answers"], {name: itemgetter(name) for name in ("name", "verdict", "answer")})
    cli.out.say(f"The page: {folder / result['date']}.md")
    if any(answer["verdict"] != "as assumed" for answer in result["answers"] if answer["name"] in done):
        raise typer.Exit(Exit.VIOLATIONS)


def _pool(cli: Cli, platform: str, sites: Mapping[str, Any]) -> Pool:
    """Return the only pool with this name or platform that can be tried. Raises NotFound, Refusal."""
    able = [pool for pool in cli.app.pools.values() if pool.platform in sites]
    named = [pool for pool in able if pool.name == platform] or [pool for pool in able if pool.platform == platform]
    if len(named) != 1:
        remedy = f"Name one of these: {', '.join(pool.name for pool in able)}"
        raise NotFound(f"acceptance {platform}", f"pools of this name that can be tried: {len(named)}", remedy)
    if sites[named[0].platform].paid and not named[0].price_microdollars_per_hour:
        raise Refusal("nothing was started", f"{named[0].name} has no price_per_hour", "Set it, with its date")
    return named[0]
