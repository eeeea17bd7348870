"""Doctor: what of this machine the scheduler needs: libraries of the right versions, and the service manager."""

from __future__ import annotations

import re
import socket
import stat
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of
from pathlib import Path

from jobs.plural import counted
from jobs.problem import Problem
from platforms import plugin
from platforms.base import Checked, Misconfigured
from platforms.local.spawn import REMEDY, obstacle
from platforms.registry import shipped
from scheduler.host.doctor import OUR_DISTRIBUTION
from scheduler.host.installation import MAIN, ServiceRefused
from scheduler.host.systemd_status import unit_statuses

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?(?P<bounds>[^;]*)(;.*extra\s*==\s*['\"](?P<extra>\w+)['\"])?"
)
_BOUND = re.compile(r"(>=|<)\s*([\d.]+)")
_BOOTED = Path("/run/systemd/system")


def check_versions(extras: Collection[str]) -> Checked:
    """Compare the installed libraries of the core and of ``extras`` with the versions this release was tested with."""
    versions, wrong, missing = [], [], set()
    for line in requires(OUR_DISTRIBUTION) or ():
        match = _REQUIREMENT.match(line)
        if match is None or (match["extra"] and match["extra"] not in extras):
            continue
        try:
            installed = version_of(match["name"])
        except PackageNotFoundError:
            wrong.append(f"{match['name']} is missing")
            missing.add(match["extra"] or "")
            continue
        bounds = match["bounds"].strip()
        if not _within(installed, bounds):
            wrong.append(f"{match['name']} {installed} is not {bounds}")
        elif match["extra"]:
            versions.append(f"{match['name']} {installed}")
    if wrong:
        names = ",".join(sorted(filter(None, missing)) or sorted(extras))
        wanted = f"{OUR_DISTRIBUTION}[{names}]" if names else OUR_DISTRIBUTION
        return Checked("bad", "; ".join(wrong), f"Install what this release was tested with: {wanted}")
    return Checked("ok", ", ".join(sorted(versions)) or "those of the core")


def check_plugin(platform: str) -> Checked:
    """Load a platform that another package brings; a shipped one of the same name is the one that counts."""
    words = " and ".join(map(plugin.source, plugin.offered()[platform]))
    if platform in shipped():
        return Checked("warning", f"{words}: never used, for {platform} is a platform of our own", "Uninstall it")
    try:
        distribution = plugin.find(platform)
    except Misconfigured as error:
        return Checked("bad", error.why, error.remedy)
    return Checked("ok", f"{words}, contract {distribution.contract if distribution else 0}")


def check_service() -> Checked:
    """Ask systemd about the daemon's unit, where there is a systemd."""
    if not _BOOTED.is_dir():
        return Checked("ok", "this machine has no systemd; the daemon runs in the foreground")
    try:
        unit = unit_statuses(("systemctl",))[0]
    except ServiceRefused as error:
        return Checked("warning", error.why, error.remedy)
    if not unit.installed:
        return Checked("ok", "not installed as a service: schedctl service install")
    state = f"{MAIN} is {unit.state}" + (f", restarted {counted(unit.restarts, 'time')}" if unit.restarts else "")
    if unit.well:
        return Checked("ok" if unit.enabled else "warning", state, "" if unit.enabled else f"systemctl enable {MAIN}")
    return Checked("bad" if unit.enabled else "warning", state, f"Look at: journalctl -e -u {MAIN}")


def check_sandbox() -> Checked:
    """Try the sandbox for code that models write. Only scorers that run such code need one, and refuse without it."""
    from jobs.payload.scorers.sandbox.limits import SandboxMissing
    from jobs.payload.scorers.sandbox.probe import check_sandbox as tried

    try:
        return Checked("ok", tried())
    except SandboxMissing as missing:
        return Checked("ok", f"none ({missing.why}): scorers that run code refuse here; to have one, {missing.remedy}")


def check_privacy(state_dir: Path, database: Path | None, exposed: Sequence[Problem] = ()) -> Checked:
    """See that no other user can read the database, the lock and what sessions left, nor secrets in the settings.

    ``exposed`` are the settings whose secrets others may read.
    """
    if exposed:
        return Checked("warning", f"{exposed[0].file}: {exposed[0].key}: {exposed[0].why}", exposed[0].remedy)
    names = [f"{database}{ending}" for ending in ("", "-wal", "-shm")] if database else []
    places = [state_dir, *map(Path, names), *(state_dir / name for name in ("daemon.lock", "wake", "sessions"))]
    closed = _others(state_dir) == 0
    open_to_all = [
        str(place) for place in places if _others(place) and not (closed and place.is_relative_to(state_dir))
    ]
    if open_to_all:
        remedy = f"Close them: chmod go= {' '.join(open_to_all)}"
        return Checked("warning", f"others on this machine may read {', '.join(open_to_all)}", remedy)
    return Checked("ok", f"only this user reads {state_dir}")


def _others(place: Path) -> int:
    """Return the rights that others have; none where there is nothing."""
    try:
        return place.stat().st_mode & (stat.S_IRWXO | stat.S_IRWXG)
    except OSError:
        return 0


def check_isolation() -> Checked:
    """Try whether local sessions can be kept from the files of the daemon."""
    if why := obstacle():
        warning = f"local sessions can read credentials and write the database and other jobs' objects: {why}"
        return Checked("warning", warning, REMEDY)
    return Checked("ok", "local sessions see no credentials, no database, no settings and no objects of other jobs")


def check_runner(address: str) -> Checked:
    """See that the service manager waits where local sessions are started; connecting starts nothing."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.settimeout(5)
            caller.connect(address)
    except OSError as error:
        why = f"no runner answers at {address}: {error.strerror or error}"
        return Checked("bad", why, "systemctl start uff-local.socket")
    return Checked("ok", f"answers at {address}")


def _within(installed: str, bounds: str) -> bool:
    """Return whether a version keeps lower and upper bounds; of pre-releases only the numbers count."""
    version = _numbers(installed)
    return all(
        version >= _numbers(limit) if sign == ">=" else version < _numbers(limit)
        for sign, limit in _BOUND.findall(bounds)
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, so that 1.10 is above 1.9; 2.0 equals 2."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
