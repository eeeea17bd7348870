"""The root group of ``schedctl`` and its table of commands, each loaded on first use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from config.layers import own_file
from scheduler.cli.guesses import ALIASES, meant
from scheduler.cli.shell.command import CommandGroup, later
from scheduler.cli.shell.context import Cli, GlobalOptions

# name -> module and function (see scheduler.cli.shell.command.Later), and summary.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("init:init", "Create settings for this machine, and a database."),
    "status": ("status:status", "On track or not, actions, jobs, sessions, hours: one screen."),
    "top": ("top:top", "The status, live."),
    "prompt": ("daemon:prompt", "One cached line for shell prompts."),
    "queue": ("groups:queue", "Jobs: add, list, hold, cancel, reorder."),
    "pause": ("daemon:pause", "Start no new sessions; running sessions continue."),
    "resume": ("daemon:resume", "Start new sessions again."),
    "submit": ("submit_jobs:submit", "Train a script: its folder becomes a job."),
    "certify": ("certify:certify", "Interrupt a script here, and check that it resumes."),
    "corpus": ("groups:corpus", "Training data: build, show, compare, verify."),
    "advise": ("advise:advise", "Whether a model fits a GPU, how long it takes, what it costs."),
    "plan": ("groups:plan", "What runs next, and why a job waits."),
    "cost": ("pools:cost", "Hours and money: spent and planned, by job, pool and week."),
    "quota": ("pools:quota", "Metered hours and money: limits, use, what is left."),
    "pools": ("groups:pools", "Pools, where sessions run: list, open, close."),
    "runs": ("groups:runs", "Runs, one for each session: list, show, logs, stop."),
    "handover": ("groups:handover", "Manual sessions: claim, submit, release."),
    "checkpoints": ("groups:checkpoints", "Saved states: list, verify, copy, keep."),
    "models": ("groups:models", "Versions of models: evaluate, promote, roll back, deploy."),
    "events": ("runs:list_events", "What happened, the newest last."),
    "report": ("groups:report", "The weekly report."),
    "rehearse": ("rehearse:rehearse", "Rehearse a week on this machine in minutes."),
    "service": ("groups:service", "The daemon as a systemd service."),
    "web": ("groups:web", "The status page in a browser, its JSON API and metrics."),
    "port": ("web:port", "For programs: frames of JSON on standard input and output."),
    "agents": ("groups:agents", "What coding agents propose: list, approve, reject."),
    "mcp": ("web:mcp", "For coding agents: the Model Context Protocol."),
    "daemon": ("daemon:daemon", "Plan, launch and reconcile sessions, until stopped."),
    "doctor": ("doctor:doctor", "Check the installation."),
    "acceptance": ("acceptance:acceptance", "Try out an account, cheaply."),
    "backup": ("db:backup_all", "Back up database, settings and artifacts; test the restore."),
    "db": ("groups:db", "The database: create, upgrade, back up, verify."),
    "config": ("groups:config", "The settings, and where each is set."),
    "version": ("daemon:version", "The version of this program."),
}


class Root(CommandGroup):
    """The root group: all commands and their aliases."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of the commands and the aliases."""
        super().format_commands(ctx, formatter)
        with formatter.section("Second names"):
            formatter.write_dl([(name, f"The same as: {command}") for name, command in ALIASES.items()])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with; aliases are resolved.

        Raises UsageFault with the right command for a known wrong guess; a misspelled command gets similar names.
        """
        guess = meant(args, str(own_file(ctx.obj.options.config, os.environ))) if ctx.obj else None
        args = guess or args
        if args[0] in ALIASES:
            args = [*ALIASES[args[0]].split(), *args[1:]]
        return super().resolve_command(ctx, args)


def invoke(words: Sequence[str], options: GlobalOptions) -> int:
    """Parse one command line, run the command and return its exit code. Errors of the command are not caught."""
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
    later(app, COMMANDS)
    second = {name: (COMMANDS[word.split()[0]][0], f"The same as: {word}") for name, word in ALIASES.items()}
    later(app, second, hidden=True)  # registered so that misspelled aliases get suggestions
    root = get_command(app)
    if not isinstance(root, TyperGroup):
        raise TypeError("the root of the command tree is no group")
    return root


def _version(ctx: typer.Context, value: bool) -> None:
    """Print the version and exit; other options are ignored."""
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
