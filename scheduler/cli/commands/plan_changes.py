"""`schedctl plan diff` and `plan what-if`: compare two plans, and show what a change would do to the plan."""

from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Annotated

from jobs.catalogue import job_from_toml
from jobs.definition import RANGES
from jobs.duration import parse_instant
from jobs.nouns.window import HOUR
from jobs.payload.bounds import digits
from jobs.problem import NotFound
from jobs.size import counted
from scheduler.cli.shell.command import command, option, parsed
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.exits import UsageFault, pair_of
from scheduler.cli.shell.names import listed, suggest
from scheduler.cli.shell.output import Output, hours
from scheduler.planner.questions import whatif
from scheduler.planner.questions.differ import JobChange, JobOutlook, PlanComparison
from scheduler.planner.questions.orders import POLICIES
from scheduler.service.requests.questions import ask_devices, ask_what_if
from scheduler.views.documents import picked, plan_json
from scheduler.views.plan_history import SessionChange, compare

_NEVER = "not planned"
_HOURS_MAX = 100_000
_DEVICES_MAX = 1_024
_LISTINGS = {"job": "schedctl queue list", "pool": "schedctl pools", "policy": "schedctl plan what-if --help"}


def show_changes(out: Output, difference: PlanComparison) -> None:
    """Write a summary in one line, then the jobs and the pools whose plan differs, before and after."""
    if difference.jobs:
        out.line(f"{_summary(difference.jobs)}.")
    columns = ("job", "--~starts", "~finishes", ">finish moves", "-~hours", "-deadline")
    out.table(columns, [_job_row(out, change) for change in difference.jobs], below=True)
    out.listing(
        difference.pools,
        {
            "pool": lambda one: one.pool,
            ">hours before": lambda one: hours(one.seconds_before),
            ">after": lambda one: hours(one.seconds_after),
            ">difference": lambda one: signed(one.seconds_after - one.seconds_before),
        },
        below=True,
    )


def _summary(changes: Sequence[JobChange]) -> str:
    """Return a sentence that counts the jobs that finish earlier or later, and the deadlines won and lost."""
    pairs = [(_finished(change.before), _finished(change.after)) for change in changes]
    both = [(before, after) for before, after in pairs if before is not None and after is not None]
    counts = {
        "finish earlier": sum(after < before for before, after in both),
        "finish later": sum(after > before for before, after in both),
        "finish only now": sum(before is None and after is not None for before, after in pairs),
        "no longer finish": sum(before is not None and after is None for before, after in pairs),
    }
    words = [f"{count} {what}" for what, count in counts.items() if count]
    met = [(bool(one.before and one.before.on_time), bool(one.after and one.after.on_time)) for one in changes]
    won, lost = sum(after > before for before, after in met), sum(after < before for before, after in met)
    words += [f"{counted(count, 'deadline')} {what}" for what, count in (("won", won), ("lost", lost)) if count]
    jobs = f"{len(changes)} {'job differs' if len(changes) == 1 else 'jobs differ'}"
    return f"{jobs}: {', '.join(words)}" if words else f"{jobs}, none finishes at another time"


def _finished(outlook: JobOutlook | None) -> int | None:
    return outlook.finish if outlook is not None else None


def signed(seconds: int) -> str:
    """Return a difference in hours, with its sign: ``+1h 30m``."""
    return ("+" if seconds > 0 else "") + hours(seconds)


