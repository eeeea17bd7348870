"""`schedctl daemon`, `pause`, `resume`, `prompt` and `version`."""

from importlib.metadata import version as version_of
from platform import python_version

from scheduler.cli.prompt import show_line
from scheduler.cli.shell.command import Reason, command
from scheduler.cli.shell.context import Cli


@command("schedctl daemon", "schedctl --config /etc/uff-scheduler/config.toml daemon")
def daemon(cli: Cli) -> None:
    """Plan, launch and reconcile sessions until SIGTERM or Ctrl-C. Running sessions go on without it.

    SIGHUP makes it reload its settings; settings with an error change nothing. Logs go to standard error or
    the file of the settings. Exits with 8 when another daemon of this state folder
    runs, or another one takes over; where that one has another state folder but the same database, it stands by.
    """
    from scheduler.cli.run_daemon import run_daemon

    run_daemon(cli)


@command("schedctl pause", "schedctl pause --reason 'the building has no power on Sunday'")
def pause(cli: Cli, why: Reason = "") -> None:
    """Start nothing new until schedctl resume; running sessions go on."""
    from scheduler.store import limits, runs

    sentence = f"everything is paused by {cli.who}{': ' * bool(why)}{why}"
    with cli.app.database.write() as tx:
        limits.close_pool(tx, limits.EVERY, None, sentence, cli.now, cli.who)
        live = len(runs.live(tx))
    cli.out.data({"paused": True, "why": sentence, "sessions_live": live})
    going = f" {live} {'session goes' if live == 1 else 'sessions go'} on to the end." if live else ""
    cli.out.line(f"Nothing new starts.{going} To go on: schedctl resume")
    cli.wake_daemon()


@command("schedctl resume")
def resume(cli: Cli) -> None:
    """Start new sessions again. Closed pools stay closed, and jobs on hold stay on hold."""
    from scheduler.store import limits

    with cli.app.database.write() as tx:
        before = limits.paused(tx)
        limits.open_pool(tx, limits.EVERY, cli.now, cli.who)
    cli.out.data({"paused": False, "was_paused": before is not None})
    was = f"Until now, since {cli.out.instant(before.at)}: {before.why}." if before else ""
    cli.out.line(f"Resumed: new sessions start again. ({was})" if before else "Nothing was paused.")
    cli.wake_daemon()


@command("schedctl prompt")
def prompt(cli: Cli) -> None:
    """Print the daemon's cached line for shell prompts. No daemon yet: nothing.

    The line lies in the file status.line of the state folder, and in /run/uff-scheduler for the service.
    """
    config = cli.options.config
    show_line(None if config is None else str(config))


@command("schedctl version --json")
def version(cli: Cli) -> None:
    """Show the version of this program and its Python."""
    versions = {"version": version_of("uff-scheduler"), "python": python_version()}
    cli.plain.data(versions)
    cli.plain.line(f"schedctl {versions['version']} (Python {versions['python']})")
