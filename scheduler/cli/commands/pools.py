"""`schedctl pools`, `quota` and `cost`: limits and closures of pools, their quotas, and what training costs."""

from dataclasses import asdict
from typing import Annotated, Any

from jobs.duration import parse_duration, show_duration
from jobs.nouns.pool import Pool
from jobs.nouns.values import key_of
from scheduler.cli.commands.complete import PoolName, pool_names
from scheduler.cli.shell.command import Listing, Reason, argument, command, option, parsed
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import find_pool
from scheduler.cli.shell.output import amount, hours
from scheduler.report.chart import local
from scheduler.service.quota.usage import meters
from scheduler.store import limits, prices, runs
from scheduler.views.costs import costs
from scheduler.views.documents import picked
from scheduler.views.overview import PoolNow, pools_now

_WEEK = 7 * 86_400


@command("schedctl pools list", "schedctl pools list --json", kind=Listing)
def list_(cli: Cli) -> None:
    """List the pools: GPUs with their memory and its peak in live sessions, limits with source and date, closures."""
    rows = _pools(cli)
    cli.out.data({"pools": [_json(*pool) for pool in rows]})
    cli.out.table(
        (
            *("pool", "state", "---platform", "--~accelerator", "--->devices", "---->memory", "---usage"),
            *(">sessions", "-->cap", "-~hours", "----~source", "~why"),
        ),
        [_row(cli, *pool) for pool in rows],
    )


@command("schedctl pools open kaggle")
def open_(cli: Cli, name: PoolName) -> None:
    """Open a pool that a person or refusals closed."""
    find_pool(cli.app.pools, name)
    with cli.app.database.write() as tx:
        limits.open_pool(tx, name, cli.now, cli.who)
    _answer(cli, name, "is open")


@command("schedctl pools close kaggle --reason 'account under review'", "schedctl pools close desk --for 12h")
def close(
    cli: Cli,
    name: PoolName,
    length: Annotated[int | None, option("--for DURATION", "Such as 90m or 2d.", parser=parsed(parse_duration))] = None,
    why: Reason = "closed by hand",
) -> None:
    """Start nothing on a pool, for a while or until it is opened. What runs there goes on."""
    find_pool(cli.app.pools, name)
    until = None if length is None else cli.now + length
    with cli.app.database.write() as tx:
        limits.close_pool(tx, name, until, why, cli.now, cli.who)
    _answer(cli, name, f"is closed until {cli.out.instant(until)}" if until else "is closed until it is opened")


@command("schedctl pools facts", "schedctl pools facts --json", kind=Listing)
def facts(cli: Cli) -> None:
    """List the facts about pools that settings do not set: by documents of the platform or an acceptance run."""
    listed = [(pool, name, fact) for pool, facts in cli.app.facts().items() for name, fact in sorted(facts.items())]
    cli.out.data({"facts": [{"pool": pool, "name": name, **fact} for pool, name, fact in listed]})
    rows = [
        (pool, key_of(name), *(_fact_value(name, fact[key]) for key in ("value", "assumed")), str(fact["source"]))
        for pool, name, fact in listed
    ]
    cli.out.table(("pool", "fact", "value", "~assumed", "~source"), rows)
    if not listed:
        cli.out.say("No facts: settings and defaults hold.")


def _fact_value(name: str, value: int | str) -> str:
    return show_duration(value) if isinstance(value, int) and name != key_of(name) else str(value)


def _answer(cli: Cli, name: str, done: str) -> None:
    cli.out.data({"pool": next(_json(pool, state) for pool, state in _pools(cli) if state.name == name)})
    cli.out.line(f"{name} {done}.")
    cli.wake_daemon()


def _pools(cli: Cli) -> list[tuple[Pool, PoolNow]]:
    with cli.app.database.read() as tx:
        pools = prices.priced(tx, cli.app.pools)
        return [(pools[state.name], state) for state in pools_now(tx, pools, runs.live(tx), cli.now)]


