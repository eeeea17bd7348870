"""The linear programme: the charged lane-seconds per (job, market, span) with the highest value.

Its optimum is an upper bound of every plan: shorten each session l to useful(l) / eff, with eff = useful(L) / L at the
longest session L of the job there, and move it to the session's start. Work is then never later than in the plan and
the discount never rises, so the plan maps to a feasible point of at least its value. The duals are prices of hours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from scheduler.planner.lp.grid import Grid
from scheduler.planner.model.case import Case, JobOffer
from scheduler.planner.model.value import LATE_FACTOR

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Programme:
    """Maximise cost x seconds, matrix x seconds <= upper, seconds >= 0; the matrix is stored by columns.

    A column is (job, market, span, devices); ``steps`` are per charged second. The first rows are the grid's limits.
    """

    job: Ints
    market: Ints
    span: Ints
    devices: Ints
    steps: Floats
    cost: Floats
    starts: Ints
    rows: Ints
    values: Floats
    upper: Floats

    def same_shape(self, other: Programme) -> bool:
        """Return whether only figures differ, so that the other's basis is a good start."""
        import numpy as np

        return (
            len(self.upper) == len(other.upper)
            and np.array_equal(self.job, other.job)
            and np.array_equal(self.market, other.market)
            and np.array_equal(self.span, other.span)
            and np.array_equal(self.starts, other.starts)
            and np.array_equal(self.rows, other.rows)
        )


NO_DEADLINE = 1 << 60
# A job with more than this multiple of the median importance is kept out of the programme, for numerical reasons.
PRICELESS = 1e9
# Up to this many jobs the set-up of a job's last, shorter session is counted too; the bound is 0.25 % tighter.
FINE_JOBS_MAX = 300


def build(case: Case, grid: Grid, jobs: Sequence[int]) -> Programme:
    """Return the programme of ``jobs`` (case indices).

    Rows, in order: the grid's limits; work left by job; one session at a time by job and span; the part of a span
    before a job's deadline; gates; whole sessions.
    """
    builder = _Builder(case, grid, jobs)
    builder.limit_markets()
    builder.limit_work()
    builder.limit_time()
    builder.order_gates()
    builder.limit_whole_sessions()
    return builder.programme()


