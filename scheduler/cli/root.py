"""Root: the table of commands, each loaded when it is used."""

from __future__ import annotations

from contextlib import closing
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from scheduler.cli.shell.command import Group
from scheduler.cli.shell.context import Cli

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.cli.shell.context import Options

# name -> module and summary. The module has an ``app``; an app of one command is that command.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("scheduler.cli.commands.init", "Settings of what this machine has, and a database."),
    "status": ("scheduler.cli.commands.status", "The state of things on one screen."),
    "top": ("scheduler.cli.commands.top", "The state of things, live."),
    "prompt": ("scheduler.cli.commands.prompt_command", "One cached line for shell prompts."),
    "queue": ("scheduler.cli.commands.queue", "The jobs: add, list, hold, cancel, reorder."),
    "pause": ("scheduler.cli.commands.pause", "Start nothing new anywhere; what runs goes on."),
    "resume": ("scheduler.cli.commands.resume", "Start new sessions again."),
    "submit": ("scheduler.cli.commands.submit", "One line to train: a script and its folder become a job."),
    "corpus": ("scheduler.cli.commands.corpus", "What the models train on: build, show, compare, verify."),
    "advise": ("scheduler.cli.commands.advise", "Does a model fit, how long does it take, what does it cost."),
    "plan": ("scheduler.cli.commands.plan", "What runs next, and why a job waits."),
    "quota": ("scheduler.cli.commands.quota", "Metered hours and money: limits, use, what is left."),
    "pools": ("scheduler.cli.commands.pools", "The places where sessions run."),
    "runs": ("scheduler.cli.commands.runs", "Sessions: list, logs, stop."),
    "handover": ("scheduler.cli.commands.handover", "Sessions that a person starts: take, give back, drop."),
    "checkpoints": ("scheduler.cli.commands.checkpoints", "Saved states: list, verify, copy, keep."),
    "models": ("scheduler.cli.commands.models", "Versions of models: judged, in force, taken back."),
    "report": ("scheduler.cli.commands.report", "The week in figures: made, shown, sent."),
    "rehearse": ("scheduler.cli.commands.rehearse", "A whole week on this machine in minutes."),
    "service": ("scheduler.cli.commands.service", "The daemon as a service of systemd."),
    "web": ("scheduler.cli.commands.web", "The status page in a browser, its JSON API and metrics."),
    "port": ("scheduler.cli.commands.port", "For programs: frames of JSON on standard input and output."),
    "mcp": ("scheduler.cli.commands.mcp", "For coding agents: the Model Context Protocol."),
    "daemon": ("scheduler.cli.commands.daemon", "Plan, launch and settle, until stopped."),
    "doctor": ("scheduler.cli.commands.doctor", "Check that everything is in order."),
    "backup": ("scheduler.cli.commands.backup", "Database, settings and artifacts in a folder, proven to restore."),
    "db": ("scheduler.cli.commands.db", "The database: make, upgrade, back up, verify."),
    "config": ("scheduler.cli.commands.config", "The settings and where they come from."),
    "man": ("scheduler.cli.commands.man", "The manual page."),
    "version": ("scheduler.cli.commands.version", "The version of this program."),
}


class Root(Group):
    """Loads a command's module when the command is used or asked for help."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None when there is none of this name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        found = _load(cmd_name)
        found.name = cmd_name
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries from the table, so that help loads no command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that ``args`` begin with; a misspelled one gets its nearest names."""
        # typer looks for near names among the commands already loaded.
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]
        return super().resolve_command(ctx, args)


def invoke(words: Sequence[str], options: Options) -> int:
    """Parse one command line, run its command and return the exit code. Raises what the command raises."""
    with closing(Cli(options)) as cli:
        answer = tree().main(list(words), prog_name="schedctl", standalone_mode=False, obj=cli)
    return answer if isinstance(answer, int) else 0


def tree() -> TyperGroup:
    """Return the command tree."""
    app = typer.Typer(
        cls=Root,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(epilog="\b\nExample:\n  schedctl queue list --state active")(_schedctl)
    root = get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError("the root of the command tree is no group")
    return root


def _version(ctx: typer.Context, value: bool) -> None:
    """Show the version and leave; other options of the line do not matter."""
    if value:
        from scheduler.cli.commands.version import show_version

        show_version(ctx.obj)
        raise typer.Exit


def _schedctl(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Train a family of models from scarce, metered GPU hours."""
    del version


def _load(name: str) -> Any:
    module = import_module(COMMANDS[name][0])
    return get_command(module.app)
