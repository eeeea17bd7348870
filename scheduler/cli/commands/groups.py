"""The groups of commands, made from ``commands.toml``; the module of a command is loaded when the command is used."""

import typer

from scheduler.cli.shell.command import command_table, group


def __getattr__(name: str) -> typer.Typer:
    """Return the group ``name``. Raises AttributeError."""
    if name not in command_table():
        raise AttributeError(name)
    return group(**command_table()[name])
