"""`schedctl runs` lists, shows and stops the runs, one for each session; `schedctl events` shows the event log."""

import json
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Annotated

import typer

from jobs.duration import parse_instant
from jobs.lane_report import LaneReport
from jobs.problem import NotFound
from scheduler.cli.commands.complete import job_names, pool_names, run_keys
from scheduler.cli.parts.runs_table import OUTCOMES, RUN_COLUMNS, run_row, warn_of_loss
from scheduler.cli.shell.command import Listing, Tables, Yes, argument, command, confirm, option, parsed
from scheduler.cli.shell.context import Cli
from scheduler.cli.shell.names import find_pool, find_run
from scheduler.cli.shell.output import Output, clean, figure, hours
from scheduler.core.ledger import fold
from scheduler.core.run import Ended, Lane
from scheduler.service.requests import sessions
from scheduler.service.requests.sessions import followed_log, lane_lines, lines, log_pieces
from scheduler.store import events, generations, jobs, ledger, queue_waits, runs
from scheduler.store.events import Event
from scheduler.store.generations import Generation
from scheduler.views.documents import picked, run_json

Key = Annotated[str, argument("RUN", "ID of the run, as runs list shows it.", autocompletion=run_keys)]
RunOrJob = Annotated[str, argument("RUN|JOB", "ID of the run, or a job: its newest run.", autocompletion=run_keys)]
_LOOK_AGAIN_SECONDS = 1.0  # between two reads of a log that is followed


def _proof_text(proof: str) -> str:
    if not proof.strip():
        raise typer.BadParameter("say how you know that it is dead")
    return proof


@command("schedctl runs list --live", "schedctl runs list --job ufm --limit 5", kind=Listing)
def list_(
    cli: Cli,
    live: Annotated[bool, option("--live", "Only runs that have not ended.")] = False,
    pool: Annotated[str | None, option("--pool", "Only runs on this pool.", autocompletion=pool_names)] = None,
    job: Annotated[str | None, option("--job", "Only runs with this job.", autocompletion=job_names)] = None,
    limit: Annotated[int, option("--limit -n", "At most so many, the newest.", min=1)] = 50,
) -> None:
    """List runs, the newest first."""
    with cli.app.database.read() as tx:
        if job is not None:
            jobs.get(tx, job, removed=True)
        recent = queue_waits.attach(tx, runs.recent(tx, limit, pool, job))
    if pool is not None and not recent:
        find_pool(cli.app.pools, pool)
    if live:
        recent = [run for run in recent if not isinstance(run.state, Ended)]
    cli.out.data({"runs": [run_json(run) for run in recent]})
    cli.out.table(RUN_COLUMNS, [run_row(run, cli.out) for run in recent])
    if not recent:
        cli.out.say("No such runs. What is planned: schedctl plan show")


@command("schedctl runs show uff-ufm-0007", kind=Tables)
def show(cli: Cli, name: RunOrJob) -> None:
    """Show one run with its lanes and events."""
    with cli.app.database.read() as tx:
        (run,) = queue_waits.attach(tx, [find_run(tx, name, or_job=True)])
        key = run.key
        charges = fold(ledger.of_runs(tx, [key])).get(run.pool, ())
        heartbeats = runs.heartbeats(tx, [key])
        history = events.tail(tx, subject=key)
        parents = {
            lane.job: generation
            for lane in run.lanes
            if lane.restore_step is None and (generation := generations.of_attempt(tx, lane.job, lane.attempt))
        }
    document = run_json(run, heartbeats)
    for lane in document["lanes"]:
        start = parents.get(lane["job"])
        lane["parent"] = start.parent_key if start else None
    document["events"] = [picked(event, "id", "at", "kind", "by", "data") for event in history]
    spent = [charge for charge in charges if not charge.held]
    document["charged_seconds"] = sum(charge.sign * (charge.end - charge.start) for charge in spent)
    document["waited_seconds"] = waited = sum(charge.end - charge.start for charge in spent if charge.waited)
    cli.out.data({"run": document})
    cli.out.table(RUN_COLUMNS, [run_row(run, cli.out)])
    if waited:
        billed = f"{hours(document['charged_seconds'])} billed, {hours(waited)} of them"
        cli.out.line(f"{billed} while it waited in the queue of {run.pool}.")
    cli.out.line()
    cli.out.table(
        (">lane", "job", "---code", "-->from step", ">step", "->loss", "-->steps/h", "phase", "outcome", "~message"),
        [
            _lane_row(
                lane,
                heartbeats.get((key, lane.index)) or LaneReport(key, lane.index, lane.job),
                parents.get(lane.job),
                run.continued_by(lane.job),
            )
            for lane in run.lanes
        ],
    )
    trees = [(str(lane.index), *start) for lane in run.lanes for start in sorted(lane.trees.items())]
    cli.out.table((">lane", "was given", "~from the artifact store"), trees, below=True)
    cli.out.line()
    write_events(cli.out, history)


