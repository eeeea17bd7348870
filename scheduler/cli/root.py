"""The root group of ``schedctl``: it resolves aliases and guesses, and loads a command's module on first use."""

import os
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from config.layers import own_file
from scheduler.cli.guesses import ALIASES, resolve_guess
from scheduler.cli.shell.command import CommandGroup, add_lazy_commands, command_table
from scheduler.cli.shell.context import Cli, GlobalOptions

COMMANDS: dict[str, tuple[str, str]] = command_table()["schedctl"]


class Root(CommandGroup):
    """The root group: all commands and their aliases."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of the commands, then the aliases."""
        super().format_commands(ctx, formatter)
        with formatter.section("Aliases"):
            formatter.write_dl([(name, f"The same as: {command}") for name, command in ALIASES.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with, after aliases and confirmed guesses are replaced.

        Raises UsageFault with our command for a guess that may not run, or with names similar to an unknown command.
        """
        guess = resolve_guess(args, str(own_file(ctx.obj.options.config, os.environ))) if ctx.obj else None
        args = guess or args
        if args[0] in ALIASES:
            args = [*ALIASES[args[0]].split(), *args[1:]]
        return super().resolve_command(ctx, args)


def invoke(words: Sequence[str], options: GlobalOptions) -> int:
    """Parse one command line, run the command, and return its exit code. Errors are left to the caller."""
    with closing(Cli(options)) as cli:
        answer = tree().main(list(words), prog_name="schedctl", standalone_mode=False, obj=cli)
    return answer if isinstance(answer, int) else 0


def tree() -> TyperGroup:
    """Return the tree of all commands; the modules of the commands are not imported yet."""
    app = typer.Typer(
        cls=Root,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="\b\nExample:\n  schedctl queue list --state active")(_schedctl)
    add_lazy_commands(app, COMMANDS)
    aliases = {name: (COMMANDS[word.split()[0]][0], f"The same as: {word}") for name, word in ALIASES.items()}
    add_lazy_commands(app, aliases, hidden=True)  # registered so that misspelled aliases get suggestions
    root = get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError("the root of the command tree is not a group")
    return root


def _version(ctx: typer.Context, value: bool) -> None:
    """Print the version and exit, ignoring other options."""
    if value:
        from scheduler.cli.commands.daemon import version

        version(ctx.obj)
        raise typer.Exit


def _schedctl(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Train a family of models from scarce, metered GPU hours."""
    del version
