"""Start the keeper of a session, as a detached child or through the runner in a unit of its own.

A child lives in the control group and the sandbox of its parent. So a daemon that runs as a service must not start
sessions as its children: they would have no access to devices, and would end with the service.
"""

import json
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import platforms
from platforms.base import SecretWay
from platforms.local.records import CACHE, KEEPER_LOG, WORK

_TRY = "import sys; sys.path.append(sys.argv[1]); from platforms.local.view import enter; enter('')"
_TRY_SECONDS = 20
REMEDY = "Let this user make user namespaces: docs/security.md, Local sessions. Until then add only jobs that you trust"
UNHIDDEN = "this session can read the files of the daemon"
RUNNER_VARIABLE = "UFF_LOCAL_RUNNER"  # set by the service's unit: the socket on which the service manager listens
CLAIM_SECONDS = 10  # real seconds a keeper may take to claim; it usually takes 0.01
_KEEPER = "import sys; sys.path.append(sys.argv.pop(1)); from platforms.local.keeper import main; main()"
_CLAIMED = b"1"
# The daemon's environment contains the secrets of mail servers and accounts; a session gets only what programs need to
# run.
_ENVIRONMENT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|XDG_CACHE_HOME|"
    r"(CUDA|NVIDIA|NCCL|OMP|OMPI|PMIX|MKL|OPENBLAS)_\w+"  # OMPI, PMIX: how MPI starts in images that have it
)


# Which sessions get a view, and whether views work on this machine. See view.py.
@cache
def obstacle() -> str:
    """Return why sessions cannot have a view if the daemon is not a service; empty if they can.

    Sessions of root cannot: scorers run code as another user, and a session with a single user id cannot switch to it.
    """
    if os.geteuid() == 0:
        return "the daemon runs as root"
    home = str(Path(__file__).parent.parent.parent)
    try:
        trial = subprocess.run(
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
    return "" if trial.returncode == 0 else (trial.stderr.strip().splitlines() or ["no answer"])[-1]


def outside(environ: Mapping[str, str], runner: str) -> list[Path]:
    """Return further paths to hide: credentials, ssh keys, and sockets that start programs for this user."""
    user = os.geteuid()
    home, runtime = environ.get("HOME"), environ.get("XDG_RUNTIME_DIR") or f"/run/user/{user}"
    paths = [Path("/run/credentials"), Path(runtime), Path(runner) if runner else None]
    # Sockets of persistent terminals: with access to one, a session could type commands into it.
    paths += [Path(environ.get("TMUX_TMPDIR") or "/tmp") / f"tmux-{user}", Path("/run/screen")]  # noqa: S108 - theirs
    paths += [Path(home) / ".ssh"] if home else []
    paths += [Path(environ["SSH_AUTH_SOCK"])] if environ.get("SSH_AUTH_SOCK") else []
    names = ("docker.sock", "podman/podman.sock", "containerd/containerd.sock", "crio/crio.sock", "libvirt")
    paths += [Path("/run") / name for name in names]
    paths += [Path("/var/lib/lxd/unix.socket"), Path("/var/snap/lxd/common/lxd/unix.socket")]
    return [place for place in paths if place]


def view_of(folder: Path, hidden: Iterable[Path], programs: Iterable[Path], store: Mapping[str, Any]) -> str:
    """Return the text of a session's view, for view.enter. Creates the folders of the store that it may write to.

    ``folder`` is the session's folder, ``programs`` are the files and folders that it runs from, ``store`` is its
    address of the artifact store. Raises OSError.
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
    """Resolve the folders above a path, but not the path itself: a session could have made it a link."""
    return f"{os.path.realpath(path.parent)}/{path.name}"


def home_in(view: str, environment: Mapping[str, str]) -> bool:
    """Return whether a view hides the home folder of an environment."""
    home = os.path.realpath(environment.get("HOME") or "/nonexistent")
    hidden = [entry[5:] for entry in view.split("\0") if entry.startswith("hide ")]
    return any(Path(home).is_relative_to(path) for path in hidden)


def of_sessions(environment: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """Return the variables of an environment that sessions get: the usual ones and those ``passed`` by name."""
    return {name: text for name, text in environment.items() if _ENVIRONMENT.fullmatch(name) or name in passed}


def secret_way(settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions here get secrets: always in their environment."""
    del settings
    return SecretWay("given")


def as_child(python: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start a keeper that detaches at once; return whether it claimed the session. Raises OSError."""
    home = str(Path(platforms.__file__).parent.parent)
    with (
        (folder / KEEPER_LOG).open("ab") as keeper_log,
        subprocess.Popen(
            [python, "-I", "-S", "-c", _KEEPER, home, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=keeper_log,
            cwd="/",
            env=dict(environment),
            start_new_session=True,
        ) as starter,
    ):
        if starter.stdout is None:
            raise AssertionError("Popen with PIPE has an output")
        poller = select.poll()
        poller.register(starter.stdout, select.POLLIN)
        if poller.poll(CLAIM_SECONDS * 1000):
            return starter.stdout.read(1) == _CLAIMED
        starter.kill()
        return False


def through_runner(runner: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start a keeper in a unit of its own through the service manager; return whether it claimed the session.

    Raises OSError if no runner listens at ``runner``; then nothing was started.
    """
    (folder / KEEPER_LOG).touch()
    order = {"folder": str(folder), "arguments": list(arguments), "environment": dict(environment)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CLAIM_SECONDS)
        try:
            connection.connect(runner)
        except OSError as error:
            why = f"no service starts sessions at {runner} ({error.strerror or error})"
            raise OSError(error.errno, f"{why}. Run: systemctl start uff-local.socket") from error
        try:
            connection.sendall(json.dumps(order).encode() + b"\n")
            return connection.recv(1) == _CLAIMED
        except (TimeoutError, ConnectionError):
            return False
