"""Pools as they are now: open or closed, and how many sessions run there."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from sqlalchemy import Connection

from scheduler.core.pool import Pool
from scheduler.core.run import Run
from scheduler.store import limits, runs


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool now; ``closed_until`` is null for an open one, and for a closure without an end.

    ``gpu_memory_bytes`` is the most that a live session has used of a GPU, and ``gpu_busy`` the
    mean share of the time in which GPUs of live sessions work; null where none has reported it.
    """

    name: str
    state: Literal["open", "closed", "outside hours"]
    platform: str
    accelerator: str
    sessions_live: int
    sessions_max: int
    closed_until: int | None
    closed_why: str
    gpu_memory_bytes: int | None = None
    gpu_busy: float | None = None


def pools_now(tx: Connection, pools: Mapping[str, Pool], live: Iterable[Run], now: int) -> list[PoolNow]:
    """Return the pools, by name; ``live`` are the runs that go on."""
    closures, paused = limits.closures(tx), limits.paused(tx)
    live = list(live)
    running = Counter(run.pool for run in live)
    peaks: dict[str, int] = defaultdict(int)
    busy: dict[str, list[float]] = defaultdict(list)
    pool_of = {run.key: run.pool for run in live}
    for (key, _), report in runs.heartbeats(tx, list(pool_of)).items():
        peaks[pool_of[key]] = max(peaks[pool_of[key]], report.gpu_memory_bytes or 0)
        if report.gpu_busy is not None:
            busy[pool_of[key]].append(report.gpu_busy)
    found = []
    for name, pool in sorted(pools.items()):
        until, why = closures.get(name, (0, ""))
        if paused is not None:
            until, why = None, paused.why
        closed = until is None or until > now
        found.append(
            PoolNow(
                name=name,
                state="closed" if closed else "open" if pool.open_windows(now, now + 1) else "outside hours",
                platform=pool.platform,
                accelerator=pool.accelerator,
                sessions_live=running[name],
                sessions_max=pool.sessions_max,
                closed_until=until if closed else None,
                closed_why=why if closed else "",
                gpu_memory_bytes=peaks[name] or None,
                gpu_busy=fmean(busy[name]) if busy[name] else None,
            )
        )
    return found
