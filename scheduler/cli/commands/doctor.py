"""`schedctl doctor` checks the installation; `schedctl config` shows and checks the settings."""

import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

from config.describe import describe
from config.errors import ConfigError
from platforms import plugin
from platforms.base import Checked
from platforms.registry import checkup
from scheduler.app import App, require_one_account
from scheduler.cli.shell.command import Listing, argument, command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Violations
from scheduler.clock import real_now
from scheduler.host import doctor as host
from scheduler.host.acceptance import JOB, check, newest, try_session
from scheduler.host.doctor import check_price, check_target, examine
from scheduler.service.outside.ports import ServedAt
from scheduler.service.requests import concerns
from scheduler.store import versions


@command("schedctl config show", "schedctl config show daemon --json", kind=Listing)
def show(cli: Cli, prefix: Annotated[str, argument("KEY", "Only keys that begin so.")] = "") -> None:
    """Show every setting with its value and where it came from. Secrets are hidden."""
    entries = [entry for entry in describe(cli.app.settings) if entry[0].startswith(prefix)]
    cli.out.data({"settings": [{"key": key, "value": value, "source": source} for key, value, source in entries]})
    cli.out.table(("~key", "~value", "-~set by"), entries)


@command("schedctl config check", "schedctl --config new.toml config check")
def check_settings(cli: Cli) -> None:
    """Check settings and model definitions, changing nothing. Exits with 3 when they cannot be used.

    What looks like a mistake is a warning: numbers without a unit, commands that no session finds, options that a
    platform does not know, credentials that are not here.
    """
    pools, models = sorted(cli.app.pools), [spec.name for spec in cli.app.catalogue.jobs]
    settings, specs = cli.app.settings, cli.app.catalogue.jobs
    if wrong := [*concerns.of_platforms(settings), *concerns.of_store(settings, lambda: cli.app.artifacts)]:
        raise ConfigError(wrong)
    require_one_account(settings)
    wrong, unmade = concerns.of_options(settings, cli.app.platform, cli.app.targets)
    if wrong:
        raise ConfigError(wrong)
    concerns.require_trainable(settings, specs)
    doubtful = [*concerns.of_privacy(cli.options.config), *concerns.of_units(settings)]
    doubtful += [*unmade, *concerns.of_names(settings.models)]
    doubtful += concerns.of_jobs(settings, specs, cli.app.bundle)
    warnings = [{"file": one.place, "key": one.key, "why": one.why, "remedy": one.remedy} for one in doubtful]
    cli.out.data({"pools": pools, "models": models, "warnings": warnings})
    cli.out.line(f"The settings can be used. Pools: {', '.join(pools)}. Models: {', '.join(models) or 'none'}.")
    for one in doubtful:
        cli.out.warn(str(one), in_data=True)


@command("schedctl doctor", "schedctl doctor kaggle --probe", "schedctl doctor --json")
def doctor(
    cli: Cli,
    platform: Annotated[str, argument("", "Look closely at the pools of this platform instead.")] = "",
    probe: Annotated[bool, option("--probe", "Run a small session there; it takes minutes and costs little.")] = False,
) -> None:
    """Check all that the scheduler needs, each with its remedy. It takes a minute at most.

    That is settings, models, database, daemon, disk, artifact store, clock, mail server, Slack, library versions,
    platforms, service, sandbox and package names.

    With the name of a platform, check what that platform can tell of its account. Exits with 9 when something is bad;
    warnings do not count.
    """
    results = examine(_checkup(cli, platform) if platform else _checks(cli))
    for pool in cli.app.pools.values() if probe else ():
        if pool.platform == platform:  # the session takes minutes; everything that it creates is removed
            results[f"{pool.name}: probe"] = try_session(cli.app, pool.name)
    cli.plain.data({"checks": [{"check": name, **asdict(checked)} for name, checked in results.items()]})
    rows = [(checked.grade, name, checked.found, checked.remedy) for name, checked in results.items()]
    cli.plain.table(("grade", "check", "~found", "_remedy"), rows)
    bad = [name for name, checked in results.items() if checked.grade == "bad"]
    if bad:
        count = "1 check" if len(bad) == 1 else f"{len(bad)} checks"
        raise Violations(f"{count} failed", ", ".join(bad), "Do what their remedies say")


