"""Installation as a systemd service: a list of steps that can be displayed before they are carried out.

The units are in systemd/ (in a wheel below scheduler/), with @NAMES@ for values of the machine. A person makes changes
in drop-ins, so that an installation after an upgrade can replace the units and keep the changes.
"""

import os
import re
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import scheduler
from jobs.problem import Refusal

MAIN, WEB, SOCKET, SESSION = "uff-scheduler.service", "uff-web.service", "uff-local.socket", "uff-local@.service"
STATE = Path("/var/lib/uff-scheduler")
FOLDER = Path("/etc/uff-scheduler")
_PACKAGE = Path(scheduler.__file__).parent
# In a work tree the units are in a separate folder beside the package.
_TEMPLATES = (_PACKAGE if (_PACKAGE / "systemd").is_dir() else _PACKAGE.parent) / "systemd"
_CREDENTIAL = re.compile(r"[A-Za-z0-9._-]{1,100}")
_ENCRYPTED = ".cred"
_OF_WEB = ("web", "web-actions")  # credentials that only the unit of the status page loads
_FOR_WEB = ("database_url", *_OF_WEB)
_HIDDEN_FOLDERS = ("/home", "/root", "/run/user")  # the unit's ProtectHome hides these from the service


class ServiceRefused(Refusal):
    """The service cannot be installed or queried in the present state."""

    def __init__(self, why: str, remedy: str, *, needs_root: bool = False) -> None:
        super().__init__("no service", why, remedy)
        self.needs_root = needs_root


