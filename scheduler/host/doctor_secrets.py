"""Doctor: whether each secret that an open job names is there, as far as this user can tell."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from config.credentials import VARIABLE
from config.errors import ConfigError
from jobs.plural import counted
from platforms.base import Checked
from scheduler.host.installation import MAIN
from scheduler.service.facts.snapshot import gives_secrets
from scheduler.store import jobs

if TYPE_CHECKING:
    from config.errors import Problem
    from scheduler.app import App

_UNITS = (Path("/etc/systemd/system"), Path("~/.config/systemd/user"))
_HANDED_OVER = re.compile(r"^LoadCredential(?:Encrypted)?=([A-Z][A-Z0-9_]*):", re.MULTILINE)


def trouble(app: App, name: str) -> Problem | None:
    """Return what is wrong with a secret; None for nothing, or when the service gets it from where we may not look."""
    try:
        app.read_secret(name)
    except ConfigError as error:
        return None if name in _handed_over() else error.problems[0]
    return None


def check_secrets(app: App) -> Checked:
    """Look for what the daemon has to give; what sessions ask their platform for only they can look for."""
    with app.database.read() as tx:
        specs = [record.spec for record in jobs.everything(tx, {"queued", "active", "held"})]
    wanted: dict[str, list[str]] = {}
    for spec in specs:
        pools = [pool for name, pool in app.pools.items() if not spec.pools or name in spec.pools]
        for name in spec.secrets if any(map(gives_secrets, pools)) else ():
            wanted.setdefault(name, []).append(spec.name)
    missing = {name: wrong for name in sorted(wanted) if (wrong := trouble(app, name))}
    if missing:
        told = "; ".join(f"{name} of {', '.join(wanted[name])}: {wrong.why}" for name, wrong in missing.items())
        return Checked("bad", told, next(iter(missing.values())).remedy)
    asked = sorted({name for spec in specs for name in spec.secrets} - set(wanted))
    elsewhere = f"; their platform is asked for {', '.join(asked)}" if asked else ""
    return Checked("ok", f"{counted(len(wanted), 'secret')} of open jobs to give, all there{elsewhere}")


def _handed_over() -> set[str]:
    """Return the secrets that the installed service gets from its manager; nothing inside that service itself."""
    found: set[str] = set()
    for units in _UNITS if not os.environ.get(VARIABLE) else ():
        try:
            text = (units.expanduser() / f"{MAIN}.d" / "credentials.conf").read_text(encoding="utf-8")
        except (OSError, RuntimeError, UnicodeDecodeError):  # nothing installed, no home, or not for us to read
            continue
        found.update(_HANDED_OVER.findall(text))
    return found