def _job_row(out: Output, change: JobChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    moves = ""
    if before and after and before.finish is not None and after.finish is not None and before.finish != after.finish:
        moves = signed(after.finish - before.finish)
    return (
        change.job,
        _arrow(out.moment(before.start) if before else "", out.moment(after.start) if after else ""),
        _arrow(_finish(out, before), _finish(out, after)),
        moves,
        _arrow(hours(before.session_seconds if before else 0), hours(after.session_seconds if after else 0)),
        _arrow(_deadline(before), _deadline(after)),
    )


def _arrow(before: str, after: str) -> str:
    return after if before == after else f"{before or _NEVER} -> {after or _NEVER}"


def _finish(out: Output, outlook: JobOutlook | None) -> str:
    if outlook is None:
        return ""
    return "after the horizon" if outlook.finish is None else out.moment(outlook.finish)


def _deadline(outlook: JobOutlook | None) -> str:
    if outlook is None or outlook.on_time is None:
        return ""
    return "met" if outlook.on_time else "missed"


def show_devices(out: Output, job: str, choices: Sequence[whatif.DeviceChoice]) -> None:
    """Write for each pool what each number of devices would mean for a job."""
    out.line()
    out.line(f"{job}, trained without a break from now on:")
    out.listing(
        choices,
        {
            "pool": lambda one: one.pool,
            ">GPUs": lambda one: str(one.devices),
            ">hours": lambda one: f"{one.seconds / HOUR:.2f}",
            ">GPU hours": lambda one: f"{one.device_seconds / HOUR:.2f}",
            ">GPUs left": lambda one: str(one.left),
            "in time": lambda one: {None: "-", True: "yes", False: "no"}[one.in_time],
            "best": lambda one: "*" if one.chosen else "",
        },
    )


@command("schedctl plan diff", "schedctl plan diff --since 2026-11-21T08:00:00+01:00")
def show_diff(
    cli: Cli,
    since: Annotated[
        int | None,
        option(
            "--since INSTANT", "Compare with the plan at that time, 2026-11-21T08:00:00Z.", parser=parsed(parse_instant)
        ),
    ] = None,
) -> None:
    """Compare the newest plan with the one before."""
    app = cli.app
    diff = compare(app.database, app.pools, cli.now, app.policy.horizon_seconds, since)
    out, before, after = cli.out, diff.before, diff.after
    heads = [picked(plan, "made_at", "made_by", "digest", "bound") for plan in (before, after)]
    sessions = [asdict(change) for change in diff.sessions]
    out.data({"before": heads[0], "after": heads[1], "sessions": sessions, **asdict(diff.difference)})
    out.line(
        f"From the plan of {out.instant(before.made_at)}, worth {before.value:.2f}, "
        f"to that of {out.instant(after.made_at)}, worth {after.value:.2f}."
    )
    if not diff.sessions and diff.difference.nothing:
        out.line("Both plan the same sessions.")
        return
    columns = ("session", "~jobs", "pool", "from", "->length", "~was")
    out.table(columns, [_session_row(cli, change) for change in diff.sessions], below=True)
    show_changes(out, diff.difference)


def _session_row(cli: Cli, change: SessionChange) -> tuple[str, ...]:
    before, after = change.before, change.after
    placement = after or before
    if placement is None:
        raise ValueError("a change of no session")
    jobs, was = ", ".join(lane.job for lane in placement.lanes), []
    if before and after:  # how a session that moved was planned
        moved = signed(after.start - before.start)
        was += [f"on {before.pool}"] if before.pool != after.pool else []
        was += [f"from {cli.out.instant(before.start)} ({moved})"] if before.start != after.start else []
        length = before.end - before.start
        was += [f"of {hours(length)}"] if length != after.end - after.start else []
    start, lasts = cli.out.moment(placement.start), hours(placement.end - placement.start)
    return (change.change, jobs, placement.pool, start, lasts, ", ".join(was))


@command(
    "schedctl plan what-if --pool kaggle=20",
    "schedctl plan what-if --add-job job.toml --priority ufm=3 --pool desk=down",
    "schedctl plan what-if --devices ufm=2",
    "schedctl plan what-if --policy static",
    job_file="job.toml",
)
def show_what_if(
    cli: Cli,
    add_job: Annotated[list[Path] | None, option("--add-job FILE", "With this file's job; may be repeated.")] = None,
    pool: Annotated[
        list[str] | None,
        option("--pool NAME=HOURS|down", "With so many hours a window, or without it; may be repeated."),
    ] = None,
    priority: Annotated[
        list[str] | None, option("--priority --weight JOB=N", "With another priority; may be repeated.")
    ] = None,
    devices: Annotated[
        list[str] | None, option("--devices JOB=N", "On so many devices, with a table of all counts; may be repeated.")
    ] = None,
    policy: Annotated[
        str | None,
        option(
            "--policy NAME",
            "Planned by a simpler rule: static (the same sessions every week, jobs in fixed turns), fifo, "
            "edf (next deadline first), priority (highest priority first), srtf (least work left), smith (highest "
            "priority per hour of work left), density (what makes most of an hour).",
        ),
    ] = None,
) -> None:
    """Show what a change would do to finish times, hours and deadlines. Nothing is stored.

    Several edits are made together, new jobs first. Both plans continue the current plan as the daemon would.
    """
    if not (add_job or pool or priority or devices or policy):
        why, remedy = "no edit was given", "Give --add-job, --pool, --priority, --devices or --policy"
        raise UsageFault("nothing to try", why, remedy)
    if policy is not None and policy not in POLICIES:
        way_out = suggest(policy, POLICIES, _LISTINGS["policy"])
        raise UsageFault("unknown policy", f"{policy} is none of {listed(POLICIES)}", way_out)
    specs = [job_from_toml(path) for path in add_job or ()]
    counts = [_devices_edit(words) for words in devices or ()]
    edits = [*map(_pool_edit, pool or ()), *map(_weight_edit, priority or ()), *counts]
    try:
        choices = {edit.job: ask_devices(cli.planning_context, edit.job) for edit in counts}
        plan, difference = ask_what_if(cli.planning_context, specs, edits, policy)
    except whatif.UnknownName as error:
        why = f"{error.name} is not {'an open job' if error.kind == 'job' else 'among the settings'}"
        raise NotFound(f"unknown {error.kind}", why, suggest(error.name, error.names, _LISTINGS[error.kind])) from None
    data = {job: [asdict(one) for one in options] for job, options in choices.items()}
    more = {"devices": data} if data else {}
    cli.out.data({"plan": plan_json(plan), **asdict(difference), **more})
    before, after = difference.value_before, difference.value_after
    cli.out.line(f"Without the edit the plan is worth {before:.2f}, with it {after:.2f}; nothing is stored.")
    for warning in plan.warnings:
        cli.out.warn(warning, in_data=True)
    if difference.nothing:
        cli.out.line("The plan would be the same.")
    show_changes(cli.out, difference)
    for job, options in choices.items():
        show_devices(cli.out, job, options)


def _pool_edit(words: str) -> whatif.Edit:
    name, value = pair_of("--pool", words, "NAME=HOURS or NAME=down")
    if value == "down":
        return whatif.TakeDown(name)
    amount = _number("--pool", words, value)
    if not 0 <= amount <= _HOURS_MAX:
        why = f"hours of a window are from 0 to {_HOURS_MAX:,}"
        raise UsageFault(f"--pool {words} cannot be used", why, "Write it like kaggle=20")
    return whatif.SetHours(name, amount)


def _weight_edit(words: str) -> whatif.Edit:
    name, value = pair_of("--priority", words, "JOB=NUMBER")
    amount = _number("--priority", words, value)
    if not RANGES["priority"].holds(amount):
        why = f"{amount:g} is not in the range {RANGES['priority']}"
        raise UsageFault(f"--priority {words} cannot be used", why, "Write it like ufm=2")
    return whatif.SetWeight(name, amount)


def _devices_edit(words: str) -> whatif.SetDevices:
    name, value = pair_of("--devices", words, "JOB=COUNT")
    if not (count := digits(value, _DEVICES_MAX)):
        why = f"a count of devices is a whole number from 1 to {_DEVICES_MAX:,}"
        raise UsageFault(f"--devices {words} cannot be used", why, "Write it like ufm=2")
    return whatif.SetDevices(name, count)


def _number(option: str, words: str, value: str) -> float:
    try:
        amount = float(value)
    except ValueError:
        amount = float("nan")
    if not isfinite(amount):
        remedy = "Write it like kaggle=20 or kaggle=down" if option == "--pool" else "Write it like ufm=2"
        raise UsageFault(f"{option} {words} cannot be read", f"{value} is no number", remedy)
    return amount
