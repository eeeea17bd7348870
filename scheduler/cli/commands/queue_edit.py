"""`schedctl queue edit`: another definition for a job, from options, a file or an editor; `clone`: a job of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.catalogue import job_from_table, job_from_toml
from jobs.definition import OLD_NAMES
from jobs.job_table import table_of, toml_of
from jobs.payload.bounds import read_json
from jobs.payload.store.manifest import Manifest, blob_key
from jobs.spec import JobSpec
from platforms.artifacts.base import BlobStore
from scheduler.cli.commands.queue_add import add_specs, read_spec, warn_of_gates, warn_of_job, warn_of_secrets
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault
from scheduler.cli.shell.names import listed
from scheduler.core.job import Failed
from scheduler.service.requests import queue
from scheduler.service.requests.concerns import require_trainable
from scheduler.service.requests.queue import QueueError
from scheduler.service.requests.stored import stored
from scheduler.store import checkpoints, jobs
from scheduler.views.documents import job_json

_HEADING = """# The definition of {name}. Save it and leave the editor to change the job.
# docs/configuration.md tells every key, its range, and its default where it is left out.
"""


_NAME_MAX = 40
RECIPE = "recipe.json"
_BYTES_MAX = 1 << 20


def edit_job(cli: Cli, name: str, file: Path | None, settings: Sequence[str], *, force: bool = False) -> None:
    """Change a job; with ``force``, also so that its checkpoint's recipe contradicts its command.

    Raises CatalogueError, QueueError, UnknownJob, UsageFault, StoreError.
    """
    if file and settings:
        raise UsageFault("--set stands alone", "a FILE holds the whole definition", "Give one of them")
    with cli.app.database.read() as tx:
        old = jobs.get(tx, name).spec
    if file is not None:
        spec = read_spec(file, {})
    elif settings:
        spec = job_from_table(changed_table(table_of(old), settings), f"queue edit {name}")
    else:
        spec = _from_editor(old)
    if spec.command != old.command and not force:
        _check_recipe(cli, old, spec)
    if any(getattr(spec, name) != getattr(old, name) for name in ("command", "inputs", "needs", "pools")):
        require_trainable(cli.app.settings, [spec], str(file or f"queue edit {name}"))
    keep_until = cli.now + cli.app.policy.retention.grace_seconds
    spec = stored(cli.app, spec, keep_until, cli.out.say, old)
    record, changed = queue.edit(cli.app.database, name, spec, cli.now, cli.who)
    cli.out.data({"job": job_json(record), "changed": changed})
    if changed:
        cli.out.line(f"{name} has another {listed(changed)}.")
    else:
        cli.out.line(f"{name} is as it was.")
    if changed:
        warn_of_job(cli, name)
        if "secrets" in changed:
            warn_of_secrets(cli, record.spec)
        if {"evaluation", "gates"} & set(changed):
            warn_of_gates(cli, record.spec)
        if isinstance(record.state, Failed):
            cli.out.say(f"It failed before. To try again: schedctl queue retry {name}")
        cli.wake_daemon()


def _check_recipe(cli: Cli, old: JobSpec, spec: JobSpec) -> None:
    with cli.app.database.read() as tx:
        saved = jobs.get(tx, old.name).checkpoint
        manifest = checkpoints.get(tx, saved).manifest if saved else None
    wrong = contradictions(cli.app.artifacts, manifest, old.command, spec.command) if manifest else []
    if manifest and wrong:
        raise QueueError(
            f"cannot edit {old.name}: its checkpoint at step {manifest.step} was made otherwise: {'; '.join(wrong)}. "
            f"Train under a new name: schedctl queue clone {old.name} --set name=NEW --set command=... "
            "To go on from it all the same, add --force; a script that checks its recipe will refuse"
        )


def changed_table(table: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return a job's table with ``KEY=VALUE`` settings made; an empty value removes the key. Raises UsageFault."""
    for words in settings:
        key, equals, text = words.partition("=")
        if not (key and equals):
            raise UsageFault(f"--set {words} cannot be read", "it has two parts", "Write it as KEY=VALUE")
        outer, dot, inner = key.strip().partition(".")
        outer = OLD_NAMES.get(outer, outer)
        place = table.setdefault(outer, {}) if dot else table
        if not isinstance(place, dict):
            raise UsageFault(f"--set {words} cannot be used", f"{outer} is no table", f"Write {outer}=VALUE")
        name = inner if dot else outer
        if text.strip():
            place[name] = _value(text.strip())
        else:
            place.pop(name, None)
            if dot and not place:
                del table[outer]
    return table


