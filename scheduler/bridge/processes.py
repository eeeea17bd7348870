"""Processes: what takes long or reads files is done by ``schedctl`` itself, in a process that never outlives this one.

The answer is what the command writes with ``--json`` (docs/cli.md), with its warnings beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

from scheduler.bridge.arguments import BadRequest, CommandFailed

_LIMIT_SECONDS = 3_600.0
_WARNING = "schedctl: warning: "
# The kernel ends the command when the thread that started it is gone, also by SIGKILL. The folder it runs in is a
# user's and may hold files named as Python's modules: nothing is imported from there (-P).
_PROGRAM = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "if os.getppid() != int(sys.argv.pop(1)): sys.exit(143)\n"
    "from scheduler.cli.main import run\n"
    "run()\n"
)


class Processes:
    """The commands that are at work, so that they can be ended with us."""

    def __init__(self, config: Path | None) -> None:
        self._options = ["--json", "--no-color", *(["--config", str(config.resolve())] if config else [])]
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._closed = False

    def run(self, words: Sequence[str], folder: Path | None = None) -> dict[str, Any]:
        """Run a command in ``folder``, else in one that is empty. Raises CommandFailed."""
        with tempfile.TemporaryDirectory(prefix="schedctl-") as empty:
            return self._run(words, folder or Path(empty))

    def run_with(self, words: Sequence[str], option: str, tables: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """As :meth:`run`, with each table as a job file behind ``option``. Raises BadRequest, CommandFailed."""
        with tempfile.TemporaryDirectory(prefix="schedctl-") as name:
            files = [_written(Path(name, f"{number}.toml"), table) for number, table in enumerate(tables, 1)]
            given_files = [word for file in files for word in ([option, str(file)] if option else [str(file)])]
            return self._run([*words, *given_files], Path(name))

    def close(self) -> None:
        """End every command that is at work, and let none begin."""
        with self._lock:
            self._closed = True
            for process in self._running:
                process.terminate()

    def _run(self, words: Sequence[str], folder: Path) -> dict[str, Any]:
        end = words.index("--") if "--" in words else len(words)
        command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid())]
        with self._lock:
            if self._closed:
                raise CommandFailed({"kind": "Ended", "message": "this program ends", "exit_code": 143})
            process = subprocess.Popen(
                [*command, *words[:end], *self._options, *words[end:]],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=folder,
            )
            self._running.add(process)
        try:
            out, err = process.communicate(timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        return _answer(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _written(path: Path, table: dict[str, Any]) -> Path:
    import tomli_w

    try:
        path.write_text(tomli_w.dumps(table), encoding="utf-8")
    except (TypeError, ValueError, RecursionError) as error:
        raise BadRequest(
            f"the definition is none that a job file can hold: {error}", "Leave out what is null"
        ) from None
    return path


def _answer(code: int, out: str, err: str) -> dict[str, Any]:
    warnings = [line.removeprefix(_WARNING) for line in err.splitlines() if line.startswith(_WARNING)]
    if code == 0:
        try:
            output = json.loads(out)
        except ValueError:
            output = None
        if isinstance(output, dict):
            return {**output, "warnings": warnings}
    for line in reversed(err.splitlines()):
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and isinstance(document.get("error"), dict):
            raise CommandFailed(document["error"])
    last = (err.strip().splitlines() or ["it said nothing"])[-1]
    raise CommandFailed(
        {"kind": "CommandFailed", "message": f"the command ended with {code}: {last}", "exit_code": code}
    )
