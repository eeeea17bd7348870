"""Private places: what of this machine belongs to the daemon alone, so that no session may see it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from config.layers import SYSTEM_FILE, own_file
from config.shipped import shipped

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from config.settings import Settings

_SOCKETS = "/var/run/postgresql"  # where libpq looks when an address names no host
_SHIPPED = shipped("defaults.toml").parent
_FOLDERS = {"uff-scheduler", ".aws", ".kaggle"}  # hidden as a whole, for a file in them may be replaced at any time


def private_places(
    settings: Settings, secrets: Iterable[Path], database: Path | None, environ: Mapping[str, str]
) -> list[Path]:
    """Return the state folder, the store, the settings, the ``database`` with its side files, and ``secrets``."""
    files = [*settings.files, own_file(None, environ), SYSTEM_FILE, *secrets]
    found = [settings.state_dir, settings.artifacts.root]
    found += [file.parent if file.parent.name in _FOLDERS else file for file in files if file.parent != _SHIPPED]
    if database is not None:
        found += [Path(f"{database}{ending}") for ending in ("", "-wal", "-shm", "-journal")]
    elif settings.database_url:
        # The server believes the user behind a socket.
        hosts = re.findall(r"[?&\s]host=([^&\s]+)", settings.database_url) or [_SOCKETS]
        found += [Path(place) for place in map(unquote, hosts) if place.startswith("/")]
    return [place.absolute() for place in found]