@command("schedctl runs logs ufm -f", "schedctl runs logs uff-ufm-0007 --tail 20 --lane 1")
def logs(
    cli: Cli,
    name: RunOrJob,
    follow: Annotated[bool, option("--follow -f", "Go on until the run ends.")] = False,
    tail: Annotated[int | None, option("--tail -n", "Only the last N lines so far.", min=0)] = None,
    lane: Annotated[int | None, option("--lane", "Only the lines of this lane.", min=0)] = None,
    raw: Annotated[bool, option("--raw", "With what moves a cursor and colours text; secrets stay hidden.")] = False,
) -> None:
    """Write what a session printed. What steers a terminal is left out. With --json, one object a line."""
    with cli.app.database.read() as tx:
        run = find_run(tx, name, or_job=True)
    if run.pool not in cli.app.pools:
        remedy = "Put the pool back into the settings to read its logs"
        raise NotFound("no logs", f"{run.key} ran on {run.pool}, which is not configured any more", remedy)
    key, platform = run.key, cli.app.platform(run.pool)
    if lane is None and name != key:
        lane = next(own.index for own in run.lanes if own.job == name)

    def printed(pieces: Iterator[bytes]) -> Iterator[bytes]:
        return lines(pieces) if lane is None else lane_lines(pieces, run, lane)

    skipped = 0 if tail is None else max(0, sum(1 for _ in printed(log_pieces(platform, key))) - tail)
    pieces = (
        followed_log(cli.app.database, platform, key, lambda: threading.Event().wait(_LOOK_AGAIN_SECONDS))
        if follow
        else log_pieces(platform, key)
    )
    written = False
    for line in islice(printed(pieces), skipped, None):
        written, text = True, line.decode("utf-8", "replace").removesuffix("\n")
        # Files and pipes get clean text too, since their content may later be shown on a terminal.
        clean_line = cli.redact(text if raw else clean(text))
        sys.stdout.write((json.dumps({"line": clean_line}) if cli.options.json else clean_line) + "\n")
        sys.stdout.flush()
    if not written and not platform.capabilities.tails_logs and not isinstance(run.state, Ended):
        cli.out.say(f"{key} is not over, and {run.pool} shows what a session printed only afterwards.")
    elif not written:
        cli.out.say(f"{key} has printed nothing that is kept.")


@command("schedctl runs stop uff-ufm-0007 --reason 'wrong data'")
def stop(
    cli: Cli,
    key: Key,
    why: Annotated[str, option("--reason --why TEXT", "Kept, shown, and given to the session.")] = "stopped by hand",
) -> None:
    """Ask a running session to save and end. Its jobs go back to the queue: hold them to keep them from it."""
    with cli.app.database.read() as tx:
        find_run(tx, key)
    stopping = sessions.stop(cli.app.database, cli.app.artifacts, key, why, cli.now, cli.who)
    if not stopping.flag_written:
        cli.out.warn("the artifact store cannot be written; the daemon passes the request on when it can")
    with cli.app.database.read() as tx:
        silence = sessions.unreachable(tx, stopping.run)
    cli.out.data({"run": run_json(stopping.run), "told": stopping.flag_written, "unreachable": silence or None})
    if silence:
        cli.out.line(
            f"Nobody can reach {key} now: {silence}. It saves and stops when it finds its stop flag. If you know that "
            f"it is dead: schedctl runs lost {key} --proof '...'"
        )
    else:
        cli.out.line(f"{key} saves and ends. Follow it with: schedctl runs logs {key} -f")
    warn_of_loss(cli, key)
    cli.wake_daemon()


