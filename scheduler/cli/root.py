"""Root: the table of commands, each loaded when it is used."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from config.layers import own_file
from scheduler.cli.guesses import ALIASES, meant
from scheduler.cli.shell.command import CommandGroup
from scheduler.cli.shell.context import Cli, GlobalOptions

# name -> module and summary. The module has a group ``app``, or a command by itself, named behind the colon.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("scheduler.cli.commands.init:init", "Create settings for this machine, and a database."),
    "status": ("scheduler.cli.commands.status:status", "On track or not, actions, jobs, sessions, hours: one screen."),
    "top": ("scheduler.cli.commands.top:top", "The status, live."),
    "prompt": ("scheduler.cli.commands.daemon:prompt", "One cached line for shell prompts."),
    "queue": ("scheduler.cli.commands.queue", "Jobs: add, list, hold, cancel, reorder."),
    "pause": ("scheduler.cli.commands.daemon:pause", "Start no new sessions; running sessions continue."),
    "resume": ("scheduler.cli.commands.daemon:resume", "Start new sessions again."),
    "submit": ("scheduler.cli.commands.submit", "Train a script: its folder becomes a job."),
    "corpus": ("scheduler.cli.commands.corpus", "Training data: build, show, compare, verify."),
    "advise": ("scheduler.cli.commands.advise:advise", "Whether a model fits a GPU, how long it takes, what it costs."),
    "plan": ("scheduler.cli.commands.plan", "What runs next, and why a job waits."),
    "cost": ("scheduler.cli.commands.pools:cost", "Hours and money: spent and planned, by job, pool and week."),
    "quota": ("scheduler.cli.commands.pools:quota", "Metered hours and money: limits, use, what is left."),
    "pools": ("scheduler.cli.commands.pools", "Pools, where sessions run: list, open, close."),
    "runs": ("scheduler.cli.commands.runs", "Runs, one for each session: list, show, logs, stop."),
    "handover": ("scheduler.cli.commands.handover", "Manual sessions: claim, submit, release."),
    "checkpoints": ("scheduler.cli.commands.checkpoints", "Saved states: list, verify, copy, keep."),
    "models": ("scheduler.cli.commands.models", "Versions of models: evaluate, promote, roll back, deploy."),
    "events": ("scheduler.cli.commands.runs:events", "What happened, the newest last."),
    "report": ("scheduler.cli.commands.report", "The weekly report."),
    "rehearse": ("scheduler.cli.commands.rehearse:rehearse", "Rehearse a week on this machine in minutes."),
    "service": ("scheduler.cli.commands.service", "The daemon as a systemd service."),
    "web": ("scheduler.cli.commands.web", "The status page in a browser, its JSON API and metrics."),
    "port": ("scheduler.cli.commands.web:port", "For programs: frames of JSON on standard input and output."),
    "mcp": ("scheduler.cli.commands.web:mcp", "For coding agents: the Model Context Protocol."),
    "daemon": ("scheduler.cli.commands.daemon:daemon", "Plan, launch and reconcile sessions, until stopped."),
    "doctor": ("scheduler.cli.commands.doctor:doctor", "Check the installation."),
    "acceptance": ("scheduler.cli.commands.acceptance:acceptance", "Try out an account, cheaply."),
    "backup": ("scheduler.cli.commands.db:backup_all", "Back up database, settings and artifacts; test the restore."),
    "db": ("scheduler.cli.commands.db", "The database: create, upgrade, back up, verify."),
    "config": ("scheduler.cli.commands.doctor", "The settings, and where each is set."),
    "version": ("scheduler.cli.commands.daemon:version", "The version of this program."),
}


class Root(CommandGroup):
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
        module, _, alone = COMMANDS[cmd_name][0].partition(":")
        command = get_command(getattr(import_module(module), alone or "app"))
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries from the tables, so that help loads no command."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])
        with formatter.section("Second names"):
            formatter.write_dl([(name, f"The same as: {command}") for name, command in ALIASES.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that ``args`` begin with. Raises UsageFault with what to type for a known wrong guess.

        A misspelled one gets its nearest names.
        """
        guess = meant(args, str(own_file(ctx.obj.options.config, os.environ))) if ctx.obj else None
        args = guess or args
        if args[0] in ALIASES:
            args = [*ALIASES[args[0]].split(), *args[1:]]
        # typer looks for near names among the commands already loaded.
        self.commands = dict.fromkeys([*COMMANDS, *ALIASES])  # type: ignore[assignment]
        return super().resolve_command(ctx, args)


def invoke(words: Sequence[str], options: GlobalOptions) -> int:
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
        from scheduler.cli.commands.daemon import show_version

        show_version(ctx.obj)
        raise typer.Exit


def _schedctl(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_version)
    ] = False,
) -> None:
    """Train a family of models from scarce, metered GPU hours."""
    del version
