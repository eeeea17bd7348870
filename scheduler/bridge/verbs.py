"""Verbs: the one table of what programs may ask. The port, its document and MCP's tools are all made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any

from scheduler.bridge.arguments import AddJob, Arguments, BadRequest, Preview, ReadLog, Submit, Week, Weight, Words
from scheduler.bridge.surface import Surface, Verb
from scheduler.service.requests import queue, sessions
from scheduler.store.jobs import JobRecord
from scheduler.views.documents import run_json
from scheduler.views.weekly_report import make_report, week_named
from scheduler.wake import wake
from scheduler.web import questions
from scheduler.web.questions import job_rows
from scheduler.web.shapes import ApiAnswer, JobRow, Log, Name, RunRow, finite
from scheduler.web.source import Source

PROTOCOL = 1
"""Grows when something that was promised goes; what is new is named in the capabilities."""


class JobChanged(ApiAnswer):
    """The job as it is now; a running one saves and leaves first, which takes a moment."""

    job: JobRow


class RunStopped(ApiAnswer):
    """The run as it is now, and whether its session was told; if not, the daemon tells it."""

    run: RunRow
    told: bool


def hold(surface: Surface, job: Name, why: Words = "") -> JobChanged:
    """Keep a job from running; a running one saves, leaves and is then held."""
    why = surface.app.redact(why) or "held by hand"
    return _changed(surface, queue.hold(surface.app.database, job, why, surface.now, surface.who))


def release(surface: Surface, job: Name) -> JobChanged:
    """Let a held, failed or cancelled job run again."""
    return _changed(surface, queue.release(surface.app.database, job, surface.now, surface.who))


def cancel(surface: Surface, job: Name) -> JobChanged:
    """Cancel a job; a running one saves and leaves first. Its checkpoints stay."""
    return _changed(surface, queue.cancel(surface.app.database, job, surface.now, surface.who))


def priority(surface: Surface, job: Name, weight: Weight) -> JobChanged:
    """Change what one hour of a job is worth."""
    return _changed(surface, queue.change(surface.app.database, job, surface.now, surface.who, weight=weight))


def stop(surface: Surface, run: Name, why: Words = "") -> RunStopped:
    """Ask a running session to save and end; its jobs go back to the queue."""
    app = surface.app
    why = app.redact(why) or "stopped by hand"
    done = sessions.stop(app.database, app.artifacts, run, why, surface.now, surface.who)
    wake(app.settings.state_dir)
    return RunStopped(run=RunRow(**run_json(done.run)), told=done.flag_written)


def _changed(surface: Surface, record: JobRecord) -> JobChanged:
    wake(surface.app.settings.state_dir)
    with surface.source.read() as tx:
        return JobChanged(job=job_rows(surface.source, tx, [record])[0])


def runs_log(surface: Surface, request: ReadLog) -> Log:
    """The end of what a session printed, from a byte on."""
    return surface.tails.read(request.run, request.after)


def report_weekly(source: Source, week: Week = "last") -> dict[str, Any]:
    """What a week's hours became, as ``schedctl report weekly --json`` has it."""
    now, zone = source.now, source.zone
    try:
        span = week_named(week, zone, now)
    except (ValueError, OverflowError):
        raise BadRequest(f"there is no week {week}", "Write it like 2026-W47, this or last") from None
    document: dict[str, Any] = finite(asdict(make_report(source.app.reading, source.pools, span, zone, now)))
    return document


# What ``schedctl`` answers in a process of its own, and what each verb types there.
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


_TABLE = (
    Verb("status", questions.status, kept_seconds=0.25),
    Verb("training", questions.training, kept_seconds=0.25),
    Verb("queue.list", questions.queue_list),
    Verb("queue.show", questions.queue_show),
    Verb("queue.add", add, changes=True, slow=True),
    Verb("queue.hold", hold, changes=True),
    Verb("queue.release", release, changes=True),
    Verb("queue.cancel", cancel, changes=True),
    Verb("queue.priority", priority, changes=True),
    Verb("submit", submit, changes=True, slow=True),
    Verb("plan.show", questions.plan_show),
    Verb("plan.week", questions.plan_week, slow=True),
    Verb("plan.difference", questions.plan_difference, slow=True),
    Verb("plan.explain", explain, slow=True),
    Verb("plan.preview", preview, slow=True),
    Verb("quota", questions.quotas, kept_seconds=0.25),
    Verb("runs.list", questions.runs_list),
    Verb("runs.show", questions.runs_show),
    Verb("runs.log", runs_log, slow=True),
    Verb("runs.stop", stop, changes=True, slow=True),
    Verb("models.list", questions.models_list),
    Verb("models.show", questions.models_show),
    Verb("models.promote", promote, changes=True, slow=True),
    Verb("models.deploy", deploy, changes=True, slow=True),
    Verb("models.sync", sync, changes=True, slow=True),
    Verb("report.weekly", report_weekly, slow=True),
    Verb("events.list", questions.events_list),
)
VERBS: Mapping[str, Verb] = {verb.name: verb for verb in _TABLE}


def ask(surface: Surface, name: str, args: Mapping[str, Any]) -> Any:
    """Return the answer as values. Raises what the verb raises, KeyError for an unknown verb."""
    return json.loads(surface.answer(VERBS[name], args))


def document(of_the_port: Mapping[str, type[Arguments]]) -> dict[str, Any]:
    """Return the table as one JSON document: of each verb its arguments and its answer, as JSON schemas.

    ``of_the_port`` are the verbs that only a port has, with their arguments.
    """
    verbs: dict[str, dict[str, Any]] = {
        name: {"summary": (takes.__doc__ or "").splitlines()[0], "arguments": takes.model_json_schema(), "answer": {}}
        for name, takes in of_the_port.items()
    }
    for verb in _TABLE:
        answers = signature(verb.answer, eval_str=True).return_annotation
        schema = (
            answers.model_json_schema() if isinstance(answers, type) and hasattr(answers, "model_json_schema") else {}
        )
        verbs[verb.name] = {
            "summary": verb.summary,
            "changes": verb.changes,
            "arguments": verb.takes.model_json_schema(),
            "answer": schema,  # {}: an object as the command's --json has it
        }
    return {"protocol": PROTOCOL, "verbs": dict(sorted(verbs.items()))}
