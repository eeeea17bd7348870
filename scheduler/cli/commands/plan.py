"""`schedctl plan`: show the newest plan as tables and a picture, preview the next plan, explain why a job waits."""

import gc
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from itertools import groupby
from typing import Any

from scheduler.cli.commands.complete import Job
from scheduler.cli.commands.plan_changes import show_devices
from scheduler.cli.shell.command import Tables, command
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.output import hours
from scheduler.core.job import Active, Queued
from scheduler.core.plan import KeptHours, Placement, Plan, PlannedLane
from scheduler.core.reasons import Outbid, Reason
from scheduler.core.why import in_queue, why
from scheduler.planner.planner import without_collections
from scheduler.planner.questions.whatif import DeviceChoice, UnknownName
from scheduler.report.chart import days, local
from scheduler.service.facts.snapshot import load_snapshot
from scheduler.service.requests.questions import ask_devices, ask_plan, ask_why
from scheduler.store import jobs, plans, queue_waits, runs
from scheduler.store.jobs import JobRecord
from scheduler.views.coming_week import ComingWeek, Stretch, alike_gaps, coming_week
from scheduler.views.documents import job_state_json, plan_json, wait_json
from scheduler.views.training import share_now

_NO_PLAN = "There is no plan yet. The daemon makes one: schedctl daemon. What it would be: schedctl plan preview"
_PICTURE_COLUMNS = 96
_MAKERS = {"incumbent": "the previous plan", "conserve": "the rule that reserves hours for expected work"}
_LETTERS_MIN = 2  # of a name that is cut


@command("schedctl plan show", kind=Tables)
def show(cli: Cli) -> None:
    """Show the newest plan: sessions, the lanes of the coming week, what could use their gaps, what waits."""
    with cli.app.database.read() as tx:
        plan = plans.newest(tx)
        snapshot = load_snapshot(tx, cli.app.pools, cli.now, cli.app.policy.horizon_seconds) if plan else None
        week = coming_week(snapshot, plan, cli.out.zone) if snapshot and plan else None
    cli.out.data({"plan": plan_json(plan) if plan else None, "week": asdict(week) if week else None})
    if plan is None or week is None:
        cli.out.say(_NO_PLAN)
    else:
        _show(cli, plan, week)


@command("schedctl plan preview", "schedctl plan preview --json", kind=Tables)
def preview(cli: Cli) -> None:
    """Show the plan that the daemon would make now. Nothing is stored or launched."""
    with without_collections():
        plan, snapshot = ask_plan(cli.planning_context)
        week = coming_week(snapshot, plan, cli.out.zone)
        if cli.out.as_json:
            cli.out.data({"plan": plan_json(plan), "week": asdict(week)})
        else:
            _show(cli, plan, week)
        gc.freeze()  # the process ends soon; a search of all these objects for garbage would take 5 % of its time


@command("schedctl plan explain ufm")
def explain(cli: Cli, job: Job) -> None:
    """Say why a job waits, or where it runs.

    For a job that is outbid the answer has the price of the hours and the priority that would start it now.
    """
    with cli.app.database.read() as tx:
        record = jobs.get(tx, job)
        plan = plans.newest(tx)
        share = share_now(tx, job)
        live = {run.key: run for run in runs.live(tx)}
        waits = queue_waits.of(tx, live)
    planned = [one for one in plan.placements if any(lane.job == job for lane in one.lanes)] if plan else []
    deferral = next((one for one in plan.deferrals if one.job == job), None) if plan else None
    reason = _with_weight(cli, record, deferral.reason).to_json() if deferral else None
    queues = [
        (run, wait)
        for key, wait in waits.items()
        if (run := live[key]).pool in {placement.pool for placement in planned} or _is_of(record, key)
    ]
    sentences = {run.key: in_queue(run.pool, run.key, wait, cli.out.zone) for run, wait in queues}
    own = next((key for key in sentences if _is_of(record, key)), None)
    answer = f"active, {sentences[own]}" if own else _answer(cli, record, reason, planned, plan)
    if continues := next((run.continued_by(job) for key, run in live.items() if _is_of(record, key)), ""):
        answer += f": it {continues}"
    counts = _counts(cli, job)
    document: dict[str, Any] = {
        "job": job,
        **job_state_json(record.state),
        "answer": answer,
        "reason": reason,
        "share": asdict(share) if share else None,
        "planned": [
            {
                "pool": placement.pool,
                "start": placement.start,
                "end": placement.end,
                "steps": _steps(placement, job),
                "devices": sum(lane.devices for lane in placement.lanes if lane.job == job),
            }
            for placement in planned
        ],
        "queues": [{"pool": run.pool, "run": run.key, **(wait_json(wait) or {})} for run, wait in queues],
        "devices": [asdict(one) for one in counts],
    }
    cli.out.data(document)
    cli.out.line(f"{job}: {answer}.")
    if share is not None:
        cli.out.line(f"It shall have {share.words()}.")
    cli.out.listing(planned, {**_when(cli), ">steps": lambda one: str(_steps(one, job))}, below=True)
    for key, sentence in sentences.items():
        if key != own:
            cli.out.line(f"{sentence}; a further session there is planned to wait as long.")
    if counts:
        show_devices(cli.out, job, counts)


