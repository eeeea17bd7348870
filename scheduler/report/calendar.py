"""The sessions that run and are planned, as a calendar that other programs show (RFC 5545). Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.report.timeline import Session

_LINE_BYTES = 75


def calendar_of(sessions: Sequence[Session], made_at: int) -> str:
    """Return a calendar of sessions that run or are to come; instants are UTC, lines are folded and end as they must.

    A planned session is known by its pool, jobs and start, so that one that moves is another appointment.
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
    shown = "".join(c if c.isprintable() else " " for c in text)
    return shown.replace("\\", "\\\\").replace(";", "\\;").replace(",", "\\,")


def _folded(line: str) -> str:
    """Return a line in pieces of at most 75 bytes, none of which splits a character."""
    pieces: list[str] = []
    piece = ""
    for character in line:
        if len((piece + character).encode()) > _LINE_BYTES - bool(pieces):
            pieces.append(piece)
            piece = ""
        piece += character
    return "\r\n ".join([*pieces, piece])