class _Builder:
    """The columns of a programme, and the rows added so far."""

    def __init__(self, case: Case, grid: Grid, jobs: Sequence[int]) -> None:
        import numpy as np

        self.np: Any = np
        self.case, self.grid, self.jobs = case, grid, jobs
        self.edges = np.asarray(grid.edges, dtype=np.int64)
        self.spans = len(self.edges) - 1
        self.remaining = np.asarray([remaining_steps(case, job) for job in jobs], dtype=np.float64)
        starts = earliest_starts(case)
        self.release = np.asarray([starts[job] for job in jobs], dtype=np.int64)
        self.upper: list[Any] = []
        self.row = 0
        self._entries: list[tuple[Any, Any, Any]] = []
        self._whole: dict[tuple[int, int, int, int], int] = {}
        self._whole_steps: list[float] = []
        self._make_columns(np.asarray(list(self._options()), dtype=np.float64).reshape(-1, 6))

    def _options(self) -> Iterator[tuple[float, ...]]:
        """Yield (local job, market, lanes, steps per second, value of a step, row among whole sessions or -1)."""
        local = {job: number for number, job in enumerate(self.jobs)}
        for number, market in enumerate(self.grid.markets):
            for job, lanes, devices, rate, most, worth in _modes(self.case, market.group, market.devices, self.jobs):
                row = -1
                if most is not None:
                    row = self._whole.setdefault((market.group, job, lanes, devices), len(self._whole))
                    if row == len(self._whole_steps):
                        self._whole_steps.append(most)
                yield local[job], number, lanes, rate, worth, row

    def _make_columns(self, options: Any) -> None:
        """Make a column for each option and span, and two (before, after) for a span with the job's deadline."""
        np, edges = self.np, self.edges
        job, market = options[:, 0].astype(np.int64), options[:, 1].astype(np.int64)
        capacity = np.zeros((len(self.grid.markets), self.spans))
        for limit in self.grid.limits:
            if limit.last == limit.first + 1:
                capacity[limit.market, limit.first] = max(capacity[limit.market, limit.first], limit.lane_seconds)
        usable = (edges[1:][None, :] > self.release[job][:, None]) & (capacity[market] > 0)
        option, span = np.nonzero(usable)
        deadlines = [NO_DEADLINE if (at := self.case.jobs[index].deadline) is None else at for index in self.jobs]
        due = np.asarray(deadlines, dtype=np.int64)[job[option]]
        split = (edges[:-1][span] < due) & (due < edges[1:][span])
        late = np.concatenate([due <= edges[:-1][span], np.ones(int(split.sum()), dtype=bool)])
        option, span = np.concatenate([option, option[split]]), np.concatenate([span, span[split]])
        self.before_deadline = np.nonzero(split)[0]
        self.due = due
        self.span = span
        self.job, self.market = job[option], market[option]
        self.devices, self.steps = options[option, 2].astype(np.int64), options[option, 3]
        self.whole = options[option, 5].astype(np.int64)
        discount = self.case.discount
        worth_at = np.asarray([discount.at(start) for start in self.grid.edges[:-1]])
        self.cost = options[option, 4] * self.steps * worth_at[span] * np.where(late, LATE_FACTOR, 1.0)

    def _add(self, rows: Any, columns: Any, values: Any, upper: Any) -> None:
        self._entries.append((rows + self.row, columns, values))
        self.upper.append(upper)
        self.row += len(upper)

    def limit_markets(self) -> None:
        """Add the rows that limit the lane-seconds of each market by its capacity and quotas."""
        np = self.np
        for market, limits in groupby(self.grid.limits, key=attrgetter("market")):
            first, last, seconds = zip(*((each.first, each.last, each.lane_seconds) for each in limits), strict=True)
            mine = np.nonzero(self.market == market)[0]
            span = self.span[mine]
            rows, which = np.nonzero((span >= np.asarray(first)[:, None]) & (span < np.asarray(last)[:, None]))
            self._add(rows, mine[which], self.devices[mine[which]], seconds)

    def limit_work(self) -> None:
        """Add the rows that limit the steps of each job to its remaining steps."""
        self._add(self.job, self.np.arange(len(self.job)), self.steps, self.remaining)

    def limit_time(self) -> None:
        """Add the rows that limit a job to one session at a time in each span, after release and before deadline."""
        np, edges = self.np, self.edges
        begins = np.maximum(self.release[:, None], edges[:-1][None, :])
        seconds = np.clip(edges[1:][None, :] - begins, 0, None).astype(np.float64)
        # A row that cannot bind is left out. Rows of the first span always stay, so that the next programme, with a
        # shorter first span, has the same shape and can start from this one's basis.
        slowest = np.full(len(self.jobs), np.inf)
        np.minimum.at(slowest, self.job, self.steps)
        tight = (self.remaining / slowest)[:, None] > seconds
        tight[:, 0] = True
        row_of = np.where(tight.ravel(), np.cumsum(tight.ravel()) - 1, -1)[self.job * self.spans + self.span]
        columns = np.nonzero(row_of >= 0)[0]
        self._add(row_of[columns], columns, np.ones(len(columns)), seconds[tight])
        early = self.before_deadline
        begins = np.maximum(edges[self.span[early]], self.release[self.job[early]])
        room = np.clip(self.due[early] - begins, 0, None).astype(np.float64)
        self._add(np.arange(len(early)), early, np.ones(len(early)), room)

    def order_gates(self) -> None:
        """Add the rows of gates. Up to each span: child's share of its work <= parent's share of steps to the gate."""
        np = self.np
        local = {job: number for number, job in enumerate(self.jobs)}
        order = np.argsort(self.job, kind="stable")
        starts = np.searchsorted(self.job[order], np.arange(len(self.jobs) + 1))
        for child, index in enumerate(self.jobs):
            missing = missing_for_gate(self.case, index)
            parent = local.get(self.case.jobs[index].gate_parent or 0) if missing > 0 else None
            if parent is None:
                continue
            mine = order[starts[child] : starts[child + 1]]
            theirs = order[starts[parent] : starts[parent + 1]]
            columns = np.concatenate([mine, theirs])
            shares = np.concatenate([self.steps[mine] / self.remaining[child], -self.steps[theirs] / missing])
            first = int(self.span[mine].min()) if len(mine) else self.spans
            lasts = np.arange(first, self.spans)
            rows, which = np.nonzero(self.span[columns][None, :] <= lasts[:, None])
            self._add(rows, columns[which], shares[which], np.zeros(len(lasts)))

    def limit_whole_sessions(self) -> None:
        """Add the rows that limit the steps at the rate of a whole session to those of the job's whole sessions."""
        mine = self.np.nonzero(self.whole >= 0)[0]
        self._add(self.whole[mine], mine, self.steps[mine], self._whole_steps)

    def programme(self) -> Programme:
        """Return the programme, its entries sorted by column."""
        np = self.np
        rows, columns, values = (np.concatenate(parts) for parts in zip(*self._entries, strict=True))
        order = np.lexsort((rows, columns))
        return Programme(
            job=np.asarray(self.jobs, dtype=np.int64)[self.job],
            market=self.market,
            span=self.span,
            devices=self.devices,
            steps=self.steps,
            cost=self.cost,
            starts=np.searchsorted(columns[order], np.arange(len(self.job) + 1)),
            rows=rows[order],
            values=values[order].astype(np.float64),
            upper=np.concatenate([np.asarray(part, dtype=np.float64) for part in self.upper]),
        )


