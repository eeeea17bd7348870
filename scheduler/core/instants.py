"""Instants: when the passing of time alone lets something start that could not start before."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from scheduler.core.quota import RollingQuota, rolling_edges, windows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.core.snapshot import PoolView, Snapshot


def next_change(snapshot: Snapshot) -> int | None:
    """Return the first instant after ``now`` at which a waiting job is released, or a pool opens or has room again.

    In UTC seconds; None when there is none before the horizon. A plan is made then, though nothing happened.
    """
    now, until = snapshot.now, snapshot.now + snapshot.horizon_seconds
    waiting = [view for view in snapshot.jobs if not view.running and view.blocked is None]
    if not waiting:
        return None
    releases = (instant for view in waiting for instant in (view.retry_at, view.not_before) if instant is not None)
    openings = chain.from_iterable(_openings(view, now, until) for view in snapshot.pools)
    return min((instant for instant in chain(releases, openings) if now < instant <= until), default=None)


def _openings(view: PoolView, now: int, until: int) -> Iterator[int]:
    if view.closed_until is not None:
        yield view.closed_until
    yield from (window.start for window in view.pool.open_windows(now, until))
    for quota in view.pool.quotas:
        if isinstance(quota, RollingQuota):
            yield from rolling_edges(view.charges, quota.span_seconds)
        else:
            yield from (window.start for window in windows(quota, view.charges, now, until))