@dataclass(frozen=True, slots=True)
class FileWrite:
    """Write a file; with ``keep`` an existing one is not changed."""

    path: Path
    text: str
    keep: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file if it exists."""

    path: Path


@dataclass(frozen=True, slots=True)
class CommandRun:
    """Run a command."""

    words: tuple[str, ...]


Step = FileWrite | Remove | CommandRun


@dataclass(frozen=True, slots=True)
class Installation:
    """The values of an installation that differ between machines.

    ``folder`` contains settings and credentials, ``units`` the units. ``writable`` are the folders that the settings
    name besides the state folder. ``root`` is the folder to write to: / for this machine, another one for an image.
    """

    python: Path
    schedctl: Path
    config: Path
    folder: Path
    units: Path
    state: Path
    writable: tuple[Path, ...] = ()
    user: bool = False
    web: bool = False
    root: Path = Path("/")

    def at(self, path: Path) -> Path:
        """Return ``path`` below ``root``."""
        return self.root / path.relative_to("/")

    @property
    def systemctl(self) -> tuple[str, ...]:
        """The systemctl command for the system or user manager."""
        return ("systemctl", "--user") if self.user else ("systemctl",)


def install_steps(place: Installation, *, start: bool) -> list[Step]:
    """Return the steps that install or update, and with ``start`` (re)start, the service. Raises ServiceRefused."""
    names = [MAIN, SOCKET, SESSION, *([WEB] if place.web else [])]
    steps: list[Step] = [FileWrite(place.config, _filled(place, "config.toml"), keep=True)]
    steps += [FileWrite(place.units / name, _filled(place, f"user/{name}" if place.user else name)) for name in names]
    steps += _credentials(place)
    sysusers, tmpfiles = _system_files()
    if not place.user:
        missing = [path for path in place.writable if not place.at(path).exists()]  # folders of the settings
        folders = "".join(f"d {path} 0700 uff-scheduler uff-scheduler\n" for path in missing)
        steps.append(FileWrite(sysusers, _filled(place, "sysusers.conf")))
        steps.append(FileWrite(tmpfiles, _filled(place, "tmpfiles.conf") + folders))
    if place.root != Path("/"):
        return steps  # an image has no running systemd; the units are enabled when it boots
    if not place.user:
        steps.append(CommandRun(("systemd-sysusers", str(sysusers))))
        steps.append(CommandRun(("systemd-tmpfiles", "--create", str(tmpfiles))))
    services = (MAIN, WEB) if place.web else (MAIN,)
    steps += [CommandRun((*place.systemctl, "daemon-reload")), CommandRun((*place.systemctl, "enable", *services))]
    if start:
        # The socket need not restart; running sessions are not affected by a restart of the daemon.
        steps += [CommandRun((*place.systemctl, "start", SOCKET)), CommandRun((*place.systemctl, "restart", *services))]
    return steps


def uninstall_steps(place: Installation) -> list[Step]:
    """Return the steps that stop the service and remove its units; settings, state, user and sessions are kept."""
    there = [name for name in (MAIN, WEB, SOCKET) if place.at(place.units / name).exists()]
    steps: list[Step] = []
    if there and place.root == Path("/"):
        steps.append(CommandRun((*place.systemctl, "disable", "--now", *there)))
    steps += [Remove(place.units / name) for name in (MAIN, WEB, SOCKET, SESSION)]
    steps += [Remove(_drop_in(place, name)) for name in (MAIN, WEB)]
    if not place.user:
        steps += [Remove(path) for path in _system_files()]
    if place.root == Path("/"):
        steps.append(CommandRun((*place.systemctl, "daemon-reload")))
    return steps


def carry_out(steps: Iterable[Step], place: Installation) -> None:
    """Carry out the steps. Raises ServiceRefused with the message of a failed command, and OSError."""
    for step in steps:
        match step:
            case FileWrite(path=path, text=text, keep=keep):
                target = place.at(path)
                if not (keep and target.exists()):
                    _write(target, text)
            case Remove(path=path):
                place.at(path).unlink(missing_ok=True)
                if path.parent.name.endswith(".service.d"):
                    with suppress(OSError):  # the folder contains drop-ins of a person, or does not exist
                        place.at(path.parent).rmdir()
            case CommandRun(words=words):
                _run(words)
            case _:
                assert_never(step)


def obstacles(place: Installation) -> list[ServiceRefused]:
    """Return all reasons why the service would not work here."""
    result = []
    if place.root == Path("/"):
        if not Path("/run/systemd/system").is_dir():
            result.append(
                ServiceRefused("this machine was not booted with systemd", "Run in the foreground: schedctl daemon")
            )
        if not place.user and os.geteuid() != 0:
            remedy = "Use sudo, or install your own with --user"
            result.append(ServiceRefused("only root may write there", remedy, needs_root=True))
    if not place.user and place.root == Path("/"):
        for path in dict.fromkeys((place.schedctl, place.python, Path(os.path.realpath(place.python)))):
            why = _out_of_reach(path)
            if why:
                remedy = "Install into a folder such as /opt/uff-scheduler, with a Python of the system"
                result.append(ServiceRefused(f"the service's user cannot run {path}: {why}", remedy))
        result += [
            ServiceRefused(f"the service cannot see {path} in a home folder", "Choose another folder in the settings")
            for path in (place.state, *place.writable, place.config)
            if _in_home(path)
        ]
    return result


def _credentials(place: Installation) -> list[Step]:
    """Return the drop-ins that load the credentials of the folder; encrypted files end in .cred."""
    folder = place.folder / "credentials"
    lines: dict[str, list[str]] = {MAIN: [], WEB: []}
    there = sorted(place.at(folder).iterdir()) if place.at(folder).is_dir() else []
    for file in there:
        name = file.name.removesuffix(_ENCRYPTED)
        if not file.is_file() or not _CREDENTIAL.fullmatch(name):
            raise ServiceRefused(f"{file} is not a credential", "Keep plain files there, named A-Z a-z 0-9 . _ -")
        if file.stat().st_mode & 0o077:
            raise ServiceRefused(f"others may read {file}", f"Run: chmod 600 {file}")
        kind = "LoadCredentialEncrypted" if file.name.endswith(_ENCRYPTED) else "LoadCredential"
        line = f"{kind}={name}:{folder / file.name}"
        if name not in _OF_WEB:
            lines[MAIN].append(line)
        if name in _FOR_WEB:
            lines[WEB].append(line)
    steps: list[Step] = []
    for unit, loads in lines.items():
        text = "\n".join(
            ["# Written by `schedctl service install` from the folder of credentials", "[Service]", *loads]
        )
        path = _drop_in(place, unit)
        steps.append(FileWrite(path, text + "\n") if loads else Remove(path))
    return steps


def _drop_in(place: Installation, unit: str) -> Path:
    return place.units / f"{unit}.d" / "credentials.conf"


def _system_files() -> tuple[Path, Path]:
    return Path("/etc/sysusers.d/uff-scheduler.conf"), Path("/etc/tmpfiles.d/uff-scheduler.conf")


def _filled(place: Installation, name: str) -> str:
    """Return a shipped file with the values of this machine filled in."""
    values = {
        "SCHEDCTL": str(place.schedctl),
        "PYTHON": str(place.python),
        "CONFIG": str(place.config),
        "FOLDER": str(place.folder),
        "STATE": str(place.state),
        "WRITABLE": " ".join(map(str, place.writable)),
    }
    for value in values.values():
        # systemd would interpret them as separators and specifiers.
        if set(value) & set("%\"'\\$\n") or (" " in value and value != values["WRITABLE"]):
            raise ServiceRefused(f"{value!r} cannot stand in a unit", "Use paths without spaces and special characters")
    return re.sub("@([A-Z]+)@", lambda match: values[match[1]], (_TEMPLATES / name).read_text(encoding="utf-8"))


def _out_of_reach(path: Path) -> str:
    """Return why other users cannot run a program; "" if they can."""
    if _in_home(path):
        return "it is in a home folder"
    try:
        closed = [folder for folder in path.parents if not folder.stat().st_mode & 0o001]
        if closed:
            return f"{closed[-1]} is closed to others"
        return "" if path.stat().st_mode & 0o001 else "others may not execute it"
    except OSError as error:
        return error.strerror or str(error)


def _in_home(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _HIDDEN_FOLDERS)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    making = path.with_name(f".{path.name}.new")
    making.write_text(text, encoding="utf-8")
    making.chmod(0o644)
    making.replace(path)


def _run(words: Sequence[str]) -> None:
    command = " ".join(words)
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise ServiceRefused(f"{command}: {error.strerror}", "Install systemd, or run: schedctl daemon") from error
    if done.returncode != 0:
        listing = " ".join((done.stderr or done.stdout).split())
        raise ServiceRefused(
            f"{command}: {listing or f'exit code {done.returncode}'}", f"Look at: journalctl -e -u {MAIN}"
        )


# Status of the units, by systemd.
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result", "UnitFileState")
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """One unit. ``state`` is, for example, ``active (running)``, or ``missing`` if the unit is not installed."""

    unit: str
    state: str
    enabled: bool
    status: str
    pid: int | None
    restarts: int
    result: str

    @property
    def installed(self) -> bool:
        """Whether the unit is installed."""
        return self.state != "missing"

    @property
    def well(self) -> bool:
        """Whether the unit is active."""
        return self.state.startswith(("active", "reloading"))


def unit_statuses(systemctl: Sequence[str]) -> list[UnitStatus]:
    """Return the status of the daemon, the socket that starts local sessions, and the status page.

    Raises ServiceRefused if systemd does not answer.
    """
    return [_read(systemctl, unit) for unit in (MAIN, SOCKET, WEB)]


def running_sessions(systemctl: Sequence[str]) -> list[str]:
    """Return the units of running local sessions. Raises ServiceRefused."""
    words = ("list-units", "--plain", "--no-legend", "--type=service", "--state=running", "uff-local@*")
    return [line.split()[0] for line in _ask(systemctl, *words).splitlines() if line.strip()]


def _read(systemctl: Sequence[str], unit: str) -> UnitStatus:
    answer = _ask(systemctl, "show", unit, f"--property={','.join(_PROPERTIES)}")
    facts = dict(line.partition("=")[::2] for line in answer.splitlines())
    loaded = facts.get("LoadState") not in {None, "not-found"}
    pid = int(facts.get("MainPID") or 0)
    return UnitStatus(
        unit=unit,
        state=f"{facts.get('ActiveState')} ({facts.get('SubState')})" if loaded else "missing",
        enabled=facts.get("UnitFileState") == "enabled",
        status=facts.get("StatusText", ""),
        pid=pid or None,
        restarts=int(facts.get("NRestarts") or 0),
        result=facts.get("Result", ""),
    )


def _ask(systemctl: Sequence[str], *words: str) -> str:
    try:
        done = subprocess.run(
            [*systemctl, *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceRefused(f"systemd does not answer: {error}", "Run in the foreground: schedctl daemon") from error
    if done.returncode != 0:
        why = " ".join(done.stderr.split())
        raise ServiceRefused(f"systemd does not answer: {why}", "Run in the foreground: schedctl daemon")
    return done.stdout
