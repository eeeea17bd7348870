"""`schedctl version`."""

from __future__ import annotations

from importlib.metadata import version as version_of
from platform import python_version

from scheduler.cli.shell.command import alone
from scheduler.cli.shell.context import Cli


@alone("schedctl version --json")
def version(cli: Cli) -> None:
    """Show the version of this program and its Python."""
    show_version(cli)


def show_version(cli: Cli) -> None:
    """Write it; also for schedctl --version."""
    versions = {"version": version_of("uff-scheduler"), "python": python_version()}
    cli.plain.data(versions)
    cli.plain.line(f"schedctl {versions['version']} (Python {versions['python']})")