def _with_weight(cli: Cli, record: JobRecord, reason: Reason) -> Reason:
    """Return the stored reason; for an outbid job, plan again to add the priority that would start the job now."""
    if not isinstance(record.state, Queued) or not isinstance(reason, Outbid) or reason.weight_to_start is not None:
        return reason
    try:
        answer = ask_why(cli.planning_context, record.spec.name)
    except UnknownName:  # cancelled since its record was read
        return reason
    if not isinstance(answer, Outbid):
        return reason
    return replace(reason, weight_to_start=answer.weight_to_start, no_weight=answer.no_weight)


def _answer(
    cli: Cli, record: JobRecord, reason: dict[str, Any] | None, planned: list[Placement], plan: Plan | None
) -> str:
    """Return why a job waits, or when and where it starts, as part of a sentence."""
    state = type(record.state).__name__.lower()
    if not isinstance(record.state, Queued):
        words = why(record.state, None, cli.out.zone, cli.now)
        return f"{state}, {words}" if words else state
    if plan is None:
        return "queued, and there is no plan yet; the daemon makes one: schedctl daemon"
    if reason is not None:
        return why(record.state, reason, cli.out.zone, cli.now)
    if planned:
        return f"starts on {planned[0].pool} at {cli.out.instant(planned[0].start)}"
    return f"queued after the newest plan ({cli.out.instant(plan.made_at)}); the next one considers it"


def _is_of(record: JobRecord, key: str) -> bool:
    return isinstance(record.state, Active) and record.state.run == key


def _named(cli: Cli, placement: Placement, lane: PlannedLane) -> str:
    """Return a job's name; on a pool whose sessions differ in their number of devices, with that number."""
    pool = cli.app.pools.get(placement.pool)
    return f"{lane.job} x{lane.devices}" if pool and pool.device_counts else lane.job


def _counts(cli: Cli, job: str) -> Sequence[DeviceChoice]:
    """Return what each number of devices would mean for an unfinished job, on pools that offer several numbers."""
    pools = {name for name, pool in cli.app.pools.items() if pool.device_counts}
    if not pools:
        return ()
    try:
        return [one for one in ask_devices(cli.planning_context, job) if one.pool in pools]
    except UnknownName:
        return ()


def _steps(placement: Placement, job: str) -> int:
    return sum(lane.steps for lane in placement.lanes if lane.job == job)


