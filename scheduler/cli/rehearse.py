"""schedctl rehearse: a whole week on this machine, with the real daemon on a scaled clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from config.errors import ConfigError
from config.layers import PREFIX
from scheduler import clock
from scheduler.cli import stand_in_aws, stand_in_kaggle
from scheduler.cli.command import command
from scheduler.cli.context import Cli
from scheduler.cli.exits import Exit
from scheduler.cli.output import Output
from scheduler.cli.week_summary import show_week
from scheduler.report.week import to_json, week_of
from scheduler.service.rehearsal import (
    Rehearsal,
    RehearsalError,
    clear,
    reopen,
    settings_for,
    stop_clock,
    write_settings,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from scheduler.app import App
    from scheduler.report.week import Week

# A Saturday 00:00 UTC: Kaggle's week begins with the rehearsal's.
_DEFAULT_EPOCH = "2026-11-21T00:00:00Z"
# What is set for the real scheduler must not reach into a rehearsal: its database above all.
_NO_ENVIRONMENT: dict[str, str] = {}
_PROGRESS_WALL_SECONDS = 0.5
_LEAD_WALL_SECONDS = 1.5  # what the emulators take to start, which is nobody's scheduled time
_LINE_EVERY_WALL_SECONDS = 15.0
_PICTURE_WIDTH = 1_400

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@command(
    app,
    "schedctl rehearse --out out/week                        a week in about three minutes",
    "schedctl rehearse --out out/week --resume               go on after a crash or Ctrl-C",
    "schedctl rehearse --hours 24 --scale 1800               one day, at half the speed",
    "schedctl --config out/week/rehearsal.toml runs list     look at it with any command",
)
def rehearse(  # noqa: PLR0913, PLR0917 - one parameter per option
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="Folder of the rehearsal; an earlier rehearsal there is replaced.")] = Path(
        "out/week"
    ),
    hours: Annotated[float, typer.Option(min=0.01, max=24 * 366, help="Scheduled hours to run.")] = 168.0,
    scale: Annotated[float, typer.Option(min=1.0, max=36_000, help="Scheduled seconds in a real second.")] = 3_600.0,
    epoch: Annotated[str, typer.Option(help="Scheduled instant at the start, ISO 8601 with zone.")] = _DEFAULT_EPOCH,
    seed: Annotated[int, typer.Option(min=0, help="Added to every model's seed.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the rehearsal that is in the folder.")] = False,
    kaggle_proxy: Annotated[
        str,
        typer.Option(
            help="Address of a server that speaks Kaggle's protocol, runs at --scale and shows --epoch right now; "
            "credentials come from the environment."
        ),
    ] = "",
    aws_endpoint: Annotated[
        str,
        typer.Option(
            help="Address of a server that speaks AWS's protocols, runs at --scale and shows --epoch right now; "
            "bucket, role and region come from --config, credentials from AWS's usual places."
        ),
    ] = "",
) -> None:
    """Run a whole week on this machine: real daemon, real database, real training, scaled clock.

    With --config the pools and models of that file are rehearsed instead of the shipped ones. Leaves week.json,
    week.svg, rehearsal.toml and daemon.log in the folder. Exits with 9 when a quota was exceeded or a checkpoint
    went backwards.
    """
    cli: Cli = ctx.obj
    out = out.expanduser().absolute()
    asked_at = clock.process_began()  # what --epoch tells was true before a second went by in starting
    if resume:
        app = _app(reopen(out))
    else:
        # The clock starts when all is prepared, unless it is somebody else's, which runs already.
        rehearsal = Rehearsal(out, _instant(epoch), hours, scale, asked_at if kaggle_proxy or aws_endpoint else 0.0)
        base = read_base(cli.options.config)
        stand_in_kaggle.stand_in(base, out, kaggle_proxy)
        stand_in_aws.stand_in(base, out, aws_endpoint)
        _refuse_while_running(rehearsal)
        clear(out)
        app = prepare(rehearsal, base, seed)
    begun = reopen(out)
    with _standing_in(begun, app):
        _run_daemon(begun, app)
    stop_clock(begun, app.clock.now())
    app = _app(begun)
    week = _week(begun, app)
    _write(out, week, app)
    output = Output(cli.options.json, cli.colour, app.settings.zone)
    if output.as_json:
        output.data(to_json(week))
    else:
        show_week(output, week, out)
    if week.violations:
        raise typer.Exit(Exit.VIOLATIONS)


@contextmanager
def _standing_in(rehearsal: Rehearsal, app: App) -> Iterator[None]:
    """See to it that the shipped emulators run while the rehearsal does, if pools were pointed to them.

    Like the places they stand for, they outlive a crash of ours: the sessions on them go on, and a resumed rehearsal
    finds them again. They are ended with the rehearsal, or end by themselves when nothing happens on them any more.
    """
    emulators = [one for module in (stand_in_aws, stand_in_kaggle) if (one := module.emulator_of(rehearsal, app))]
    try:
        for emulator in emulators:
            emulator.start()
        clock.pause(max(0.0, rehearsal.origin - clock.real_now()))
        yield
    except BaseException:
        for emulator in emulators:
            emulator.leave()
        raise
    for emulator in emulators:
        emulator.end()


def _instant(text: str) -> int:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise RehearsalError(f"--epoch {text!r} is not an instant. Write it like {_DEFAULT_EPOCH}") from None
    if found.tzinfo is None:
        raise RehearsalError(f"--epoch {text!r} has no zone. Write it like {_DEFAULT_EPOCH}")
    return int(found.timestamp())


def _app(rehearsal: Rehearsal) -> App:
    from scheduler.app import load_app

    return load_app(rehearsal.config, _NO_ENVIRONMENT)


def _daemon_pid(rehearsal: Rehearsal) -> int | None:
    """Return the process that holds the rehearsal's lock, or None; 0 when it cannot be told."""
    from scheduler.daemon import LOCK_FILE
    from scheduler.store.lease import AlreadyRunning, file_lock

    if not rehearsal.state.exists():
        return None
    try:
        file_lock(rehearsal.state / LOCK_FILE).close()
    except AlreadyRunning as error:
        return error.pid or 0
    return None


