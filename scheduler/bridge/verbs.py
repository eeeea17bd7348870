"""Verbs: the one table of what programs may ask. The port, its document and MCP's tools are all made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from inspect import signature
from typing import Any

from scheduler.bridge import commands
from scheduler.bridge.arguments import Arguments, BadRequest, ReadLog, Week, Weight, Words
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


_TABLE = (
    Verb("status", questions.status, kept_seconds=0.25),
    Verb("training", questions.training, kept_seconds=0.25),
    Verb("queue.list", questions.queue_list),
    Verb("queue.show", questions.queue_show),
    Verb("queue.add", commands.add, changes=True, slow=True),
    Verb("queue.hold", hold, changes=True),
    Verb("queue.release", release, changes=True),
    Verb("queue.cancel", cancel, changes=True),
    Verb("queue.priority", priority, changes=True),
    Verb("submit", commands.submit, changes=True, slow=True),
    Verb("plan.show", questions.plan_show),
    Verb("plan.week", questions.plan_week, slow=True),
    Verb("plan.difference", questions.plan_difference, slow=True),
    Verb("plan.explain", commands.explain, slow=True),
    Verb("plan.preview", commands.preview, slow=True),
    Verb("quota", questions.quotas, kept_seconds=0.25),
    Verb("runs.list", questions.runs_list),
    Verb("runs.show", questions.runs_show),
    Verb("runs.log", runs_log, slow=True),
    Verb("runs.stop", stop, changes=True, slow=True),
    Verb("models.list", questions.models_list),
    Verb("models.show", questions.models_show),
    Verb("models.promote", commands.promote, changes=True, slow=True),
    Verb("models.deploy", commands.deploy, changes=True, slow=True),
    Verb("models.sync", commands.sync, changes=True, slow=True),
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
