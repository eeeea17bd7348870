"""Exports: files that other programs read, kept up to date by the daemon where the settings ask for them.

``calendar`` is a file with the sessions that run and are planned. ``series`` is a folder with one for each job: what
its sessions told, as CSV (written anew) and as TensorBoard's event file (which only ever grows).
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from scheduler.core.window import DAY, Window
from scheduler.report.calendar import calendar_of
from scheduler.report.event_file import first_record, newest, record
from scheduler.report.timeline import timeline_of
from scheduler.service.outside.calls import fail
from scheduler.store import jobs, plans, runs, series

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from config.settings import ExportSettings
    from scheduler.service.outside.ports import Ports
    from scheduler.store.series import Point

_DROPPED = "the daemon no longer sends this. Set export.series, and run examples/trackers/send.py on that folder"
_AHEAD_SECONDS = 28 * DAY
_COLUMNS = ("attempt", "step", "at", *series.FIGURES)


def export(ports: Ports, wanted: ExportSettings, now: int) -> None:
    """Write what is ``wanted``. What cannot be written is told as failed work, and tried again a minute later."""
    dropped = [f"export.{name}" for name in ("mlflow", "wandb") if getattr(wanted, name) is not None]
    why = f"{' and '.join(dropped)}: {_DROPPED}" if dropped else ""
    try:
        if wanted.calendar is not None:
            _write(wanted.calendar, calendar(ports, now).encode())
        if wanted.series is not None:
            _export_series(ports, wanted.series)
    except OSError as error:
        why = str(error)
    if why:
        ports.log.error("exports.failed", why=why, next="tried again in a minute")
        fail(why)


def calendar(ports: Ports, now: int) -> str:
    """Return the calendar of the sessions that run and are planned."""
    with ports.database.read() as tx:
        plan, live = plans.newest(tx), runs.live(tx)
    span = Window(now, now + _AHEAD_SECONDS)
    timeline = timeline_of(span, now, [ports.pools[name] for name in sorted(ports.pools)], live, plan, {})
    return calendar_of(timeline.sessions, plan.made_at if plan else now)


def _export_series(ports: Ports, folder: Path) -> None:
    with ports.database.read() as tx:
        names = jobs.names_by_age(tx)
    for name in names:
        with ports.database.read() as tx:
            points = series.of_job(tx, name)
        if points:
            own = folder / name
            own.mkdir(parents=True, exist_ok=True)
            _write(own / "series.csv", csv_of(points).encode())
            add_events(own / f"events.out.tfevents.{points[0].at}.uff-scheduler", points)


def csv_of(points: Sequence[Point]) -> str:
    """Return a table of what was told, instants in UTC."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for point in points:
        at = datetime.fromtimestamp(point.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        told = point.figures()
        writer.writerow(
            (point.attempt, point.step, at, *(repr(told[name]) if name in told else "" for name in series.FIGURES))
        )
    return text.getvalue()


def add_events(file: Path, points: Sequence[Point]) -> None:
    """Add to an event file what was told since its last whole record; what a crash cut off is written anew."""
    known = file.read_bytes() if file.exists() else b""
    last, end = newest(known)
    fresh = b"" if last is not None else first_record(points[0].at - 1)
    for point in sorted(points, key=lambda point: (point.at, point.attempt, point.step)):
        told = point.figures()
        if told and (last is None or point.at > last):
            fresh += record(point.at, point.step, told)
    if fresh or end < len(known):
        with file.open("r+b" if known else "wb") as stream:
            stream.truncate(end)
            stream.seek(end)
            stream.write(fresh)


def _write(file: Path, data: bytes) -> None:
    """Put data into a file, whole or not at all; a file that holds them is left alone."""
    if file.exists() and file.read_bytes() == data:
        return
    fresh = file.with_name(f".{file.name}.new")
    fresh.write_bytes(data)
    fresh.replace(file)