def _checks(cli: Cli) -> dict[str, Callable[[], Checked]]:
    """Return the checks of the installation by name; if the settings are invalid, only those that need none."""
    always: dict[str, Callable[[], Checked]] = {
        "service": host.check_service,
        "sandbox": host.check_sandbox,
        "package names": host.check_names,
    }
    try:
        app = cli.app
        require_one_account(app.settings)
    except Exception as error:  # noqa: BLE001 - any error of the settings is a result of this check
        wrong = host.finding_of(error, "Correct it, then: schedctl config check")
        return {"settings": lambda: wrong, **always}
    checks: dict[str, Callable[[], Checked]] = {
        "settings": lambda: Checked("ok", f"pools: {', '.join(sorted(app.pools))}"),
        "models": lambda: Checked("ok", f"models: {', '.join(spec.name for spec in app.catalogue.jobs) or 'none'}"),
        "database": lambda: host.check_database(app.database),
        "daemon": lambda: host.check_daemon(app.database),
        "disk": lambda: host.check_disk(app.settings.state_dir),
        "privacy": lambda: host.check_privacy(
            app.settings.state_dir, app.database.path, concerns.of_privacy(cli.options.config)
        ),
        "secrets of jobs": lambda: host.check_secrets(app),
        "artifact store": lambda: host.check_store(app.artifacts),
        "clock": lambda: host.check_clock(_disk_clock(app.settings.state_dir), real_now()),
    }
    for name, channel in sorted(app.channels.items()):
        checks[f"messages by {name}"] = host.channel_check(channel)
    if not app.channels:
        checks["messages"] = host.no_channel
    for name, at in sorted(app.targets.items()):
        checks[f"target {name}"] = partial(_target, app, at)
    for platform in plugin.offered():
        checks[f"plug-in {platform}"] = partial(host.check_plugin, platform)
    checks["library versions"] = partial(host.check_versions, _extras(app))
    if any(plugin.traits(pool.platform).runs_here for pool in app.pools.values()):
        checks["isolation"] = host.check_isolation
    runner = os.environ.get("UFF_LOCAL_RUNNER")
    if runner:
        checks["local sessions"] = partial(host.check_runner, runner)
    for name in sorted(app.pools):
        checks[f"platform of {name}"] = partial(host.check_platform, partial(cli.app.platform, name), app.clock.now())
    checks |= {f"acceptance of {name}": check for name, check in _acceptances(app).items()}
    return {**checks, **always}


def _extras(app: App) -> set[str]:
    """Return the optional dependency groups (extras of the package) that the settings need."""
    result = {plugin.traits(pool.platform).extra for pool in app.pools.values()} - {""}
    if "s3" in {app.settings.artifacts.kind, *(target.kind for target in app.settings.targets)}:
        result.add("aws")
    if "slack" in app.channels:
        result.add("report")
    if any(name.startswith("apprise") for name in app.channels):
        result.add("notify")
    if app.settings.database_url.startswith("postgresql"):
        result.add("postgres")
    return result


def _checkup(cli: Cli, platform: str) -> dict[str, Callable[[], Checked]]:
    """Return a platform's checks by name, for each of its pools; if no pool uses it, with default settings."""
    named = {pool.name: pool for pool in cli.app.settings.pools if pool.platform == platform}
    pools = {name: dict(cli.app.pools.get(name, pool).options) for name, pool in named.items()}
    checks: dict[str, Callable[[], Checked]] = {
        f"{name}: {check}" if name else check: call
        for name, options in (pools or {"": {}}).items()
        for check, call in checkup(platform, options, os.environ, real_now(), probe=False).items()
    }
    priced = [pool for pool in cli.app.pools.values() if pool.name in pools and pool.price_microdollars_per_hour]
    checks |= {f"{pool.name}: price": partial(check_price, pool, real_now()) for pool in priced}
    return checks | {f"{name}: acceptance": check for name, check in _acceptances(cli.app).items() if name in pools}


def _acceptances(app: App) -> dict[str, Callable[[], Checked]]:
    """Return the check of each pool's newest acceptance result, by pool; pools without a result are absent."""
    folders = {name: app.settings.state_dir / JOB / name for name in sorted(app.pools)}
    return {name: partial(check, folder, app.clock.now()) for name, folder in folders.items() if newest(folder)}


def _target(app: App, at: ServedAt) -> Checked:
    with app.database.read() as tx:
        models = sorted({version.model for version in versions.everything(tx)})
    return check_target(at, models)


def _disk_clock(folder: Path) -> float:
    """Return the clock of the disk: the modification time of a new file in the state folder, in UTC seconds."""
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    with tempfile.NamedTemporaryFile(dir=there, prefix=".doctor-") as probe:
        return Path(probe.name).stat().st_mtime
