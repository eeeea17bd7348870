"""`schedctl config`: what is set, where it was set, and whether it can be used."""

from __future__ import annotations

from typing import Annotated

import typer

from scheduler.cli.shell.command import Listing, command, group
from scheduler.cli.shell.context import Cli

app = group("The settings and where they come from.", "show")


@command(app, "schedctl config show", "schedctl config show daemon --json", kind=Listing)
def show(
    cli: Cli,
    prefix: Annotated[str, typer.Argument(metavar="KEY", help="Only keys that begin so.", show_default=False)] = "",
) -> None:
    """Show every setting with its value and where it came from. Secrets are hidden."""
    from config.describe import describe

    found = [entry for entry in describe(cli.app.settings) if entry[0].startswith(prefix)]
    cli.out.data({"settings": [{"key": key, "value": value, "source": source} for key, value, source in found]})
    cli.out.table(("~key", "~value", "-~set by"), found)


@command(app, "schedctl config check", "schedctl --config new.toml config check")
def check(cli: Cli) -> None:
    """Check settings and model definitions, changing nothing. Exits with 3 when they cannot be used.

    What looks like a mistake is a warning: numbers without a unit, commands that no session finds, options that a
    platform does not know, credentials that are not here.
    """
    from config.errors import ConfigError
    from scheduler.service.requests import concerns
    from scheduler.service.requests.one_account import require_one_account

    pools, models = sorted(cli.app.pools), [spec.name for spec in cli.app.catalogue.jobs]
    settings, specs = cli.app.settings, cli.app.catalogue.jobs
    if wrong := concerns.of_platforms(settings):
        raise ConfigError(wrong)
    require_one_account(settings)
    wrong, unmade = concerns.of_options(settings, cli.app.platform, cli.app.targets)
    if wrong:
        raise ConfigError(wrong)
    concerns.require_trainable(settings, specs)
    doubtful = [*concerns.of_privacy(cli.options.config), *concerns.of_units(cli.options.config, settings)]
    doubtful += [*unmade, *concerns.of_names(settings.models)]
    doubtful += concerns.of_jobs(settings, specs, cli.app.bundle)
    warnings = [{"file": one.place, "key": one.key, "why": one.why, "remedy": one.remedy} for one in doubtful]
    cli.out.data({"pools": pools, "models": models, "warnings": warnings})
    cli.out.line(f"The settings can be used. Pools: {', '.join(pools)}. Models: {', '.join(models) or 'none'}.")
    for one in doubtful:
        cli.out.warn(str(one), in_data=True)