def _json(pool: Pool, state: PoolNow) -> dict[str, Any]:
    return {
        **asdict(state),
        **picked(pool, "devices_per_session", "devices_max", "session_cap_seconds", "session_seconds_min"),
        **picked(pool, "price_microdollars_per_hour", "source", "as_of"),
        "image": pool.options.get("image", ""),
        "device_counts": list(pool.device_counts),
        "dtypes": sorted(pool.dtypes),
        "hours": [str(opening) for opening in pool.hours],
        "quotas": [quota.name for quota in pool.quotas],
    }


def _row(cli: Cli, pool: Pool, state: PoolNow) -> tuple[str, ...]:
    until = f" (until {cli.out.moment(state.closed_until)})" if state.closed_until is not None else ""
    return (
        pool.name,
        state.state,
        pool.platform,
        pool.accelerator,
        f"{', '.join(map(str, pool.device_counts))} of {pool.devices_max}"
        if pool.device_counts
        else str(pool.devices_per_session),
        f"{pool.vram_gib:g} GiB" if pool.vram_gib else "",
        state.gpu_use,
        f"{state.sessions_live} of {pool.sessions_max}",
        hours(pool.session_cap_seconds),
        ", ".join(map(str, pool.hours)) or "always",
        f"{pool.source} {pool.as_of}".strip(),
        state.closed_why + until,
    )


@command("schedctl quota", "schedctl quota kaggle --json", kind=Listing)
def quota(
    cli: Cli, pool: Annotated[str | None, argument("POOL", "Only of this pool.", autocompletion=pool_names)] = None
) -> None:
    """Show each quota: its limit, the amounts used, reserved and free, and when it resets."""
    if pool is not None:
        find_pool(cli.app.pools, pool)

    with cli.app.database.read() as tx:
        shown_meters = [one for one in meters(tx, cli.app.pools, cli.now) if pool in {None, one.pool}]
    cli.out.data({"quotas": [asdict(meter) for meter in shown_meters]})
    cli.out.listing(
        shown_meters,
        {
            "pool": lambda one: one.pool,
            "~quota": lambda one: one.quota,
            "-->limit": lambda one: amount(one.limit, one.unit),
            "-->used": lambda one: amount(one.used, one.unit),
            "--->reserved": lambda one: amount(one.held, one.unit),
            ">free": lambda one: amount(one.free, one.unit),
            "-resets": lambda one: cli.out.moment(one.resets_at),
            "----~source": lambda one: f"{one.source} {one.as_of}".strip(),
        },
        none="No pool has a quota. See: schedctl pools",
    )
    for meter in shown_meters:
        if meter.waited:
            cli.out.line(
                f"{meter.pool}, {meter.quota}: of {amount(meter.used, meter.unit)} used, "
                f"{amount(meter.waited, meter.unit)} were billed while sessions waited in the platform's queue."
            )


@command("schedctl cost", "schedctl cost --weeks 4", "schedctl cost --columns job,spent,planned", kind=Listing)
def cost(
    cli: Cli, weeks: Annotated[int, option("--weeks", "So many weeks, this one included.", min=1, max=100)] = 1
) -> None:
    """Show the hours and the money of each job, pool and week: spent, and planned by the newest plan.

    Spent includes what is reserved for sessions that run. Jobs that share a session share its cost by their devices.
    """
    with cli.app.database.read() as tx:
        rows = costs(tx, cli.app.pools, cli.now - (weeks - 1) * _WEEK, cli.out.zone, cli.now)
    total = [sum(getattr(one, name) for one in rows) for name in ("microdollars", "planned_microdollars")]
    cli.out.data({"costs": [asdict(one) for one in rows], "microdollars": total[0], "planned_microdollars": total[1]})
    cli.out.listing(
        rows,
        {
            "week": lambda one: local(one.week, cli.out.zone, "%G-W%V"),
            "job": lambda one: one.job or "(not of a job)",
            "pool": lambda one: one.pool,
            ">hours": lambda one: hours(one.seconds),
            ">spent": lambda one: amount(one.microdollars, "microdollars"),
            ">planned hours": lambda one: hours(one.planned_seconds),
            ">planned": lambda one: amount(one.planned_microdollars, "microdollars"),
        },
    )
    spent, planned = (amount(value, "microdollars") for value in total)
    cli.out.line(f"Spent {spent}, planned {planned}. What is left: schedctl quota" if rows else "Nothing was spent.")
