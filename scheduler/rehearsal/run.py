"""Runs a rehearsal: creates settings, corpus and queue, starts and watches the real daemon, and writes the figures."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from config.errors import ConfigError
from config.layers import PREFIX, shipped
from jobs.payload.whole_file import write_whole
from jobs.problem import Refusal
from jobs.size import counted
from jobs.spec import JobSpec
from platforms.base import PlatformError
from platforms.local.processes import start_ticks
from scheduler import clock
from scheduler.app import App, load_app
from scheduler.core.ledger import fold
from scheduler.core.reasons import show
from scheduler.rehearsal import stand_ins
from scheduler.rehearsal.folder import Rehearsal, settings_for, write_settings
from scheduler.report.week import Week, to_json, week_of
from scheduler.store import jobs, ledger, runs

# A Saturday 00:00 UTC: Kaggle's week begins with the rehearsal's.
DEFAULT_EPOCH = "2026-11-21T00:00:00Z"
# Variables of the real scheduler must not affect a rehearsal, above all its database.
_NO_ENVIRONMENT: dict[str, str] = {}
_PROGRESS_WALL_SECONDS = 0.5
_LEAD_WALL_SECONDS = 1.5  # the start of the emulators does not count as scheduled time
_LINE_EVERY_WALL_SECONDS = 15.0
_PICTURE_WIDTH = 1_400
_VERSION = "1.0"
_PACKAGES = {
    "rehearsal_rates": '''"""Learning rates."""


def warm(step, steps, highest):
    """Return a rate that grows to the highest during the first steps."""
    return highest * min(1.0, (step + 1) / steps)
''',
    "rehearsal_points": '''"""Training data: noisy points of a line."""


def point(chance):
    """Return x and y of the next point."""
    x = chance.uniform(-1, 1)
    return x, 3 * x + 1 + chance.gauss(0, 0.1)
''',
}


@contextmanager
def running_emulators(rehearsal: Rehearsal, app: App) -> Iterator[None]:
    """Run the shipped emulators that pools use until the block ends.

    Like real platforms, they survive a crash of the rehearsal: their sessions go on, and a resumed rehearsal finds
    them. They end with the rehearsal, or by themselves when they are idle.
    """
    emulators = stand_ins.emulators_of(rehearsal, app)
    try:
        for emulator in emulators:
            emulator.start()
        clock.pause(max(0.0, rehearsal.origin - clock.real_now()))
        yield
    except BaseException:
        for emulator in emulators:
            emulator.release()
        raise
    for emulator in emulators:
        emulator.end()


def instant_of(text: str) -> int:
    """Return the value of --epoch in UTC seconds. Raises Refusal."""
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise Refusal(f"--epoch {text!r} is not an instant", remedy=f"Write it like {DEFAULT_EPOCH}") from None
    if instant.tzinfo is None:
        raise Refusal(f"--epoch {text!r} has no zone", remedy=f"Write it like {DEFAULT_EPOCH}")
    return int(instant.timestamp())


def open_app(rehearsal: Rehearsal) -> App:
    """Return the app of the rehearsal's settings, independent of environment variables."""
    return load_app(rehearsal.config, _NO_ENVIRONMENT)


def _daemon_pid(rehearsal: Rehearsal) -> int | None:
    """Return the ID of the process that holds the rehearsal's lock, None if there is none, 0 if unknown."""
    from scheduler.daemon import LOCK_FILE
    from scheduler.store.lease import AlreadyRunning, FileLock

    if not rehearsal.state.exists():
        return None
    try:
        FileLock(rehearsal.state / LOCK_FILE).close()
    except AlreadyRunning as error:
        return error.pid or 0
    return None


def refuse_while_running(rehearsal: Rehearsal) -> None:
    """Raise Refusal while a daemon of this folder runs."""
    pid = _daemon_pid(rehearsal)
    if pid is not None:
        raise Refusal(
            f"{rehearsal.folder} holds a rehearsal whose daemon still runs (process {pid})",
            remedy=f"Continue it with --resume, or end it: kill {pid}",
        )


def read_base(path: Path | None) -> dict[str, Any]:
    """Return the validated settings to rehearse, with absolute paths. Raises ConfigError, ProblemsFound, Refusal.

    Settings are validated before anything is deleted, so that an error keeps an earlier rehearsal and names the user's
    file.
    """
    from jobs.toml_file import read_toml

    path = path or shipped("rehearsal.toml")
    app = load_app(path, _NO_ENVIRONMENT)
    if not app.catalogue.jobs:
        raise Refusal(f"the model definitions of {path} have no job", remedy="Add one: [[jobs]]")
    base = read_toml(path)
    base["pools"] = base.get("pools") or read_toml(shipped("pools.toml"))["pools"]
    _refuse_unknown_platforms(path, base["pools"])
    base["models"] = [str(file) for file in app.settings.models]
    base["corpus"] = {**base.get("corpus", {}), "sources": list(app.settings.corpus.sources) or ["stdlib"]}
    return base


