"""Service status: what systemd says of our units."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.host.installation import MAIN, SOCKET, WEB, ServiceRefused

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "StatusText", "MainPID", "NRestarts", "Result", "UnitFileState")
_SECONDS = 20


@dataclass(frozen=True, slots=True)
class UnitStatus:
    """One unit. ``state`` is ``active (running)`` or the like; ``missing`` when it is not installed."""

    unit: str
    state: str
    enabled: bool
    status: str
    pid: int | None
    restarts: int
    result: str

    @property
    def installed(self) -> bool:
        """Whether there is such a unit."""
        return self.state != "missing"

    @property
    def well(self) -> bool:
        """Whether it does what it is there for."""
        return self.state.startswith(("active", "reloading"))


def unit_statuses(systemctl: Sequence[str]) -> list[UnitStatus]:
    """Return the status of the daemon, the socket that starts local sessions, and the status page.

    Raises ServiceRefused when systemd does not answer.
    """
    return [_read(systemctl, unit) for unit in (MAIN, SOCKET, WEB)]


def running_sessions(systemctl: Sequence[str]) -> list[str]:
    """Return the units of the local sessions that run. Raises ServiceRefused."""
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
