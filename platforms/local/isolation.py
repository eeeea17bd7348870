"""Isolation: which files a session is given a view of, and whether views work on this machine. See view.py."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from platforms.local.records import CACHE, WORK

_TRY = "import sys; sys.path.append(sys.argv[1]); from platforms.local.view import enter; enter('')"
_TRY_SECONDS = 20
REMEDY = "Let this user make user namespaces: docs/security.md, Local sessions. Until then add only jobs that you trust"


@cache
def obstacle() -> str:
    """Return why sessions in the foreground cannot be given a view of their own; empty when they can.

    Root's are not: code that scorers run needs another user there, whom a session with one user id cannot become.
    """
    if os.geteuid() == 0:
        return "the daemon runs as root"
    home = str(Path(__file__).parent.parent.parent)
    try:
        tried = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY, home],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TRY_SECONDS,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["no answer"])[-1]


def outside(environ: Mapping[str, str], runner: str) -> list[Path]:
    """Return what opens doors besides the settings: whatever starts programs for this user, and its keys for ssh."""
    home, runtime = environ.get("HOME"), environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    found = [Path("/run/credentials"), Path(runtime), Path(runner) if runner else None]
    found += [Path(home) / ".ssh"] if home else []
    found += [Path(environ["SSH_AUTH_SOCK"])] if environ.get("SSH_AUTH_SOCK") else []
    found += [Path(name) for name in ("/run/docker.sock", "/run/podman/podman.sock")]
    return [place for place in found if place]


def view_of(folder: Path, hidden: Iterable[Path], programs: Iterable[Path], store: Mapping[str, Any]) -> str:
    """Return the text of a session's view, for view.enter. Makes the folders of the store that it may write to.

    ``folder`` is the session's, ``programs`` are files and folders that it runs from, ``store`` is the address that it
    was given. Raises OSError.
    """
    hide, read, write = [*hidden], [folder, *programs], [folder / WORK, folder.parent / CACHE]
    if store.get("kind") == "directory":
        root = Path(os.path.realpath(folder / store["root"]))
        hide.append(root)
        read += [root / key for key in store.get("reads", ())]
        for prefix in store.get("writes", ()):
            (root / prefix).mkdir(parents=True, exist_ok=True)
            write.append(root / prefix)
        inside = {path for path in write if path.is_relative_to(root)}
        read = [path for path in read if inside.isdisjoint((path, *path.parents))]
    entries = [
        *(("hide", os.path.realpath(path)) for path in hide),
        *(("read", _real(path)) for path in read),
        *(("write", _real(path)) for path in write),
    ]
    return "".join(f"{kind} {path}\0" for kind, path in dict.fromkeys(entries))


def _real(path: Path) -> str:
    """Return a path whose folders above are real: a link at its end must not lead where its writer likes."""
    return f"{os.path.realpath(path.parent)}/{path.name}"


def home_in(view: str, environment: Mapping[str, str]) -> bool:
    """Return whether the home folder that an environment names is hidden in a view."""
    home = os.path.realpath(environment.get("HOME") or "/nonexistent")
    hidden = [entry[5:] for entry in view.split("\0") if entry.startswith("hide ")]
    return any(Path(home).is_relative_to(path) for path in hidden)
