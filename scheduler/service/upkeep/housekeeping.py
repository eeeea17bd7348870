"""Housekeeping: remove data that nothing needs any more. Every step is idempotent and safe to cut short."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jobs.nouns.window import DAY, HOUR
from jobs.payload.store.tree import sweep_trees
from platforms.artifacts.base import StoreError
from platforms.base import Platform, PlatformError
from scheduler.service.faults.isolation import why
from scheduler.service.outside import border
from scheduler.service.outside.calls import fail
from scheduler.service.outside.ports import Ports
from scheduler.service.quota.audit import CHECK_EVERY_SECONDS, READ_EVERY_SECONDS, audit, recheck
from scheduler.service.upkeep.retention import PORTION, retain, retain_trees
from scheduler.store import checkpoints, due, events, outbox, runs, watched
from scheduler.store.errors import StoreFailure

KEEP_SESSIONS_SECONDS = 7 * DAY
_ROWS = 5_000  # pruned in one pass
_UPLOAD_SECONDS = 7 * DAY  # real time in which a writer that was cut off may go on


def sweep_sessions(ports: Ports, now: int) -> None:
    """Let platforms forget sessions that ended more than a week ago.

    The sessions to forget are named, not those to keep: a daemon that was suspended, or that works on a restored
    backup, does not know the sessions launched meanwhile, and they would be forgotten before they are settled.
    """
    with ports.database.read() as tx:
        # What is still watched was given up, or lives on: what it leaves may have to come home yet.
        over = runs.ended_before(tx, now - KEEP_SESSIONS_SECONDS) - watched.keys(tx)

    def sweep(pool: str, platform: Platform) -> None:
        try:
            removed = border.call(pool, "sweep", partial(platform.sweep, over, now))
        except PlatformError as error:
            ports.log.warning("sweep.failed", pool=pool, why=str(error))
            return
        if removed:
            ports.log.info("sweep.done", pool=pool, sessions=len(removed))

    _ask_each(ports, "sweep", sweep)


def find_orphans(ports: Ports, now: int) -> None:
    """Look for live sessions that are ours and that no run names, and raise the alarm: no cycle would reconcile them.

    They are not ended: another scheduler on the same account may own them.
    """
    with ports.database.read() as tx:
        our_keys = runs.keys_since(tx, now - KEEP_SESSIONS_SECONDS)

    def look(pool: str, platform: Platform) -> None:
        if not platform.capabilities.finds_orphans:
            return
        try:
            orphans = border.orphans(ports, pool, our_keys)
        except PlatformError as error:
            ports.log.warning("orphans.unknown", pool=pool, why=str(error))
            return
        for orphan in orphans:
            with ports.write() as tx:
                if orphan.key in runs.keys_since(tx, now - KEEP_SESSIONS_SECONDS):
                    continue  # launched while the platform was asked
                events.append(tx, "session.orphan", orphan.key, now, pool=pool, remote_id=orphan.remote_id)
            ports.log.error(
                "session.orphan",
                pool=pool,
                run=orphan.key,
                remote_id=orphan.remote_id,
                next="end it, or find its owner",
            )

    _ask_each(ports, "orphans", look)


def _ask_each(ports: Ports, kind: str, ask: Callable[[str, Platform], None]) -> None:
    """Ask every platform; one that takes long goes on by itself while everybody else is looked after."""
    ports.calls.gather(kind, {pool: partial(ask, pool, platform) for pool, platform in sorted(ports.platforms.items())})


def prune_rows(ports: Ports, now: int) -> None:
    """Remove what the database need not remember: old events, the words of old messages, checkpoints long gone."""
    rule = ports.policy.retention
    with ports.write() as tx:
        removed = {
            "events": events.prune(tx, now - rule.events_seconds, _ROWS),
            "letters": outbox.empty(tx, now - rule.messages_seconds, _ROWS),
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
        "inputs": lambda: len(sweep_trees(ports.scratch, real - _UPLOAD_SECONDS)),
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
    "tree-retention": (retain_trees, 6 * HOUR),
    "prune-rows": (prune_rows, DAY),
    "sweep-store": (sweep_store, DAY),
    "find-orphans": (find_orphans, HOUR),
    "sweep-sessions": (sweep_sessions, DAY),
    "audit-quotas": (audit, READ_EVERY_SECONDS),
    "recheck-bills": (recheck, CHECK_EVERY_SECONDS),
}


def run_due(ports: Ports, now: int) -> None:
    """Run what the ``due`` table says is due; down time makes a task late, never lost and never doubled.

    One that takes long goes on by itself while cycles and the other duties do.
    """
    ports.calls.begin()
    with ports.database.read() as tx:
        planned = due.next_due(tx)
    for name, (task, every_seconds) in _TASKS.items():
        # No further ahead than its interval: a clock that was years ahead for a moment puts nothing off for years.
        if now < planned.get(name, 0) <= now + every_seconds:
            continue
        ports.calls.gather("duty", {name: partial(_do, ports, name, task, now, every_seconds)})


def _do(ports: Ports, name: str, task: Callable[[Ports, int], None], now: int, every_seconds: int) -> None:
    try:
        task(ports, now)
    except (StoreFailure, OSError):
        raise
    except Exception as error:  # one duty that fails keeps no other from being done
        ports.log.exception("housekeeping.failed", duty=name, next="tried again with the next look")
        fail(why(error))
        return
    with ports.write() as tx:
        due.set_due(tx, name, now + every_seconds)
