"""Housekeeping: remove what nobody needs any more. Every step is idempotent and safe to cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from platforms.artifacts.base import StoreError
from platforms.base import PlatformError
from scheduler.core.window import DAY, HOUR
from scheduler.service.bills import CHECK_EVERY_SECONDS, recheck
from scheduler.service.quota_books import READ_EVERY_SECONDS, audit
from scheduler.service.retention import PORTION, retain
from scheduler.store import checkpoints, due, events, outbox, runs

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.service.ports import Ports

KEEP_SESSIONS_SECONDS = 7 * DAY
_ROWS = 5_000  # pruned in one pass
_UPLOAD_SECONDS = 7 * DAY  # real time in which a writer that was cut off may go on


def sweep_sessions(ports: Ports, now: int) -> None:
    """Let platforms forget sessions that ended more than a week ago.

    What may go is named, not what must stay: whoever stood still since, or works on a restored backup, knows nothing of
    sessions launched meanwhile, and would have them forgotten before they are settled.
    """
    with ports.database.read() as tx:
        over = runs.ended_before(tx, now - KEEP_SESSIONS_SECONDS)
    for name, platform in sorted(ports.platforms.items()):
        try:
            removed = platform.sweep(over, now)
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
        known = runs.keys_since(tx, now - KEEP_SESSIONS_SECONDS)
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


def prune_rows(ports: Ports, now: int) -> None:
    """Remove what the database need not remember: old events, the words of old letters, checkpoints long gone."""
    rule = ports.policy.retention
    with ports.write() as tx:
        removed = {
            "events": events.prune(tx, now - rule.events_seconds, _ROWS),
            "letters": outbox.empty(tx, now - rule.letters_seconds, _ROWS),
            "checkpoints": checkpoints.forget(tx, now - rule.events_seconds, _ROWS),
        }
    if any(removed.values()):
        ports.log.info("prune.done", **removed)


def sweep_store(ports: Ports, now: int) -> None:
    """Remove from the artifact store what writers that were killed left, and reports of sessions long over."""
    figures = ports.clock.payload_clock()
    real = figures["origin"] + (now - figures["epoch"]) / figures["scale"]
    before = now - ports.policy.retention.reports_seconds
    sweeps: dict[str, Callable[[], int]] = {
        "leftovers": lambda: ports.artifacts.sweep(real - _UPLOAD_SECONDS),
        "reports": lambda: _sweep_reports(ports, before),
    }
    for what, sweep in sweeps.items():
        try:
            removed = sweep()
        except StoreError as error:
            ports.log.warning("sweep.store_failed", what=what, why=str(error), next="tried again tomorrow")
            continue
        if removed:
            ports.log.info("sweep.store_done", what=what, objects=removed)


def _sweep_reports(ports: Ports, before: int) -> int:
    """Delete heartbeats, results and stop flags of sessions that ended before ``before``; return how many objects.

    What no run of ours explains is left alone: it may be another scheduler's.
    """
    keys = list(ports.artifacts.keys("runs/"))
    with ports.database.read() as tx:
        over = runs.ended_before(tx, before)
    doomed = [key for key in keys if key.split("/")[1] in over][:PORTION]
    for key in doomed:
        ports.artifacts.delete(key)
    return len(doomed)


_TASKS = {
    "retention": (retain, 6 * HOUR),
    "prune-rows": (prune_rows, DAY),
    "sweep-store": (sweep_store, DAY),
    "find-strays": (find_strays, HOUR),
    "sweep-sessions": (sweep_sessions, DAY),
    "audit-quotas": (audit, READ_EVERY_SECONDS),
    "recheck-bills": (recheck, CHECK_EVERY_SECONDS),
}


def run_due(ports: Ports, now: int) -> None:
    """Run what the ``due`` table says is due; down time makes a task late, never lost and never doubled."""
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name, (task, every_seconds) in _TASKS.items():
        # No further ahead than its interval: a clock that was years ahead for a moment puts nothing off for years.
        if now < planned.get(name, 0) <= now + every_seconds:
            continue
        task(ports, now)
        with ports.write() as tx:
            due.set_due(tx, name, now + every_seconds)
