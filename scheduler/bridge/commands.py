"""Commands: what takes long or reads files is done by ``schedctl`` itself, in a process that never outlives this one.

The answer is what the command writes with ``--json`` (docs/cli.md), with its warnings beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from scheduler.bridge import arguments as given
from scheduler.bridge.errors import BadRequest, CommandFailed

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface

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


class Commands:
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


def explain(surface: Surface, asked: given.OneJob) -> dict[str, Any]:
    """Why a job is not running, or where it is; for one that is outbid, the weight that would start it."""
    return surface.commands.run(["plan", "explain", "--", asked.job])


def preview(surface: Surface, asked: given.Preview) -> dict[str, Any]:
    """What the daemon would plan now, or what edits would change of it. Nothing is stored."""
    words = [
        *(f"--pool={name}={hours if isinstance(hours, str) else repr(hours)}" for name, hours in asked.pools.items()),
        *(f"--weight={name}={weight!r}" for name, weight in asked.weights.items()),
        *([f"--policy={asked.policy}"] if asked.policy else []),
    ]
    if not words and not asked.add:
        return surface.commands.run(["plan", "preview"])
    return surface.commands.run_with(["plan", "what-if", *words], "--add-job", asked.add)


def add(surface: Surface, asked: given.AddJob) -> dict[str, Any]:
    """Add a job, or the models of the settings, to the end of the queue; with ``dry_run`` show them and their plan."""
    if [asked.definition is not None, asked.file is not None, asked.models].count(True) != 1:
        raise BadRequest("jobs are added from a definition, from a file or from the settings", "Give one of the three")
    words = ["queue", "add", *(["--continue"] if asked.go_on else []), *_dry_or_expected(asked)]
    if asked.models:
        return surface.commands.run([*words, "--models"])
    if asked.file is not None:
        return surface.commands.run([*words, asked.file])
    return surface.commands.run_with(words, "", [asked.definition or {}])


def submit(surface: Surface, asked: given.Submit) -> dict[str, Any]:
    """Make a job of a script and its folder; with ``dry_run`` show it and its plan, and change nothing."""
    folder = Path(asked.script).parent
    if not folder.is_dir():
        raise BadRequest(f"there is no folder {folder}", "Give the whole path of the script")
    return surface.commands.run(["submit", *_submit_words(asked), "--", *asked.arguments], folder)


def _submit_words(asked: given.Submit) -> Iterator[str]:
    yield from (asked.script, "--probe=0")
    for option, value in (
        ("target-step", asked.target_step),
        ("whole", asked.whole),
        ("name", asked.name),
        ("role", asked.role),
        ("weight", asked.weight),
        ("vram-gib", asked.vram_gib),
        ("steps-per-hour", asked.steps_per_hour),
        ("requirements", asked.requirements),
    ):
        if value is not None:
            yield f"--{option}={value}"
    yield from (f"--pool={pool}" for pool in asked.pools)
    yield from (f"--sweep={text}" for text in asked.sweep)
    yield from (f"--input={name}={source}" for name, source in asked.inputs.items())
    yield from (f"--secret={name}" for name in asked.secrets)
    yield from _dry_or_expected(asked)


def _dry_or_expected(asked: given.AddJob | given.Submit) -> list[str]:
    return ["--dry-run"] if asked.dry_run else [f"--expect={asked.expect}"] if asked.expect else []


def promote(surface: Surface, asked: given.Promote) -> dict[str, Any]:
    """Put an accepted version in force; the one before it is retired and stays at hand."""
    reason = [f"--reason={asked.reason}"] if asked.reason else []
    return surface.commands.run(["models", "promote", *reason, "--", asked.version])


def deploy(surface: Surface, asked: given.Deploy) -> dict[str, Any]:
    """Bring a version to a target: copied, checked, switched to, asked to answer, else taken back."""
    words = [f"--to={asked.target}", *([f"--reason={asked.reason}"] if asked.reason else [])]
    dry = ["--dry-run"] if asked.dry_run else []
    return surface.commands.run(["models", "deploy", *words, *dry, "--", asked.version])


def sync(surface: Surface, asked: given.SyncTarget) -> dict[str, Any]:
    """Compare a target with what is in force, and bring it there unless ``dry_run``."""
    dry = ["--dry-run"] if asked.dry_run else []
    return surface.commands.run(["models", "sync", *dry, "--", asked.target])


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
            found = json.loads(out)
        except ValueError:
            found = None
        if isinstance(found, dict):
            return {**found, "warnings": warnings}
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
