"""Commands: the verbs that ``schedctl`` answers in a process of its own, and what each types there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scheduler.bridge.arguments import AddJob, BadRequest, Preview, Submit, Words
from scheduler.bridge.surface import Surface
from scheduler.web.shapes import Name


def explain(surface: Surface, job: Name) -> dict[str, Any]:
    """Why a job is not running, or where it is; for one that is outbid, the weight that would start it."""
    return surface.commands.run(["plan", "explain", "--", job])


def preview(surface: Surface, request: Preview) -> dict[str, Any]:
    """What the daemon would plan now, or what edits would change of it. Nothing is stored."""
    hours = [f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in request.pools.items()]
    weights = [f"{name}={weight!r}" for name, weight in request.weights.items()]
    words = [*_options(pool=hours, weight=weights, policy=request.policy)]
    if not words and not request.add:
        return surface.commands.run(["plan", "preview"])
    return surface.commands.run_with(["plan", "what-if", *words], "--add-job", request.add)


def add(surface: Surface, request: AddJob) -> dict[str, Any]:
    """Add a job, or the models of the settings, to the end of the queue; with ``dry_run`` show them and their plan."""
    if [request.definition is not None, request.file is not None, request.models].count(True) != 1:
        raise BadRequest("jobs are added from a definition, from a file or from the settings", "Give one of the three")
    words = ["queue", "add", *(["--continue"] if request.go_on else []), *_dry_or_expected(request)]
    if request.models:
        return surface.commands.run([*words, "--models"])
    if request.file is not None:
        return surface.commands.run([*words, request.file])
    return surface.commands.run_with(words, "", [request.definition or {}])


def submit(surface: Surface, request: Submit) -> dict[str, Any]:
    """Make a job of a script and its folder; with ``dry_run`` show it and its plan, and change nothing."""
    folder = Path(request.script).parent
    if not folder.is_dir():
        raise BadRequest(f"there is no folder {folder}", "Give the whole path of the script")
    same = ("target_step", "whole", "name", "role", "weight", "vram_gib", "steps_per_hour", "requirements", "sweep")
    words = _options(
        **{name: getattr(request, name) for name in same},
        pool=request.pools,
        input=[f"{name}={source}" for name, source in request.inputs.items()],
        secret=request.secrets,
    )
    command = ["submit", request.script, "--probe=0", *words, *_dry_or_expected(request), "--", *request.arguments]
    return surface.commands.run(command, folder)


def promote(surface: Surface, version: Name, reason: Words = "") -> dict[str, Any]:
    """Promote an accepted version; the previously promoted one is retired and can be promoted again."""
    return surface.commands.run(["models", "promote", *_options(reason=reason), "--", version])


def deploy(
    surface: Surface, version: Name, target: Name, reason: Words = "", *, dry_run: bool = False
) -> dict[str, Any]:
    """Bring a version to a target: copied, checked, switched to, asked to answer, else rolled back."""
    words = _options(to=target, reason=reason, dry_run=dry_run)
    return surface.commands.run(["models", "deploy", *words, "--", version])


def sync(surface: Surface, target: Name, *, dry_run: bool = False) -> dict[str, Any]:
    """Compare a target with the promoted versions, and deploy them there unless ``dry_run``."""
    return surface.commands.run(["models", "sync", *_options(dry_run=dry_run), "--", target])


def _dry_or_expected(request: AddJob | Submit) -> Iterator[str]:
    return _options(dry_run=request.dry_run, expect="" if request.dry_run else request.expect)


def _options(**options: Any) -> Iterator[str]:
    """Yield what was given as options of a command; one that is repeated has a list, a flag is true."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                yield option
            elif one is not None and one is not False and one != "":
                yield f"{option}={one}"
