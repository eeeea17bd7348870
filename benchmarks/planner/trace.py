"""Traces: public job logs replayed on our pools. CSV with submit seconds, duration seconds, GPUs, deadline or empty."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.planner.cases import EPOCH, MIX, make_pools
from jobs.spec import Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from scheduler.core.window import HOUR, WEEK

# The work of a trace is scaled to this many times the hours the pools offer in a week.
LOAD = 2.0
OFFERED_HOURS = 2_510


class BadTrace(ValueError):
    """A line of a trace cannot be read; ``line`` counts from one."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(
            f"{path}, line {line}: {why}; expected: submit seconds,duration seconds,GPUs,deadline or empty"
        )
        self.line = line


def read_trace(path: Path) -> Snapshot:
    """Return the first thousand jobs of ``path``, submits spread over a week, work scaled; raises BadTrace."""
    rows: list[tuple[float, float, float, float | None]] = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, row in enumerate(csv.reader(file), 1):
            if not row or (number == 1 and not row[0].strip().replace(".", "", 1).isdigit()):
                continue
            try:
                submit, duration, devices = float(row[0]), float(row[1]), float(row[2])
                deadline = float(row[3]) if len(row) > 3 and row[3].strip() else None
            except (ValueError, IndexError) as error:
                raise BadTrace(path, number, str(error)) from error
            if duration > 0:
                rows.append((submit, duration, max(1.0, devices), deadline))
    rows = sorted(rows)[:1_000]
    if not rows:
        raise BadTrace(path, 1, "no job in it")
    pools = make_pools(MIX)
    first, last = rows[0][0], rows[-1][0]
    stretch = WEEK * 0.8 / max(1.0, last - first)
    scale = LOAD * OFFERED_HOURS * HOUR / sum(duration * devices for _, duration, devices, _ in rows)
    jobs = []
    for number, (submit, duration, devices, deadline) in enumerate(rows):
        work = max(HOUR // 4, int(duration * devices * scale))
        release = EPOCH + int((submit - first) * stretch)
        due = None if deadline is None else EPOCH + int((deadline - first) * stretch)
        jobs.append(
            JobView(
                name=f"trace-{number:04d}",
                weight=1.0,
                target_step=work,
                done_step=0,
                needs=Needs(),
                rates={pool.name: Rate(1.0) for pool in pools},
                setup_seconds=dict.fromkeys([pool.name for pool in pools], 720),
                checkpoint_seconds=dict.fromkeys([pool.name for pool in pools], 0),
                not_before=release,
                deadline=due,
                position=number,
                reference_rate=1.0,
            )
        )
    return Snapshot(EPOCH, tuple(jobs), tuple(PoolView(pool) for pool in pools), WEEK)