def _refuse_while_running(rehearsal: Rehearsal) -> None:
    pid = _daemon_pid(rehearsal)
    if pid is not None:
        raise RehearsalError(
            f"{rehearsal.folder} holds a rehearsal whose daemon still runs (process {pid}). "
            f"Go on with it by --resume, or end it: kill {pid}"
        )


def read_base(path: Path | None) -> dict[str, Any]:
    """Return the settings to rehearse, with absolute paths, once they and their models are found usable.

    An earlier rehearsal must not be lost to a typing error, and a message must name the file that people wrote.
    Raises ConfigError, CatalogueError.
    """
    from config.shipped import shipped
    from jobs.toml_file import read_toml
    from scheduler.app import load_app

    path = path or shipped("rehearsal.toml")
    app = load_app(path, _NO_ENVIRONMENT)
    if not app.catalogue.jobs:
        raise RehearsalError(f"the model definitions of {path} name no job. Add one: [[jobs]]")
    base = read_toml(path)
    base["pools"] = base.get("pools") or read_toml(shipped("pools.toml"))["pools"]
    _refuse_unknown_platforms(path, base["pools"])
    base["models"] = [str(file) for file in app.settings.models]
    base["corpus"] = {**base.get("corpus", {}), "sources": list(app.settings.corpus.sources)}
    return base


def _refuse_unknown_platforms(path: Path, pools: Sequence[Mapping[str, Any]]) -> None:
    from jobs.problem import Problem, did_you_mean
    from platforms.registry import known

    problems = [
        Problem(
            str(path),
            f"pools[{number}].platform",
            pool["platform"],
            "there is no such platform",
            did_you_mean(pool["platform"], known()),
        )
        for number, pool in enumerate(pools)
        if pool["platform"] not in known()
    ]
    if problems:
        raise ConfigError(problems)


def prepare(rehearsal: Rehearsal, base: dict[str, Any], seed: int) -> App:
    """Make settings, corpus, database and queue; the clock starts last, so that none of it takes scheduled time."""
    from dataclasses import replace

    from scheduler.service import queue
    from scheduler.store.engine import open_database

    # A bucket that the shipped emulator keeps is filled as the folder that it is, before the emulator runs.
    keeps_bucket = stand_in_aws.keeps_bucket(rehearsal, base)
    first = {**base, "artifacts": {}} if keeps_bucket else base
    write_settings(rehearsal, settings_for(rehearsal, first))
    app = _app(rehearsal)
    app.settings.state_dir.mkdir(parents=True, exist_ok=True)
    open_database(app.database_url, create=True).close()
    _say("building the corpus ...")
    made = app.training_data.build()
    _say(f"corpus {made.version}: {made.rows:,} texts, {made.train_text_bytes / 1e6:.1f} MB")
    specs = [replace(spec, seed=spec.seed + seed) for spec in app.catalogue.jobs]
    queue.add(app.database, specs, rehearsal.epoch, "rehearse")
    _warn_of_obstacles(app, rehearsal.epoch)
    for spec in specs:
        app.training_data.prefix(spec.name)
    app.database.close()
    lead = _LEAD_WALL_SECONDS if keeps_bucket else 0.0
    started = replace(rehearsal, origin=rehearsal.origin or clock.real_now() + lead)
    write_settings(started, settings_for(started, base))
    return _app(started)


