"""Shares: what jobs that have device hours together shall have of them, and what each had so far."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from scheduler.core.snapshot import HourShare
from scheduler.store import ledger
from scheduler.store.jobs import JobRecord


def hour_shares(tx: Connection, records: Iterable[JobRecord]) -> dict[str, HourShare]:
    """Return by name the share of every job that has one. Counted from when the last of its group was added.

    Who shares with a job that is not in the queue any more has none.
    """
    known = {record.spec.name: record for record in records}
    groups: dict[str, list[JobRecord]] = {}
    for record in known.values():
        share = record.spec.share
        if share is not None and share.partner in known and known[share.partner].spec.share is None:
            groups.setdefault(share.partner, [known[share.partner]]).append(record)
    found: dict[str, HourShare] = {}
    for name, members in groups.items():
        since = max(record.created_at for record in members)
        seconds = ledger.device_seconds(tx, [record.spec.name for record in members], since)
        parts = {one.spec.name: one.spec.share.percent / 100 for one in members if one.spec.share is not None}
        parts[name] = max(0.0, 1 - sum(parts.values()))
        total = sum(seconds.values())
        found |= {member: HourShare(name, part, seconds[member], total) for member, part in parts.items() if part > 0}
    return found
