"""Reads: the facts that the JSON API answers with, in the same shapes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from scheduler.bridge import arguments as given
from scheduler.bridge.errors import BadRequest
from scheduler.store import events
from scheduler.views.weekly_report import last_week, make_report, this_week, week_named
from scheduler.web import models, plan, queue, quota, runs
from scheduler.web import status as statuses
from scheduler.web.models import Models, VersionDetail
from scheduler.web.paging import Paging
from scheduler.web.shapes import (
    EventRow,
    JobDetail,
    Log,
    NewestPlan,
    PlanDifference,
    Queue,
    Quotas,
    RunDetail,
    Runs,
    Shape,
    Status,
    TrainingNow,
    finite,
)
from scheduler.web.training import training_now

if TYPE_CHECKING:
    from scheduler.bridge.surface import Surface


class Events(Shape):
    """Events, oldest first. Ask for more after ``position``; ``missed_up_to``: older ones were removed, 0 for none."""

    events: list[EventRow]
    position: int
    missed_up_to: int


def status(surface: Surface, _: given.Nothing) -> Status:
    """Whether the scheduler does its work, the pools, and the actions required."""
    return statuses.status(surface.source)


def training(surface: Surface, _: given.Nothing) -> TrainingNow:
    """How it goes in one line, and the jobs that matter most: saved and live steps, loss, speed, end."""
    source = surface.source
    with source.read() as tx:
        return training_now(source, tx, statuses.newest_needs(source, tx, source.now), source.now)


def queue_list(surface: Surface, asked: given.QueueList) -> Queue:
    """The jobs in queue order with what each waits for."""
    return queue.queue(surface.source, Paging(asked.page, asked.rows), asked.state, asked.name)


def queue_show(surface: Surface, asked: given.OneJob) -> JobDetail:
    """All there is to know about one job: definition, losses, speeds, checkpoints, runs."""
    return queue.job(surface.source, asked.job)


def runs_list(surface: Surface, asked: given.RunsList) -> Runs:
    """The runs, newest first."""
    return runs.listed(surface.source, Paging(asked.page, asked.rows), asked.pool, asked.job)


def runs_show(surface: Surface, asked: given.OneRun) -> RunDetail:
    """One run with its lanes, their newest heartbeats, and what happened to it."""
    return runs.run(surface.source, asked.run)


def runs_log(surface: Surface, asked: given.ReadLog) -> Log:
    """The end of what a session printed, from a byte on."""
    return surface.tails.read(asked.run, asked.after)


def quotas(surface: Surface, _: given.Nothing) -> Quotas:
    """Every quota of every pool, and how it burns down."""
    return quota.quotas(surface.source)


def plan_show(surface: Surface, _: given.Nothing) -> NewestPlan:
    """The newest plan: sessions with their jobs, and why the others wait."""
    return plan.newest(surface.source)


def plan_difference(surface: Surface, asked: given.Since) -> PlanDifference:
    """What the newest plan changed of an earlier one."""
    return plan.difference(surface.source, asked.since)


def models_list(surface: Surface, _: given.Nothing) -> Models:
    """Models with their versions, and which is in force."""
    with surface.source.read() as tx:
        return models.everything(tx)


def models_show(surface: Surface, asked: given.OneVersion) -> VersionDetail:
    """One version with its verdicts and what they rest on."""
    return models.detail(surface.source, asked.version)


def report_weekly(surface: Surface, asked: given.ReportWeek) -> dict[str, Any]:
    """What a week's hours became, as ``schedctl report weekly --json`` has it."""
    source = surface.source
    now, zone = source.now, source.zone
    try:
        named = {"last": last_week, "this": this_week}.get(asked.week)
        week = named(now, zone) if named else week_named(asked.week, zone)
    except (ValueError, OverflowError):
        raise BadRequest(f"there is no week {asked.week}", "Write it like 2026-W47, this or last") from None
    made = make_report(source.app.reading, source.pools, week, zone, now)
    found: dict[str, Any] = finite(asdict(made))
    return found


def events_list(surface: Surface, asked: given.EventsList) -> Events:
    """What happened after an event, oldest first."""
    with surface.source.read() as tx:
        found = events.after(tx, asked.after, asked.limit, asked.kinds, asked.subject)
        newest, gone = events.newest_id(tx), events.pruned_up_to(tx)
    # Fewer than asked for: nothing that fits is left up to the newest.
    position = found[-1].id if len(found) == asked.limit else max(newest, asked.after)
    rows = [EventRow.model_validate(event) for event in found]
    return Events(events=rows, position=position, missed_up_to=gone if asked.after < gone else 0)