def _warn_of_obstacles(app: App, now: int) -> None:
    from scheduler.service.feasibility import obstacles
    from scheduler.service.snapshot import load_snapshot
    from scheduler.store import jobs

    with app.database.read() as tx:
        names = {record.spec.name for record in jobs.everything(tx)}
        snapshot = load_snapshot(tx, app.pools, now, app.policy.horizon_seconds)
    for name, reason in obstacles(snapshot, names).items():
        _say(f"{name} can never start here: {reason.sentence(app.settings.zone)}")


def _run_daemon(rehearsal: Rehearsal, app: App) -> None:
    """Start the daemon, or join one that still runs, and show progress until it has ended."""
    pid = _daemon_pid(rehearsal)
    if pid is not None:
        _say(f"joining the daemon that still runs (process {pid})")
        _watch(rehearsal, app, lambda: _daemon_pid(rehearsal) is None)
        if not _is_over(rehearsal, app):
            raise _ended_early(rehearsal, "the daemon ended")
        return
    command = [sys.executable, "-m", "scheduler", "--config", str(rehearsal.config), "daemon"]
    ours = {name: text for name, text in os.environ.items() if not name.startswith(PREFIX)}
    environment = {**ours, "PYTHONSAFEPATH": "1"}
    with rehearsal.log.open("ab") as log:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment
        )
    _say(f"daemon started (process {daemon.pid}), log: {rehearsal.log}")
    try:
        _watch(rehearsal, app, lambda: daemon.poll() is not None)
    except KeyboardInterrupt:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait()
        raise RehearsalError(
            f"interrupted; running sessions save and end by themselves. Go on with: {_resume_command(rehearsal)}"
        ) from None
    if daemon.returncode != 0:
        raise _ended_early(rehearsal, f"the daemon ended with {_how(daemon.returncode)}")
    if not _is_over(rehearsal, app):
        raise _ended_early(rehearsal, "the daemon was stopped")


def _is_over(rehearsal: Rehearsal, app: App) -> bool:
    """Whether the time is over and every session settled. A daemon that was asked to stop ends well, but early."""
    from scheduler.store import runs

    with app.database.read() as tx:
        return app.clock.now() >= rehearsal.end and not runs.live(tx)


def _ended_early(rehearsal: Rehearsal, what: str) -> RehearsalError:
    return RehearsalError(
        f"{what} before the week was over; nothing is lost. Its last words are in {rehearsal.log}. "
        f"Go on with: {_resume_command(rehearsal)}"
    )


def _resume_command(rehearsal: Rehearsal) -> str:
    return f"schedctl rehearse --out {rehearsal.folder} --resume"


def _how(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _watch(rehearsal: Rehearsal, app: App, ended: Any) -> None:
    """Show a line of progress until ``ended``; on a terminal it is drawn over and over."""
    from scheduler.cli.progress import line_of
    from scheduler.store.errors import StoreFailure

    live = sys.stderr.isatty()
    next_line = 0.0
    while not ended():
        clock.pause(_PROGRESS_WALL_SECONDS)
        if not live and clock.stopwatch() < next_line:
            continue
        next_line = clock.stopwatch() + _LINE_EVERY_WALL_SECONDS
        with suppress(StoreFailure):
            line = line_of(app, rehearsal.epoch, rehearsal.end)
            sys.stderr.write(f"\r\x1b[K{line}" if live else f"{line}\n")
            sys.stderr.flush()
    if live:
        sys.stderr.write("\r\x1b[K")


def _week(rehearsal: Rehearsal, app: App) -> Week:
    from scheduler.service.week_facts import week_facts

    return week_of(week_facts(app.database, app.pools, rehearsal.epoch, rehearsal.end, rehearsal.scale))


def _write(out: Path, week: Week, app: App) -> None:
    from scheduler.core.window import Window
    from scheduler.report.timeline import timeline_svg
    from scheduler.service.pictures import timeline

    with app.database.read() as tx:
        sessions = timeline(tx, app.pools, None, Window(week.start, week.end), week.end)
    for name, text in {
        "week.json": json.dumps(to_json(week), indent=2) + "\n",
        "week.svg": timeline_svg(sessions, app.settings.zone, _PICTURE_WIDTH) + "\n",
    }.items():
        fresh = out / f"{name}.new"
        fresh.write_text(text)
        fresh.replace(out / name)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