def _refuse_unknown_platforms(path: Path, pools: Sequence[Mapping[str, Any]]) -> None:
    from jobs.problem import Problem, did_you_mean
    from platforms.registry import all_names

    problems = [
        Problem(
            str(path),
            f"pools[{number}].platform",
            pool["platform"],
            "there is no such platform",
            did_you_mean(pool["platform"], all_names()),
        )
        for number, pool in enumerate(pools)
        if pool["platform"] not in all_names()
    ]
    if problems:
        raise ConfigError(problems)


def prepare(rehearsal: Rehearsal, base: dict[str, Any], seed: int) -> App:
    """Create settings, corpus, database and queue; the clock starts afterwards, so this takes no scheduled time."""
    from scheduler.service.requests import queue
    from scheduler.service.requests.stored import stored
    from scheduler.store.engine import open_database

    # The bucket of the shipped emulator is filled as a folder, before the emulator runs.
    keeps_bucket = stand_ins.keeps_bucket(rehearsal, base)
    first = {**base, "artifacts": {}} if keeps_bucket else base
    document = settings_for(replace(rehearsal, origin=0.0), first)
    document["clock"]["stopped_at"] = rehearsal.epoch  # everything written until now has the time of the start
    write_settings(rehearsal, document)
    app = open_app(rehearsal)
    app.settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    open_database(app.settings.database_url, create=True).close()
    if any(spec.mixture for spec in app.catalogue.jobs):
        _say("building the corpus ...")
        corpus = app.training_data.build("rehearse", lambda _how_far: None)
        _say(
            f"corpus {corpus.version}: {corpus.rows:,} texts, {corpus.train_text_bytes / 1e6:.1f} MB, "
            f"{corpus.held_out.rows} held out"
        )
    keep_until = rehearsal.epoch + app.policy.retention.grace_seconds
    seeded = (named_by(rehearsal, replace(spec, seed=spec.seed + seed)) for spec in app.catalogue.jobs)
    specs = [stored(app, spec, keep_until, _say) for spec in seeded]
    queue.add(app.database, specs, rehearsal.epoch, "rehearse")
    _warn_of_obstacles(app, rehearsal.epoch)
    for spec in specs:
        app.training_data.prefix(spec.name)
    app.database.close()
    lead = _LEAD_WALL_SECONDS if keeps_bucket else 0.0
    started = replace(rehearsal, origin=rehearsal.origin or clock.real_now() + lead)
    write_settings(started, settings_for(started, base))
    return open_app(started)


def _warn_of_obstacles(app: App, now: int) -> None:
    from scheduler.service.facts.snapshot import load_snapshot
    from scheduler.service.requests.questions import obstacles

    with app.database.read() as tx:
        names = {record.spec.name for record in jobs.everything(tx)}
        snapshot = load_snapshot(tx, app.pools, now, app.policy.horizon_seconds)
    for name, reason in obstacles(snapshot, names).items():
        _say(f"{name} can never start here: {reason.sentence(app.settings.zone)}")


def run_daemon(rehearsal: Rehearsal, app: App) -> None:
    """Start the daemon, or join one that still runs, and show progress until it has ended."""
    pid = _daemon_pid(rehearsal)
    if pid is not None:
        _say(f"joining the daemon that still runs (process {pid})")
        begun = start_ticks(pid)
        # It releases its lock a moment before it ends.
        _watch(rehearsal, app, lambda: _daemon_pid(rehearsal) is None and (not begun or start_ticks(pid) != begun))
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
        raise Refusal(
            "interrupted; running sessions save and end by themselves",
            remedy=f"Go on with: {_resume_command(rehearsal)}",
        ) from None
    if daemon.returncode != 0:
        code = daemon.returncode
        how = f"signal {signal.strsignal(-code) or -code}" if code < 0 else f"exit code {code}"
        raise _ended_early(rehearsal, f"the daemon ended with {how}")
    if not _is_over(rehearsal, app):
        raise _ended_early(rehearsal, "the daemon was stopped")


def _is_over(rehearsal: Rehearsal, app: App) -> bool:
    """Return whether the time is over and every session has ended; a stopped daemon ends early without an error."""
    with app.database.read() as tx:
        return app.clock.now() >= rehearsal.end and not runs.live(tx)