@command("schedctl runs lost uff-ufm-0007 --proof 'sacct: NODE_FAIL at 12:04, node powered off'")
def lost(
    cli: Cli,
    key: Key,
    proof: Annotated[str, option("--proof", "How you know that it is dead; kept for ever.", callback=_proof_text)],
    ended: Annotated[
        int | None,
        option(
            "--ended INSTANT",
            "Charge it until then, 2026-11-21T08:00:00Z. By default until its last sign of life, or where it gave "
            "none, until the end of its reservation or now, whichever is first.",
            parser=parsed(parse_instant),
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Declare a session dead that cannot be reached. Its run ends, and its jobs go back to the queue."""
    with cli.app.database.read() as tx:
        find_run(tx, key)
        declared = sessions.lost(tx, key, ended, cli.now)
    until = "" if declared.ended is None else f", charged until {cli.out.moment(declared.ended)}"
    question = f"Declare {key} dead{until} ({declared.because})? If it lives, it may train beside its successor."
    confirm(cli, question, yes=yes)
    with cli.app.database.write() as tx:
        declared = sessions.lost(tx, key, ended if declared.ended is None else declared.ended, cli.now)
        sessions.declare_lost(tx, declared, proof, cli.now, cli.who)
    cli.out.data({"run": run_json(declared.run), "ended": declared.ended, "because": declared.because})
    cli.out.line(
        f"{key} is declared dead{until}. A session that shows up after all is asked to stop, and what it is "
        f"billed is recorded."
    )
    cli.wake_daemon()


def _lane_row(lane: Lane, report: LaneReport, start: Generation | None, continues: str) -> tuple[str, ...]:
    speed, loss = report.steps_per_second, report.loss
    step = report.step if lane.end_step is None else lane.end_step
    return (
        str(lane.index),
        lane.job,
        (lane.code or "")[:12],
        f"{start.parent}@{start.parent_step}" if start and start.parent else str(lane.restore_step or 0),
        "" if step is None else str(step),
        figure(loss, ".4f"),
        "" if speed is None else f"{speed * 3_600:.0f}",
        report.phase,
        OUTCOMES.get(lane.outcome or "", lane.outcome or ""),
        f"{lane.error_class}: {lane.message}" if lane.error_class else lane.message or continues,
    )


@command("schedctl events", "schedctl events ufm --limit 5", kind=Listing)
def list_events(
    cli: Cli,
    subject: Annotated[str | None, argument("SUBJECT", "Only of this job, run, pool or version.")] = None,
    limit: Annotated[int, option("--limit -n", "At most so many, the newest.", min=1)] = 50,
) -> None:
    """List what happened, the newest last."""
    with cli.app.database.read() as tx:
        recent = events.tail(tx, limit=limit, subject=subject)
    cli.out.data({"events": [asdict(event) for event in recent]})
    write_events(cli.out, recent, with_subject=True)
    if not recent:
        cli.out.say(f"No event of {subject} is kept." if subject else "Nothing has happened yet.")


def write_events(out: Output, rows: Iterable[Event], *, with_subject: bool = False) -> None:
    """Write events as a table; ``with_subject`` adds the column with the job, run, pool or version of each event."""
    subject = ("subject",) if with_subject else ()
    cells = (
        (out.moment(one.at), *([one.subject] if with_subject else []), one.kind, one.by, str(one.data.get("why", "")))
        for one in rows
    )
    out.table(("at", *subject, "event", "-by", "~reason"), cells)
