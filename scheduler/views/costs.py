"""Costs: spent and planned hours and money by job, pool and ISO week."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.nouns.window import Calendar, Window
from scheduler.core.run import lane_seconds
from scheduler.store import ledger, plans, prices, runs

OTHERS = ""
"""The job of hours that the platform billed and that no run of ours explains."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a job on a pool in the week from ``week`` (UTC seconds): seconds of sessions and micro-dollars.

    Jobs that share a session share its cost by their time on its devices, so that the rows add up to the bill.
    """

    week: int
    pool: str
    job: str
    seconds: int
    microdollars: int
    planned_seconds: int
    planned_microdollars: int


def costs(tx: Connection, pools: Mapping[str, Pool], since: int, zone: str, now: int) -> list[Cost]:
    """Return the costs of all weeks from the week of ``since`` to the end of the newest plan, oldest first."""
    calendar = Calendar("week", zone)
    first = calendar.window_at(since).start
    spent: dict[tuple[int, str, str], list[float]] = defaultdict(lambda: [0, 0, 0, 0])
    lanes = {run.key: run.lanes for run in runs.since(tx, first)}
    for pool, charges in ledger.charges(tx, first).items():
        for charge in charges:
            for week in _weeks(calendar, max(charge.start, first), charge.end):
                run_lanes = lanes.get(charge.run or "", ())
                used = lane_seconds(run_lanes, max(charge.start, week.start), min(charge.end, week.end))
                shares = _shares([(lane.job, used[lane.index]) for lane in run_lanes]) or {OTHERS: 1.0}
                for job, share in shares.items():
                    row = spent[week.start, pool, job]
                    row[0] += charge.within(week.start, week.end) * share
                    row[1] += charge.cost_within(week.start, week.end) * share
    plan, priced_pools = plans.newest(tx), prices.priced(tx, pools)
    for placement in plan.placements if plan else ():
        price = priced_pools[placement.pool].price_microdollars_per_hour if placement.pool in priced_pools else 0
        for week in _weeks(calendar, max(placement.start, now), placement.end):
            seconds = min(placement.end, week.end) - max(placement.start, now, week.start)
            for job, share in _shares([(lane.job, lane.devices) for lane in placement.lanes]).items():
                row = spent[week.start, placement.pool, job]
                row[2] += seconds * share
                row[3] += seconds * share * price / 3_600
    return [Cost(*at, *map(round, row)) for at, row in sorted(spent.items()) if any(map(round, row))]


def _weeks(calendar: Calendar, start: int, end: int) -> Iterator[Window]:
    while start < end:
        week = calendar.window_at(start)
        yield week
        start = week.end


def _shares(devices: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Return the share (0 to 1) of each job in a session, from (job, devices or seconds on devices) of its lanes."""
    total = sum(count for _, count in devices)
    result: dict[str, float] = defaultdict(float)
    for job, count in devices:
        result[job] += count / total if total else 1 / len(devices)
    return result