def _ended_early(rehearsal: Rehearsal, what: str) -> Refusal:
    return Refusal(
        f"{what} before the rehearsal was over; nothing is lost. The reason is at the end of {rehearsal.log}",
        remedy=f"Go on with: {_resume_command(rehearsal)}",
    )


def _resume_command(rehearsal: Rehearsal) -> str:
    return f"schedctl rehearse --out {rehearsal.folder} --resume"


def _watch(rehearsal: Rehearsal, app: App, ended: Any) -> None:
    """Print progress until ``ended``; on a terminal one line is updated."""
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


def week_figures(rehearsal: Rehearsal, app: App) -> Week:
    """Return the figures of the rehearsed week, from its ledger. Raises Refusal if Slurm's accounting is unreadable."""
    from scheduler.views.weekly_report import week_facts

    week = week_of(week_facts(app.database, app.pools, rehearsal.epoch, rehearsal.end, rehearsal.scale))
    try:
        disagreements = stand_ins.disagreements(rehearsal, app)
    except PlatformError as error:
        remedy = f"Go on with: {_resume_command(rehearsal)}"
        raise Refusal("Slurm's accounting cannot be read", error.why, remedy) from None
    if disagreements is None:
        _say("Slurm keeps no accounting here, so the ledger was not compared with it")
    return replace(week, violations=(*week.violations, *(disagreements or ())))


def write_week(out: Path, week: Week, app: App) -> None:
    """Write week.json and week.svg to the folder ``out``, atomically."""
    from jobs.nouns.window import Window
    from scheduler.report.timeline import timeline_svg
    from scheduler.views.chart_facts import timeline

    with app.database.read() as tx:
        sessions = timeline(tx, app.pools, None, Window(week.start, week.end), week.end)
    for name, text in {
        "week.json": json.dumps(to_json(week), indent=2) + "\n",
        "week.svg": timeline_svg(sessions, app.settings.zone, _PICTURE_WIDTH) + "\n",
    }.items():
        write_whole(out / name, text)


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def line_of(app: App, start: int, end: int) -> str:
    """Return a progress line: scheduled time, live sessions, charged hours by pool, steps of each job."""
    now = app.clock.now()
    with app.database.read() as tx:
        records = jobs.everything(tx)
        live = runs.live(tx)
        charges = fold(ledger.entries(tx))
    share = min(1.0, (now - start) / (end - start))
    spent = {
        pool: sum(charge.sign * (charge.end - charge.start) for charge in seconds if not charge.held) / 3_600
        for pool, seconds in charges.items()
    }
    hours = " ".join(f"{pool} {used:.0f}h" for pool, used in sorted(spent.items()))
    steps = " ".join(f"{record.spec.name}:{record.done_step}" for record in records)
    lanes = sum(len(run.lanes) for run in live)
    at = show(min(now, end), app.settings.zone)
    return f"{share:4.0%} {at} | {counted(len(live), 'session')}, {counted(lanes, 'lane')} | {hours} | {steps}"


# A package index with two small packages, which the shipped example requires.
def named_by(rehearsal: Rehearsal, spec: JobSpec) -> JobSpec:
    """Return the job; the shipped example that requires packages gets the rehearsal's package index."""
    if spec.requirements is None or not Path(spec.requirements.source).is_relative_to(shipped("own_folder")):
        return spec
    index = rehearsal.folder / "packages"
    for name, source in _PACKAGES.items():
        _put_wheel(index, name, source)
    address = index.as_uri()
    # Settings of this machine, such as an index, are ignored: no index has these packages.
    return replace(
        spec,
        environment={
            **spec.environment,
            "PIP_CONFIG_FILE": "/dev/null",
            "PIP_INDEX_URL": address,
            "UV_DEFAULT_INDEX": address,
        },
    )


def _put_wheel(index: Path, name: str, source: str) -> None:
    """Add a package to a simple index, which has a page for each package name with links to its wheels."""
    about, wheel = f"{name}-{_VERSION}.dist-info", f"{name}-{_VERSION}-py3-none-any.whl"
    files = {
        f"{name}.py": source,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {_VERSION}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: schedctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = f"{about}/RECORD"
    files[record] = "".join(f"{path},,\n" for path in (*files, record))
    page = index / name.replace("_", "-")
    page.mkdir(parents=True)
    with zipfile.ZipFile(page / wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    (page / "index.html").write_text(f'<!DOCTYPE html><html><body><a href="{wheel}">{wheel}</a></body></html>\n')
