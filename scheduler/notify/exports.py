"""Exports: files for other programs. The daemon keeps those up to date that are set in the section ``[export]``.

``calendar`` is a file with running and planned sessions. ``series`` is a folder with the reported metrics of each job,
as CSV (rewritten) and as a TensorBoard event file (append-only).
"""

import csv
import io
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from config.settings import ExportSettings
from jobs.nouns.window import DAY, Window
from jobs.payload.bounded_file import read_bounded
from jobs.payload.whole_file import write_whole
from scheduler.report.timeline import TimelineSession, timeline_of
from scheduler.service.outside.calls import fail
from scheduler.service.outside.ports import Ports
from scheduler.store import jobs, plans, runs, series
from scheduler.store.series import Point

_DROPPED = "the daemon no longer sends this. Set export.series, and run examples/trackers/send.py on that folder"
_AHEAD_SECONDS = 28 * DAY
_COLUMNS = ("attempt", "step", "at", *series.FIGURES)
_LINE_BYTES, _FILE_BYTES_MAX = 75, 1 << 30
_POLYNOMIAL, _MASK = 0x82F63B78, 0xA282EAD8
_FLOAT_MAX = 3.4028234663852886e38
_HEAD, _FOOT = struct.Struct("<QI"), struct.Struct("<I")
_WALL_TIME, _STEP, _VERSION, _SUMMARY, _VALUE, _TAG, _NUMBER = 0x09, 0x10, 0x1A, 0x2A, 0x0A, 0x0A, 0x15


def export(ports: Ports, wanted: ExportSettings, now: int) -> None:
    """Write the exports that are set in ``wanted``. A failed export is reported as failed work and retried."""
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
    """Return the calendar of running and planned sessions."""
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
    """Return the reported metrics as CSV with a header, times in UTC."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for point in points:
        at = datetime.fromtimestamp(point.at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        figures = point.figures()
        cells = (repr(figures[name]) if name in figures else "" for name in series.FIGURES)
        writer.writerow((point.attempt, point.step, at, *cells))
    return text.getvalue()


def add_events(file: Path, points: Sequence[Point]) -> None:
    """Append metrics that are newer than the last complete record of an event file; cut an incomplete record."""
    existing = read_bounded(file, _FILE_BYTES_MAX) if file.exists() else b""
    last, end = newest(existing)
    fresh = b"" if last is not None else first_record(points[0].at - 1)
    for point in sorted(points, key=lambda point: (point.at, point.attempt, point.step)):
        figures = point.figures()
        if figures and (last is None or point.at > last):
            fresh += record(point.at, point.step, figures)
    if fresh or end < len(existing):
        with file.open("r+b" if existing else "wb") as stream:
            stream.truncate(end)
            stream.seek(end)
            stream.write(fresh)


def _write(file: Path, data: bytes) -> None:
    """Write a file atomically; a file with the same content is not touched."""
    if not file.exists() or read_bounded(file, _FILE_BYTES_MAX) != data:
        write_whole(file, data)


# Running and planned sessions as an iCalendar file (RFC 5545). Pure functions.
def calendar_of(sessions: Sequence[TimelineSession], made_at: int) -> str:
    """Return an iCalendar file of sessions; instants are UTC, lines are folded as RFC 5545 requires.

    The UID of a planned session consists of pool, jobs and start, so a session that moves is a new appointment.
    """
    lines = [
        "BEGIN:VCALENDAR",
        "VERSION:2.0",
        "PRODID:-//uff-scheduler//sessions//EN",
        "X-WR-CALNAME:Training sessions",
    ]
    for session in sorted(sessions, key=lambda one: (one.start, one.pool, one.slot)):
        if session.phase not in {"running", "planned"}:
            continue
        jobs = ", ".join(lane.job for lane in session.lanes)
        name = session.key or f"{session.pool}-{'-'.join(lane.job for lane in session.lanes)}-{session.start}"
        lines += [
            "BEGIN:VEVENT",
            f"UID:{_escaped(name)}@uff-scheduler",
            f"DTSTAMP:{_instant(made_at)}",
            f"DTSTART:{_instant(session.start)}",
            f"DTEND:{_instant(session.ends)}",
            f"SUMMARY:{_escaped(f'{jobs} on {session.pool}')}",
            f"STATUS:{'CONFIRMED' if session.phase == 'running' else 'TENTATIVE'}",
            "TRANSP:TRANSPARENT",
            "END:VEVENT",
        ]
    return "".join(f"{_folded(line)}\r\n" for line in [*lines, "END:VCALENDAR"])


def _instant(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")


def _escaped(text: str) -> str:
    listing = "".join(c if c.isprintable() else " " for c in text)
    return listing.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,")


def _folded(line: str) -> str:
    """Return a line folded to at most 75 bytes, without splitting a character."""
    pieces: list[str] = []
    piece = ""
    for character in line:
        if len((piece + character).encode()) > _LINE_BYTES - bool(pieces):
            pieces.append(piece)
            piece = ""
        piece += character
    return "\r\n ".join([*pieces, piece])


# TensorBoard's event files, written without the library. Pure functions.
#
# A record is the length of its data (8 bytes), the masked CRC-32C of the length, the data, and the masked CRC-32C of
# the data. The data are the protobuf message ``Event``: wall time (field 1, double), step (field 2, varint), and either
# the file's version (field 3) or a summary (field 5), whose values have a tag (field 1) and a number (field 2, float).
def _table() -> tuple[int, ...]:
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        rows.append(crc)
    return tuple(rows)


_TABLE = _table()


def first_record(at: float) -> bytes:
    """Return the first record of an event file, which contains the version of the format."""
    version = b"brain.Event:2"
    return _record(_wall_time(at) + bytes([_VERSION, len(version)]) + version)


def record(at: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the record of the values reported at an instant (UTC seconds) for a step; overflows become infinite."""
    summary = b"".join(
        _field(_VALUE, _field(_TAG, tag.encode()) + bytes([_NUMBER]) + struct.pack("<f", _float(number)))
        for tag, number in values.items()
    )
    return _record(_wall_time(at) + bytes([_STEP]) + _varint(step) + _field(_SUMMARY, summary))


def newest(data: bytes) -> tuple[float | None, int]:
    """Return the wall time and the end offset of the last complete record in ``data``; (None, 0) without one."""
    at, end = None, 0
    while end + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, end)
        begin = end + _HEAD.size
        after = begin + length + _FOOT.size
        body = data[begin : begin + length]
        if crc != _masked(data[end : end + 8]) or after > len(data) or length < 9 or body[0] != _WALL_TIME:
            break
        if _FOOT.unpack_from(data, begin + length)[0] != _masked(body):
            break
        at, end = struct.unpack_from("<d", body, 1)[0], after
    return at, end


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _FOOT.pack(_masked(length)) + data + _FOOT.pack(_masked(data))


def _wall_time(at: float) -> bytes:
    return bytes([_WALL_TIME]) + struct.pack("<d", at)


def _field(key: int, data: bytes) -> bytes:
    return bytes([key]) + _varint(len(data)) + data


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _float(number: float) -> float:
    return math.copysign(math.inf, number) if math.isfinite(number) and abs(number) > _FLOAT_MAX else number
