"""`schedctl service`: install, remove and check the daemon as a systemd service."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, assert_never

from platforms.registry import folders
from scheduler.app import load_app
from scheduler.cli.shell.command import command, option
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import Violations
from scheduler.host import installation

OwnOption = Annotated[bool, option("--user", "Your own service manager instead of the system's.")]
DryOption = Annotated[bool, option("--dry-run", "Show what would be done, and do nothing.")]
RootOption = Annotated[Path, option("--root DIR", "Write below DIR, an image's root, and start nothing.")]


@command("schedctl service install", "schedctl service install --user", "schedctl service install --dry-run")
def install(
    cli: Cli,
    user: OwnOption = False,
    web: Annotated[bool, option("--web", "The status page as well.")] = False,
    no_start: Annotated[bool, option("--no-start", "Start with the next boot only.")] = False,
    dry_run: DryOption = False,
    root: RootOption = Path("/"),
) -> None:
    """Install or update the service and (re)start it. Do so after an upgrade or a change of credentials.

    Settings and drop-ins that are there stay as they are. Sessions that run are not touched.
    """
    place = _place(cli, user=user, web=web, root=root)
    problems = installation.obstacles(place)
    if problems and not dry_run:
        raise problems[0]
    for obstacle in problems:
        cli.plain.warn(str(obstacle))
    _do(cli, installation.install_steps(place, start=not no_start), place, dry_run)
    if not dry_run:
        cli.plain.say(f"Installed. Settings: {place.config}. See: schedctl service status{' --user' if user else ''}")


@command("schedctl service uninstall", "schedctl service uninstall --dry-run")
def uninstall(cli: Cli, user: OwnOption = False, dry_run: DryOption = False, root: RootOption = Path("/")) -> None:
    """Stop the service and remove its units. Settings, state and user stay; local sessions go on to their end."""
    place = _place(cli, user=user, web=True, root=root, strict=False)
    rights = [obstacle for obstacle in installation.obstacles(place) if obstacle.needs_root]
    if rights and not dry_run:
        raise rights[0]
    _do(cli, installation.uninstall_steps(place), place, dry_run)
    if not dry_run:
        cli.plain.say(f"Removed. What is left, for you to keep or delete: {place.folder}, {place.state}")


@command("schedctl service status", "schedctl service status --json")
def status(cli: Cli, user: OwnOption = False) -> None:
    """Show what systemd says of the daemon, sessions and page. Exits with 9 when one failed."""
    systemctl = ("systemctl", "--user") if user else ("systemctl",)
    units = installation.unit_statuses(systemctl)
    sessions = installation.running_sessions(systemctl)
    cli.plain.data({"units": [asdict(unit) for unit in units], "sessions": sessions})
    rows = [
        (unit.unit, unit.state, "yes" if unit.enabled else "no", str(unit.pid or ""), str(unit.restarts), unit.status)
        for unit in units
    ]
    cli.plain.table(("unit", "state", "at boot", ">pid", ">restarts", "~says"), rows)
    cli.plain.line(f"Local sessions in units of their own: {', '.join(sessions) or 'none'}")
    ill = [unit for unit in units if unit.enabled and unit.installed and not unit.well]
    if ill:
        why = ", ".join(f"{unit.unit} is {unit.state}" for unit in ill)
        raise Violations("the service does not run", why, f"Look at: journalctl -e -u {ill[0].unit}")


def _place(cli: Cli, *, user: bool, web: bool, root: Path, strict: bool = True) -> installation.Installation:
    """Return the paths and options of the installation. If ``strict``, raises ConfigError for invalid settings."""
    root = root.absolute()
    home = Path("~").expanduser()
    folder = home / ".config" / "uff-scheduler" if user else installation.FOLDER
    config = (cli.options.config or folder / "config.toml").absolute()
    state = home / ".local" / "state" / "uff-scheduler" if user else installation.STATE
    writable: tuple[Path, ...] = ()
    there = root / config.relative_to("/")
    if strict and there.exists():
        settings = load_app(there, {}).settings
        state = settings.state_dir
        named = [state, settings.logging.file.parent if settings.logging.file else state]
        if settings.artifacts.kind == "directory":
            named.append(settings.artifacts.root)
        if settings.database_url.startswith("sqlite:///"):
            named.append(Path(settings.database_url.removeprefix("sqlite:///")).parent)
        named += [folder for pool in settings.pools for folder in folders(pool.platform, pool.options)]
        writable = tuple(dict.fromkeys(path for path in named if not path.is_relative_to(installation.STATE)))
    return installation.Installation(
        # The interpreter of the virtual environment: its base interpreter would not find our packages.
        python=Path(sys.executable),
        schedctl=Path(sys.executable).with_name("schedctl"),
        config=config,
        folder=folder,
        units=home / ".config/systemd/user" if user else Path("/etc/systemd/system"),
        state=state,
        writable=writable,
        user=user,
        web=web,
        root=root,
    )


def _do(cli: Cli, steps: Sequence[installation.Step], place: installation.Installation, dry_run: bool) -> None:
    if not dry_run:
        installation.carry_out(steps, place)
    lines = [_step_shown(step, place) for step in steps]
    cli.plain.data({"steps": [document for _, document in lines], "done": not dry_run})
    for line, _ in lines if dry_run else ():
        cli.plain.line(line)


def _step_shown(step: installation.Step, place: installation.Installation) -> tuple[str, dict[str, Any]]:
    """Return a step as a line of text and as a JSON document."""
    match step:
        case installation.FileWrite(path=path, text=text, keep=keep):
            line = f"write   {place.at(path)}{' (unless it is there)' if keep else ''}"
            return line, {"step": "write", "path": str(place.at(path)), "text": text, "keep": keep}
        case installation.Remove(path=path):
            return f"remove  {place.at(path)}", {"step": "remove", "path": str(place.at(path))}
        case installation.CommandRun(words=words):
            return f"run     {' '.join(words)}", {"step": "run", "command": list(words)}
        case _:
            assert_never(step)