def _show(cli: Cli, plan: Plan, week: ComingWeek) -> None:
    """Write a plan: its value, a picture of the week, empty hours, reserved hours, waiting jobs, sessions."""
    out = cli.out
    bound = ""
    if plan.bound is not None:
        share = f" ({plan.value / plan.bound:.1%})" if plan.bound > 0 else ""
        bound = f" of at most {plan.bound:.2f}{share}"
    title = f"Plan of {out.instant(plan.made_at)} by {_MAKERS.get(plan.made_by, plan.made_by)}"
    out.line(f"{title}: value {plan.value:.2f}{bound}, in hours times priority.")
    for warning in plan.warnings:
        out.warn(warning, in_data=True)
    out.line()
    room = out.columns - max((len(lane.pool) for lane in week.lanes), default=0) - 5
    for line in picture(week, max(1, min(_PICTURE_COLUMNS, room)), out.zone):
        out.line(line)
    gaps = [
        (alike[0].pool, hours(sum(gap.length for gap in alike)), out.moment(alike[0].start), why, uses)
        for why, uses, alike in alike_gaps(week)
    ]
    out.table(("pool", ">empty", "-first", "~empty because", "~could use it"), gaps, below=True)
    if plan.kept:
        out.line()
    for kept in plan.kept:
        sure = "as its definition says" if kept.said else f"{kept.sure * 100:.0f} % sure"
        when = f"expected {out.instant(kept.expected_at)}, {sure}"
        what = f"Reserved on {kept.pool}" if kept.pool else "Expected work"  # older versions reserved hours for it
        out.line(f"{what}: {hours(kept.seconds)} for the next {kept.kind}, {when}.")
    waiting = [(deferral.job, deferral.reason.sentence(out.zone)) for deferral in plan.deferrals]
    out.table(("job", "~waits because"), waiting, below=True)
    out.listing(
        sorted(plan.placements, key=lambda placement: (placement.start, placement.pool)),
        {
            **_when(cli),
            "~jobs": lambda one: ", ".join(_named(cli, one, lane) for lane in one.lanes),
            "--~>steps": lambda one: ", ".join(str(lane.steps) for lane in one.lanes),
        },
        below=True,
    )


def _when(cli: Cli) -> dict[str, Callable[[Placement], str]]:
    """Return the columns that say when and where a session is planned."""
    return {
        "from": lambda one: cli.out.moment(one.start),
        "-to": lambda one: cli.out.moment(one.end),
        ">length": lambda one: hours(one.end - one.start),
        "pool": lambda one: one.pool,
    }


def picture(week: ComingWeek, columns: int, zone: str = "UTC") -> list[str]:
    """Return a picture of ``week`` as lines: a bar for each session, ``columns`` for the week, the days on top."""
    per_column = max(1, -(-(week.end - week.start) // columns))
    lanes = [(lane.pool, list(lane.stretches)) for lane in week.lanes]
    counts = {pool: sum(other == pool for other, _ in lanes) for pool, _ in lanes}
    rows = [
        (pool if counts[pool] == 1 else f"{pool} {number}", _bars(stretches, week.start, per_column))
        for pool, group in groupby(lanes, key=lambda lane: lane[0])
        for number, (_, stretches) in enumerate(group, 1)
    ]
    rows += [("expected", _outlined(kept, week.start, per_column, columns)) for kept in week.expected]
    width = max((len(name) for name, _ in rows), default=0)
    lines = [f"{'':<{width}} {_days(week.start, week.end, per_column, zone)}".rstrip()]
    lines += [f"{name:<{width}} {bars}".rstrip() for name, bars in rows]
    lines.append(f"{'':<{width}} one column is {hours(per_column)}; dots are empty hours, blanks cannot be used")
    return lines


def _bars(stretches: Sequence[Stretch], start: int, per_column: int) -> str:
    bar = ""
    for one in stretches:
        begin, end = max(len(bar), (one.start - start) // per_column), (one.end - start) // per_column
        if one.job:
            length = max(1, end - begin)
            label = _label(one.job, length - 2)
            bar = bar.ljust(begin) + (f"[{label.ljust(length - 2, '=')}]" if length > 1 else "|")
        elif end > begin:
            bar = bar.ljust(begin) + (" " if one.kind == "unusable" else ".") * (end - begin)
    return bar


def _outlined(kept: KeptHours, start: int, per_column: int, columns: int) -> str:
    begin = max(0, min(columns - 2, (kept.expected_at - start) // per_column))
    length = max(2, min(columns - begin, kept.seconds // per_column))
    return f"{'':<{begin}}({_label(kept.kind, length - 2).ljust(length - 2, '~')})"


def _label(name: str, columns: int) -> str:
    """Return the name, cut off at ``columns``; an empty text if too few characters would be left to recognise it."""
    return name if len(name) <= columns else name[:columns] if columns >= _LETTERS_MIN else ""


def _days(start: int, end: int, per_column: int, zone: str) -> str:
    """Return the line above the bars: the name of each day at its midnight, as far as the names have space."""
    line = ""
    for midnight in days(start + 1, end, zone):
        column = (midnight - start) // per_column
        if column >= len(line) + bool(line):
            line = f"{line.ljust(column)}'{local(midnight, zone, '%a %d')}"
    return line
