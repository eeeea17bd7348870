"""The groups of commands, such as `queue`, built from ``commands.toml``. Attribute ``queue`` is the group `queue`."""

import typer

from scheduler.cli.shell.command import command_table, group


def __getattr__(name: str) -> typer.Typer:
    """Return the group ``name``; its commands are imported on first use. Raises AttributeError."""
    if name not in command_table():
        raise AttributeError(name)
    return group(**command_table()[name])
