"""Install packages by uv or by pip: exactly those that are listed, each with the digest that it must have."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..log import log
from .failure import ErrorClass, Failure

_VARIABLES = {
    "UV_NO_CONFIG": "1",
    "UV_PYTHON_DOWNLOADS": "never",
    "UV_NO_PROGRESS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_INPUT": "1",
    "PIP_NO_COLOR": "1",
}
_SIGNED = re.compile(r"://[^/\s@]+@")  # an address with a password in it
_LINES_KEPT = 12
_LINE_CHARACTERS = 400
_NETWORK = (
    "temporary failure in name resolution",
    "name or service not known",
    "network is unreachable",
    "no route to host",
    "connection refused",
    "connection reset",
    "failed to establish a new connection",
    "error sending request",
    "read timed out",
    "dns error",
)
_DISK = ("no space left on device", "disk quota exceeded")


class Tool(NamedTuple):
    """How it is installed: from ``wheels`` alone if given, for ``lane``, whose job's ``variables`` may name an index.

    ``hold`` is a lock that the tool keeps too: should this process be killed, nobody builds here while the tool still
    writes.
    """

    wheels: Path | None
    hold: int
    lane: int
    variables: Mapping[str, str]


def install(tool: Tool, python: Path, listed: Path, reasons: str) -> None:
    """Install what the file ``listed`` names into the environment of ``python``.

    ``reasons`` tell why it was not left to the image. Raises Failure, OSError.
    """
    source = ("--no-index", "--find-links", str(tool.wheels)) if tool.wheels is not None else ()
    words = (*_words(python), "--no-deps", "--require-hashes", "--only-binary", ":all:", *source, "-r", str(listed))
    given = {**os.environ, **tool.variables}
    kept = {name: text for name, text in given.items() if name not in {"PYTHONPATH", "PYTHONHOME"}}
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    with subprocess.Popen(
        words,
        cwd=listed.parent,
        env={**kept, **_VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(tool.hold,),
    ) as process:
        if process.stdout is not None:
            for raw in process.stdout:
                line = _SIGNED.sub("://***@", raw.decode(errors="replace").rstrip())[:_LINE_CHARACTERS]
                if line:
                    log(tool.lane, f"packages: {line}")
                    said.append(line)
    if process.returncode:
        told = "\n".join(said)
        why = f"the job's packages cannot be installed (exit status {process.returncode})"
        because = f"; they are needed, since {reasons}" if reasons else ""
        raise Failure(_class(told.lower()), f"{why}{because}: {told}")


def _words(python: Path) -> tuple[str, ...]:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    uv = shutil.which("uv", path=places)
    if uv is not None:
        return (uv, "pip", "install", "--python", str(python), "--no-cache")
    if importlib.util.find_spec("pip") is None:
        raise Failure("environment", "the image has neither uv nor pip, and the job needs packages of its own")
    return (sys.executable, "-m", "pip", "--python", str(python), "install", "--no-cache-dir", "--progress-bar", "off")


def _class(told: str) -> ErrorClass:
    if any(words in told for words in _DISK):
        return "store"
    return "network" if any(words in told for words in _NETWORK) else "environment"