def remaining_steps(case: Case, job: int) -> int:
    """Return the steps of ``job`` that are left after its live run."""
    job_case = case.jobs[job]
    return max(0, job_case.view.remaining_steps - job_case.expected_steps)


def _modes(
    case: Case, group: int, lanes: int, jobs: Sequence[int]
) -> Iterator[tuple[int, int, int, float, float | None, float]]:
    """Yield (job, lanes used, devices, steps per charged second, most steps at this rate or None, value of a step)."""
    pool_class = case.classes[group]
    sharing = pool_class.pool.sharing
    fine = len(jobs) <= FINE_JOBS_MAX
    for job in jobs:
        offer = pool_class.offers[job]
        if offer is None:
            continue
        remaining = remaining_steps(case, job)
        best = 0.0
        for devices in range(1, min(lanes, len(offer.speeds)) + 1):
            speed = offer.speeds[devices - 1]
            if speed <= best:
                continue
            best = speed
            shared = devices < lanes and sharing < 1.0 and offer.thrifty is None
            options = [(devices, sharing), (lanes, 1.0)] if shared else [(devices, 1.0)]
            for lanes_used, factor in options:
                for rate, most in _rates(offer, remaining, devices, factor, fine=fine):
                    yield job, lanes_used, devices, rate, most, offer.worth


def _rates(
    offer: JobOffer, remaining: int, devices: int, sharing: float, *, fine: bool
) -> list[tuple[float, float | None]]:
    """Return (steps per charged second, most steps at this rate or None): whole sessions first, then the remainder.

    A job that needs more than k whole sessions pays another set-up for the remainder. The line from k whole sessions to
    the cheapest k + 1 sessions that finish the job is a lower bound of the seconds that any plan pays.
    """
    speed = offer.speeds[devices - 1] * sharing
    whole = speed * offer.terms.useful(offer.cap)
    count = int(remaining / whole) if whole > 0 else 0
    if count > 0 and not fine:
        return [(whole / offer.cap, None)]
    if count == 0:
        return [(remaining / offer.terms.length_for(remaining / speed), None)]
    remainder = remaining - count * whole
    if remainder < 1:
        return [(whole / offer.cap, None)]
    extra_seconds = (count + 1) * offer.terms.length_for(remaining / speed / (count + 1)) - count * offer.cap
    return [(whole / offer.cap, count * whole), (min(remainder / extra_seconds, whole / offer.cap), None)]


def plannable_jobs(case: Case) -> list[int]:
    """Return the jobs that a plan could start within the horizon."""
    starts = earliest_starts(case)
    return [job.index for job in case.jobs if starts[job.index] < case.until and remaining_steps(case, job.index) > 0]


def unpriceable_jobs(case: Case, jobs: Sequence[int]) -> dict[int, float]:
    """Return the jobs whose importance is too large for the solver's precision, with the most their work can be worth.

    They are left out of the programme, because they can pay any price. The bound counts them as done today.
    """
    worths = sorted(case.jobs[job].view.importance for job in jobs)
    limit = PRICELESS * max(worths[(len(worths) - 1) // 2], 1e-9) if worths else 0.0
    return {
        job: max(offer.worth * remaining_steps(case, job) for group in case.classes if (offer := group.offers[job]))
        for job in jobs
        if case.jobs[job].view.importance > limit
    }


def earliest_starts(case: Case) -> list[int]:
    """Return by job the first instant at which a plan could start it; the end of the horizon if none can."""
    starts = [case.until] * len(case.jobs)  # stays for jobs in a cycle of gates
    stack = [job.index for job in case.jobs if job.gate_parent is None]
    while stack:
        index = stack.pop()
        job = case.jobs[index]
        if job.startable and job.free_at is not None:
            starts[index] = max(job.release, job.free_at)
            if job.gate_parent is not None:
                starts[index] = max(starts[index], _opens(case, index, job.gate_parent, starts[job.gate_parent]))
        stack += case.children.get(index, ())
    return starts


def missing_for_gate(case: Case, child: int) -> int:
    """Return the steps of the parent of ``child`` that must still be planned until the gate passes."""
    job = case.jobs[child]
    if job.gate_parent is None:
        return 0
    parent = case.jobs[job.gate_parent]
    return max(0, job.gate_step - parent.view.done_step - parent.expected_steps)


def _opens(case: Case, child: int, parent: int, start: int) -> int:
    """Return the earliest instant at which the parent's progress can pass the child's gate."""
    missing = missing_for_gate(case, child)
    if missing <= 0:
        return case.jobs[parent].reaches(case.jobs[child].gate_step)
    offers = [offer for group in case.classes if (offer := group.offers[parent]) is not None]
    return min((start + offer.terms.setup + int(missing / offer.speeds[-1]) for offer in offers), default=case.until)
