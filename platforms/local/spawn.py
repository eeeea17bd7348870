"""Spawn: starts the keeper of a session, as a child that leaves us, or in a unit of its own through the runner.

A child lives in the control group and the sandbox of whoever starts it. The daemon of a service must therefore not
have any: sessions would lose their devices, and would end with it.
"""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import platforms
from platforms.base import SecretWay
from platforms.local.records import KEEPER_LOG

RUNNER_VARIABLE = "UFF_LOCAL_RUNNER"  # set by the service's unit: the socket at which the service manager waits
CLAIM_SECONDS = 10  # real seconds a keeper may take to claim; it takes a hundredth of one
_KEEPER = "import sys; sys.path.append(sys.argv.pop(1)); from platforms.local.keeper import main; main()"
_CLAIMED = b"1"
# The daemon's environment holds secrets of mail servers and accounts; a session gets what programs need to
# run.
_ENVIRONMENT = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|VIRTUAL_ENV|XDG_CACHE_HOME|"
    r"(CUDA|NVIDIA|NCCL|OMP|MKL|OPENBLAS)_\w+"
)


def of_sessions(environment: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """Return what sessions get of an environment: nothing else of it, but for what is ``passed`` by name."""
    return {name: text for name, text in environment.items() if _ENVIRONMENT.fullmatch(name) or name in passed}


def secret_way(settings: Mapping[str, str]) -> SecretWay:
    """Return how sessions here get secrets: in their environment, whatever the settings are."""
    del settings
    return SecretWay("given")


def as_child(python: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Start a keeper that leaves us at once; return whether it claimed the session. Raises OSError."""
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
            raise AssertionError("a pipe was asked for")
        answered = select.poll()
        answered.register(starter.stdout, select.POLLIN)
        if answered.poll(CLAIM_SECONDS * 1000):
            return starter.stdout.read(1) == _CLAIMED
        starter.kill()
        return False


def through_runner(runner: str, folder: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Have the service manager start a keeper in a unit of its own; return whether it claimed the session.

    Raises OSError when nobody waits at ``runner``; then nothing was started.
    """
    (folder / KEEPER_LOG).touch()
    order = {"folder": str(folder), "arguments": list(arguments), "environment": dict(environment)}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CLAIM_SECONDS)
        try:
            connection.connect(runner)
        except OSError as error:
            why = f"nobody starts sessions at {runner} ({error.strerror or error})"
            raise OSError(error.errno, f"{why}. Run: systemctl start uff-local.socket") from error
        try:
            connection.sendall(json.dumps(order).encode() + b"\n")
            return connection.recv(1) == _CLAIMED
        except (TimeoutError, ConnectionError):
            return False
