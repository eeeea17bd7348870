"""Verbs that make or simulate a change, one function each."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from scheduler.service.requests import queue, sessions
from scheduler.store.jobs import JobRecord
from scheduler.verbs.arguments import BadRequest, Definition, Fingerprint, Line, Name, Place, Weight, Words
from scheduler.verbs.questions import job_rows
from scheduler.verbs.shapes import ApiAnswer, JobRow, RunRow
from scheduler.verbs.surface import Surface, verb
from scheduler.views.documents import run_json
from scheduler.wake import wake


class RunStopped(ApiAnswer):
    """The run, and whether the stop request was stored for its session (``told``); if not, the daemon stores it."""

    run: RunRow
    told: bool


@verb("queue.hold", "/jobs/{job}/hold", changes=True, key="job")
def hold(surface: Surface, job: Name, why: Words = "") -> JobRow:
    """Keep a job from running; a running one saves, leaves and is then held."""
    why = surface.app.redact(why) or f"held {surface.where}"
    return _changed(surface, queue.hold(surface.app.database, job, why, surface.now, surface.who))


@verb("queue.release", "/jobs/{job}/release", changes=True, key="job")
def release(surface: Surface, job: Name) -> JobRow:
    """Let a held, failed or cancelled job run again."""
    return _changed(surface, queue.release(surface.app.database, job, surface.now, surface.who))


@verb("queue.cancel", "/jobs/{job}/cancel", changes=True, key="job")
def cancel(surface: Surface, job: Name) -> JobRow:
    """Cancel a job; a running one saves and leaves first. Its checkpoints stay."""
    return _changed(surface, queue.cancel(surface.app.database, job, surface.now, surface.who))


@verb("queue.priority", "/jobs/{job}/priority", changes=True, key="job")
def priority(surface: Surface, job: Name, weight: Weight) -> JobRow:
    """Change what one hour of a job is worth."""
    return _changed(surface, queue.change(surface.app.database, job, surface.now, surface.who, weight=weight))


@verb("runs.stop", "/runs/{run}/stop", changes=True, slow=True)
def stop(surface: Surface, run: Name, why: Words = "") -> RunStopped:
    """Ask a running session to save and end; its jobs go back to the queue."""
    app = surface.app
    why = app.redact(why) or f"stopped {surface.where}"
    done = sessions.stop(app.database, app.artifacts, run, why, surface.now, surface.who)
    wake(app.settings.state_dir)
    return RunStopped(run=RunRow(**run_json(done.run)), told=done.flag_written)


def _changed(surface: Surface, record: JobRecord) -> JobRow:
    """Wake the daemon, and return the job after the change. A running job stays active until its session has saved."""
    wake(surface.app.settings.state_dir)
    with surface.read() as tx:
        return job_rows(surface, tx, [record])[0]


# These verbs run a command of ``schedctl`` in a separate process and return its JSON document.
@verb("plan.explain", "", slow=True)
def explain(surface: Surface, job: Name) -> dict[str, Any]:
    """Why a job is not running, or where it is; for one that is outbid, the weight that would start it."""
    return surface.commands.run(["plan", "explain", "--", job])


@verb("plan.preview", "", slow=True)
def preview(
    surface: Surface,
    pools: Annotated[Mapping[Name, float | Literal["down"]], Field(max_length=100)] = {},
    weights: Annotated[Mapping[Name, Weight], Field(max_length=500)] = {},
    add: Annotated[Sequence[Definition], Field(max_length=50)] = (),
    policy: Name | None = None,
) -> dict[str, Any]:
    """What the daemon would plan now, or what edits (hours of pools or "down", weights, jobs, a rule) would change."""
    hours = [f"{name}={value if isinstance(value, str) else repr(value)}" for name, value in pools.items()]
    priorities = [f"{name}={weight!r}" for name, weight in weights.items()]
    words = [*_options(pool=hours, priority=priorities, policy=policy)]
    if not words and not add:
        return surface.commands.run(["plan", "preview"])
    return surface.commands.run(["plan", "what-if", *words], tables=add, option="--add-job")


@verb("queue.add", changes=True, slow=True)
def add(
    surface: Surface,
    definition: Definition | None = None,
    file: Place | None = None,
    *,
    models: bool = False,
    go_on: Annotated[bool, Field(description="Go on from what a removed job of this name saved.")] = False,
    dry_run: bool = False,
    expect: Fingerprint = "",
) -> dict[str, Any]:
    """Add a job, or the models of the settings, to the end of the queue; with ``dry_run`` show them and their plan."""
    if [definition is not None, file is not None, models].count(True) != 1:
        raise BadRequest("jobs are added from a definition, from a file or from the settings", "Give one of the three")
    if dry_run:
        expect = ""
    words = ["queue", "add", *(["--continue"] if go_on else []), *_options(dry_run=dry_run, expect=expect)]
    if definition is not None:
        return surface.commands.run(words, tables=[definition])
    return surface.commands.run([*words, file or "--models"])


@verb("submit", changes=True, slow=True)
def submit(  # noqa: PLR0913 - what a job is made of
    surface: Surface,
    script: Place,
    arguments: Annotated[Sequence[Annotated[str, Field(max_length=4_096)]], Field(max_length=500)] = (),
    *,
    target_step: Annotated[int, Field(ge=1, le=2**53)] | None = None,
    whole: Line | None = None,
    name: Name | None = None,
    role: Name | None = None,
    pools: Annotated[Sequence[Name], Field(max_length=100)] = (),
    weight: Weight | None = None,
    vram_gib: Annotated[float, Field(gt=0, le=1e6)] | None = None,
    steps_per_hour: Annotated[float, Field(gt=0, le=1e12)] | None = None,
    budget: Line | None = None,
    sweep: Annotated[Sequence[Line], Field(max_length=20)] = (),
    inputs: Annotated[Mapping[Name, Line], Field(max_length=50)] = {},
    requirements: Place | None = None,
    secrets: Annotated[Sequence[Name], Field(max_length=50)] = (),
    dry_run: bool = False,
    expect: Fingerprint = "",
) -> dict[str, Any]:
    """Make a job of a script and its folder; with ``dry_run`` show it and its plan, and change nothing.

    Its speed is never tried here, so say ``steps_per_hour`` if you know it.
    """
    folder = Path(script).parent
    if not folder.is_dir():
        raise BadRequest(f"there is no folder {folder}", "Give the whole path of the script")
    words = _options(
        target_step=target_step,
        max_time=whole,
        name=name,
        role=role,
        priority=weight,
        vram_gib=vram_gib,
        steps_per_hour=steps_per_hour,
        requirements=requirements,
        budget=budget,
        sweep=sweep,
        pool=pools,
        input=[f"{name}={source}" for name, source in inputs.items()],
        secret=secrets,
        dry_run=dry_run,
        expect="" if dry_run else expect,
    )
    return surface.commands.run(["submit", script, "--probe=0", *words, "--", *arguments], folder)


@verb("models.promote", changes=True, slow=True)
def promote(surface: Surface, version: Name, reason: Words = "") -> dict[str, Any]:
    """Promote an accepted version; the previously promoted one is retired and can be promoted again."""
    return surface.commands.run(["models", "promote", *_options(reason=reason), "--", version])


@verb("models.deploy", changes=True, slow=True)
def deploy(
    surface: Surface, version: Name, target: Name, reason: Words = "", *, dry_run: bool = False
) -> dict[str, Any]:
    """Bring a version to a target: copied, checked, switched to, asked to answer, else rolled back."""
    words = _options(to=target, reason=reason, dry_run=dry_run)
    return surface.commands.run(["models", "deploy", *words, "--", version])


@verb("models.sync", changes=True, slow=True)
def sync(surface: Surface, target: Name, *, dry_run: bool = False) -> dict[str, Any]:
    """Compare a target with the promoted versions, and deploy them there unless ``dry_run``."""
    return surface.commands.run(["models", "sync", *_options(dry_run=dry_run), "--", target])


def _options(**options: Any) -> Iterator[str]:
    """Yield keywords as command-line options. A sequence repeats the option, ``True`` is a flag, None is left out."""
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        for one in [value] if isinstance(value, str) or not isinstance(value, Sequence) else value:
            if one is True:
                yield option
            elif one is not None and one is not False and one != "":
                yield f"{option}={one}"