def _value(text: str) -> Any:
    """Return a value as TOML reads it; words that are none are a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def _from_editor(old: JobSpec) -> JobSpec:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        remedy = f"Say what changes: schedctl queue edit {old.name} --set target_step=8000, or give a FILE"
        raise UsageFault("nothing to change", "no --set was given, and here is no terminal for an editor", remedy)
    handle, written = tempfile.mkstemp(prefix=f"{old.name}-", suffix=".toml")
    path = Path(written)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(_HEADING.format(name=old.name) + toml_of(table_of(old)))
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        code = subprocess.run([*shlex.split(editor), written], check=False).returncode
    except OSError as error:
        path.unlink()
        why = error.strerror or str(error)
        raise UsageFault(f"no editor {editor}", why.lower(), "Set EDITOR, or use --set KEY=VALUE") from None
    if code:
        path.unlink()
        raise UsageFault("nothing changed", f"{editor} ended with {code}", "Try again, or use --set KEY=VALUE")
    spec = job_from_toml(path)  # what is wrong is told with the file's name, which stays to be corrected
    path.unlink()
    return spec


def clone_job(cli: Cli, name: str, settings: Sequence[str]) -> None:
    """Add a job that differs from ``name`` in what is set, with the very code of it unless that is set too.

    Raises CatalogueError, QueueError, UnknownJob, UsageFault.
    """
    with cli.app.database.read() as tx:
        old = jobs.get(tx, name).spec
        known = {record.spec.name for record in jobs.everything(tx)}
    free = (f"{name[: _NAME_MAX - 4]}-{number}" for number in range(2, len(known) + 3))
    table = {**table_of(old), "name": next(other for other in free if other not in known)}
    spec = job_from_table(changed_table(table, settings), f"queue clone {name}")
    add_specs(cli, [spec], f"queue clone {name}", kept=old)


# What a checkpoint says of how it was made, against the options of a command that would go on from it.
def contradictions(artifacts: BlobStore, manifest: Manifest, before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Return how the options of a command would differ from the recipe of a checkpoint that ``before`` made.

    A recipe is an object of values by the names of options. One that is no such thing tells nothing. Raises StoreError.
    """
    written = next((component for component in manifest.components if component.name == RECIPE), None)
    if written is None or written.bytes > _BYTES_MAX:
        return []
    try:
        recipe = read_json(artifacts.read(blob_key(manifest.job, written.sha256), _BYTES_MAX))
    except ValueError:
        return []
    found = []
    for name, was in sorted(recipe.items()) if isinstance(recipe, dict) else ():
        old, new = _option(before, name), _option(after, name)
        if new is None and old is not None:
            found.append(f"{name} was {was} and is left out")
        elif new is not None and new != old and not _same(was, new):
            found.append(f"{name} was {was} and would be {new}")
    return found


def _option(words: Sequence[str], name: str) -> str | None:
    """Return the value of an option of a command, the last where it is named twice; a flag's is empty."""
    flag, found = f"--{name.replace('_', '-')}", None
    for place, word in enumerate(words):
        spelt, equals, value = word.replace("_", "-").partition("=")[0], *word.partition("=")[1:]
        if spelt == flag:
            following = words[place + 1] if place + 1 < len(words) else ""
            found = value if equals else "" if following.startswith("--") else following
    return found


def _same(was: Any, word: str) -> bool:
    try:
        return float(word) == float(was)
    except (TypeError, ValueError):
        return word == str(was) or (word == "" and was is True)
