"""Traces: public job logs replayed on our pools.

CSV with submit seconds, duration seconds, GPUs, deadline or empty, and a weight, which may be left out and is one then.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from jobs.nouns.window import HOUR, WEEK
from jobs.spec import Needs
from scheduler.core.snapshot import JobView, PoolView, Rate, Snapshot
from tests.lab.planner.cases import EPOCH, MIX, make_pools

# The work of a trace is scaled to this many times the hours the pools offer in a week.
LOAD = 2.0
# What a pool of each kind offers in a week; the fifty together 2,510 hours.
OFFERED_HOURS_OF = {"kaggle": 30, "sagemaker": 28, "local": 168, "slurm": 100}
JOBS_MAX = 1_000
SETUP_SECONDS = 720
FORM = "submit seconds,duration seconds,GPUs,deadline or empty,weight"


class BadTrace(ValueError):
    """A line of a trace cannot be read; ``line`` counts from one."""

    def __init__(self, path: Path, line: int, why: str) -> None:
        super().__init__(f"{path}, line {line}: {why}; expected: {FORM}")
        self.line = line


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One job of a trace, unchanged: instants and durations in the trace's own seconds."""

    submit: float
    duration: float
    devices: float
    slack: float | None  # time from submit to deadline over the duration
    weight: float = 1.0


def read_trace(path: Path, number: int = 0, jobs: int = JOBS_MAX) -> tuple[Snapshot, int]:
    """Return slice ``number`` of so many jobs of ``path``, as `on_our_pools` makes it, and how many the file holds.

    Raises BadTrace, OSError.
    """
    rows = read_rows(path)
    taken = rows[number * jobs : (number + 1) * jobs]
    if not taken:
        raise BadTrace(path, len(rows), f"{len(rows)} jobs have no slice {number} of {jobs}")
    return on_our_pools(taken, jobs), len(rows)


def on_our_pools(taken: Sequence[Row], size: int = JOBS_MAX) -> Snapshot:
    """Return ``taken`` as jobs on fifty pools, or on fewer in proportion for slices of a smaller ``size``.

    Submits are spread over four fifths of a week. The work, durations times GPUs, is scaled to twice what the pools
    offer. A deadline keeps its distance from the submit in terms of the job's own time.
    """
    first, last = taken[0].submit, taken[-1].submit
    stretch = WEEK * 0.8 / max(1.0, last - first)
    share = min(1.0, size / JOBS_MAX)
    mix = tuple((pool, max(1, round(count * share))) for pool, count in MIX)
    offered = sum(OFFERED_HOURS_OF[pool.name] * count for pool, count in mix)
    scale = LOAD * offered * HOUR / sum(row.duration * row.devices for row in taken)
    pools = make_pools(mix)
    names = [pool.name for pool in pools]
    jobs = []
    for number, row in enumerate(taken):
        work = max(HOUR // 4, int(row.duration * row.devices * scale))
        release = EPOCH + int((row.submit - first) * stretch)
        jobs.append(
            JobView(
                name=f"trace-{number:04d}",
                weight=row.weight,
                target_step=work,
                done_step=0,
                needs=Needs(),
                rates=dict.fromkeys(names, Rate(1.0)),
                setup_seconds=dict.fromkeys(names, SETUP_SECONDS),
                checkpoint_seconds=dict.fromkeys(names, 0),
                not_before=release,
                deadline=None if row.slack is None else release + SETUP_SECONDS + int(row.slack * work),
                position=number,
                reference_rate=1.0,
            )
        )
    return Snapshot(EPOCH, tuple(jobs), tuple(PoolView(pool) for pool in pools), WEEK)


def read_rows(path: Path) -> list[Row]:
    """Return the jobs by submit; a first line of words is a header, and jobs that never ran are left out.

    Raises BadTrace with the line, OSError.
    """
    rows: list[Row] = []
    number = 0
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.reader(file)
            for cells in lines:
                number = lines.line_num
                if not any(cell.strip() for cell in cells) or (number == 1 and _is_header(cells)):
                    continue
                row = _row(path, number, cells)
                if row.duration > 0:
                    rows.append(row)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(path, number + 1, f"no text in UTF-8 ({error})") from error
    if not rows:
        raise BadTrace(path, max(1, number), "no job in it")
    return sorted(rows, key=lambda row: (row.submit, row.duration, row.devices, row.slack or 0.0))


def _is_header(cells: list[str]) -> bool:
    """Tell whether not one cell is a number."""
    for cell in cells:
        try:
            float(cell)
        except ValueError:
            continue
        return False
    return True


def _row(path: Path, line: int, cells: list[str]) -> Row:
    if len(cells) not in {3, 4, 5}:
        raise BadTrace(path, line, f"{len(cells)} columns")
    submit = _number(path, line, "submit", cells[0])
    duration = _number(path, line, "duration", cells[1])
    devices = _number(path, line, "GPUs", cells[2])
    if not devices > 0:
        raise BadTrace(path, line, f"{devices:g} GPUs")
    slack = None
    if len(cells) > 3 and cells[3].strip():
        deadline = _number(path, line, "deadline", cells[3])
        if deadline <= submit:
            raise BadTrace(path, line, f"deadline {deadline:g} is not after submit {submit:g}")
        slack = (deadline - submit) / duration if duration > 0 else None
    weight = _number(path, line, "weight", cells[4]) if len(cells) == 5 and cells[4].strip() else 1.0
    if not weight > 0:
        raise BadTrace(path, line, f"weight {weight:g}")
    return Row(submit, duration, devices, slack, weight)


def _number(path: Path, line: int, what: str, cell: str) -> float:
    try:
        found = float(cell)
    except ValueError:
        raise BadTrace(path, line, f"{what} {cell.strip()!r} is no number") from None
    if not isfinite(found) or found < 0:
        raise BadTrace(path, line, f"{what} {cell.strip()} is not a number from zero on")
    return found
