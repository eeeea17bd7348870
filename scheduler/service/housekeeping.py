"""Housekeeping: remove what nobody needs any more. Every step is idempotent and safe to cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platforms.base import PlatformError
from scheduler.core.window import DAY, HOUR
from scheduler.service.quota_books import READ_EVERY_SECONDS, audit
from scheduler.store import due, events, runs

if TYPE_CHECKING:
    from scheduler.service.ports import Ports

KEEP_SESSIONS_SECONDS = 7 * DAY


def sweep_sessions(ports: Ports, now: int) -> None:
    """Let platforms forget sessions that ended more than a week ago."""
    with ports.database.read() as tx:
        keep = [run.key for run in runs.since(tx, now - KEEP_SESSIONS_SECONDS)]
    for name, platform in sorted(ports.platforms.items()):
        try:
            removed = platform.sweep(keep, now)
        except PlatformError as error:
            ports.log.warning("sweep.failed", pool=name, why=str(error))
            continue
        if removed:
            ports.log.info("sweep.done", pool=name, sessions=len(removed))


def find_strays(ports: Ports, now: int) -> None:
    """Look for live sessions that are ours and that no run names, and raise the alarm: nobody would settle them.

    They are not ended: another scheduler on the same account may own them.
    """
    with ports.database.read() as tx:
        known = {run.key for run in (*runs.since(tx, now - KEEP_SESSIONS_SECONDS), *runs.live(tx))}
    for name, platform in sorted(ports.platforms.items()):
        if not platform.capabilities.finds_strays:
            continue
        try:
            strays = platform.strays(known, now)
        except PlatformError as error:
            ports.log.warning("strays.unknown", pool=name, why=str(error))
            continue
        for stray in strays:
            ports.log.error(
                "session.stray", pool=name, run=stray.key, remote_id=stray.remote_id, next="end it, or find its owner"
            )
            with ports.write() as tx:
                events.append(tx, "session.stray", stray.key, now, pool=name, remote_id=stray.remote_id)


_TASKS = {
    "find-strays": (find_strays, HOUR),
    "sweep-sessions": (sweep_sessions, DAY),
    "audit-quotas": (audit, READ_EVERY_SECONDS),
}


def run_due(ports: Ports, now: int) -> None:
    """Run what the ``due`` table says is due; down time makes a task late, never lost and never doubled."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name, (task, every_seconds) in _TASKS.items():
        if planned.get(name, 0) > now:
            continue
        task(ports, now)
        with ports.write() as tx:
            due.set_due(tx, name, now + every_seconds)
