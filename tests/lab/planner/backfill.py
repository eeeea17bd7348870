"""Backfill as batch systems do it: first in, first out, fixed walltimes, and what fits in between (EASY).

Whoever is first and cannot start gets the earliest place that has room for its whole walltime; somebody behind it may
start now if that place stays free. Sessions are not shortened to what a window has left: that is the difference.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduler.core.plan import Placement, Plan, PlannedLane
from scheduler.core.snapshot import Snapshot
from scheduler.planner.dispatch.waiting import deferrals
from scheduler.planner.model.case import Case, JobOffer, make_case
from scheduler.planner.model.pool_capacity import PoolCapacity
from scheduler.planner.model.value import value

# People ask for whole quarters of an hour.
ROUND_SECONDS = 900
LOOKS_MAX = 40


def backfill(snapshot: Snapshot, incumbent: Plan | None = None) -> Plan:
    """Return the plan from now to the horizon; ``incumbent`` is taken for the port's sake and ignored."""
    del incumbent
    case = make_case(snapshot, firm_deadlines=False)
    placements = _Backfill(case).run()
    return Plan(
        made_at=snapshot.now,
        placements=placements,
        deferrals=deferrals(case, placements, {}),
        value=value(snapshot, placements),
        made_by="backfill",
    )


@dataclass(slots=True)
class _Backfill:
    case: Case
    capacities: list[PoolCapacity] = field(init=False)
    left: list[int] = field(init=False)
    free_at: list[int] = field(init=False)
    offers: list[list[tuple[int, JobOffer]]] = field(init=False)  # by job: the pools it may use, the fastest first
    rooms: list[int] = field(default_factory=list)  # by pool, at the instant that is being looked at
    opened: set[int] = field(default_factory=set)
    placements: list[Placement] = field(default_factory=list)

    def __post_init__(self) -> None:
        case = self.case
        self.capacities = [capacity.copy() for capacity in case.capacities]
        self.left = [job.view.remaining_steps - job.expected_steps for job in case.jobs]
        opens = [job.release if job.gate_parent is None else case.until for job in case.jobs]
        busy = [case.until if job.free_at is None or not job.startable else job.free_at for job in case.jobs]
        self.free_at = [max(pair) for pair in zip(opens, busy, strict=True)]
        self.offers = [self._offers(job.index) for job in case.jobs]

    def run(self) -> tuple[Placement, ...]:
        now = self.case.now
        while now < self.case.until:
            self._fill(now)
            instants = [capacity.next_change(now) for capacity in self.capacities]
            instants += [instant for instant in self.free_at if instant > now]
            now = min(instants, default=self.case.until)
        return tuple(sorted(self.placements, key=lambda found: (found.start, found.pool)))

    def _fill(self, now: int) -> None:
        promised: tuple[int, int, int] | None = None  # pool, instant, walltime of the first who could not start
        self.rooms = [capacity.room(now).seconds for capacity in self.capacities]
        for job in self.case.jobs:
            if not any(self.rooms):
                break
            if self.left[job.index] <= 0 or self.free_at[job.index] > now:
                continue
            pool = self._place(job.index, now, promised)
            if pool is not None:
                self._start(job.index, pool, now)
            elif promised is None:
                promised = self._promise(job.index, now)

    def _offers(self, index: int) -> list[tuple[int, JobOffer]]:
        found = [
            (pool, offer)
            for pool in range(len(self.capacities))
            if (offer := self.case.classes[self.case.class_of[pool]].offers[index]) is not None
        ]
        return sorted(found, key=lambda pair: (-pair[1].speeds[-1], pair[0]))

    def _walltime(self, index: int, offer: JobOffer) -> int:
        need = offer.session_for(self.left[index], len(offer.speeds), 1.0)
        return min(offer.cap, -(-need // ROUND_SECONDS) * ROUND_SECONDS)

    def _place(self, index: int, now: int, promised: tuple[int, int, int] | None) -> int | None:
        for pool, offer in self.offers[index]:
            if not self.rooms[pool]:
                continue
            walltime = self._walltime(index, offer)
            if self.rooms[pool] < walltime:
                continue
            if promised is not None and promised[0] == pool:
                trial = self.capacities[pool].copy()
                trial.start_session(now, now + walltime)
                if trial.room(promised[1]).seconds < promised[2]:
                    continue
            return pool
        return None

    def _promise(self, index: int, now: int) -> tuple[int, int, int] | None:
        """Return the earliest place with room for the job's walltime, nothing else started meanwhile."""
        found = []
        for pool, offer in self.offers[index]:
            walltime, instant = self._walltime(index, offer), now
            for _ in range(LOOKS_MAX):
                instant = self.capacities[pool].next_change(instant)
                if instant >= self.case.until:
                    break
                if self.capacities[pool].room(instant).seconds >= walltime:
                    found.append((instant, pool, walltime))
                    break
        if not found:
            return None
        instant, pool, walltime = min(found)
        return pool, instant, walltime

    def _start(self, index: int, pool: int, now: int) -> None:
        offer = self.case.classes[self.case.class_of[pool]].offers[index]
        if offer is None:
            raise ValueError(f"job {index} may not use pool {pool}")
        job, end = self.case.jobs[index], now + self._walltime(index, offer)
        devices = next(count for count, speed in enumerate(offer.speeds, 1) if speed >= offer.speeds[-1])
        steps = offer.steps_in(end - now, devices, 1.0, self.left[index])
        self.capacities[pool].start_session(now, end)
        self.rooms[pool] = self.capacities[pool].room(now).seconds
        self.left[index] -= steps
        self.free_at[index] = end
        self.placements.append(
            Placement(self.capacities[pool].pool.name, now, end, (PlannedLane(job.view.name, devices, steps),))
        )
        for child in self.case.children.get(index, ()):
            passed = job.view.target_step - self.left[index] >= self.case.jobs[child].gate_step
            if passed and child not in self.opened:
                self.opened.add(child)
                self.free_at[child] = min(self.free_at[child], max(self.case.jobs[child].release, end))
