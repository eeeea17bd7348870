"""Waiting: the reason why a job does not start now. The first class of ``core.reasons`` that applies is chosen."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobs.nouns.pool import Pool
from scheduler.core.admission import Room
from scheduler.core.plan import Deferral, Placement
from scheduler.core.reasons import (
    ConcurrencyFull,
    DeadlineUnreachable,
    DevicesTaken,
    DoesNotFit,
    GateClosed,
    LeftoverTooShort,
    NoAllowedPool,
    NotItsTurn,
    NotReleased,
    Outbid,
    PoolClosed,
    QuotaEmpty,
    Reason,
)
from scheduler.core.snapshot import JobView
from scheduler.planner.lp.prices import Prices
from scheduler.planner.model.case import Case, JobOffer, PlannerJob
from scheduler.planner.model.pool_capacity import NEVER, PoolCapacity
from scheduler.planner.model.session_yield import allowed, fits, longest, one_step, too_short

# A price below this is displayed as 0.00 and left out.
CHEAPEST = 0.005


def deferrals(
    case: Case, placements: Sequence[Placement], gate_passes: Mapping[int, int], prices: Prices | None = None
) -> tuple[Deferral, ...]:
    """Return, in queue order, each job that neither runs nor starts now, with the reason why it waits."""
    started = {lane.job for placement in placements if placement.start <= case.now for lane in placement.lanes}
    waiting = _Waiting(case, placements, gate_passes, prices)
    return tuple(
        Deferral(job.view.name, waiting.reason(job))
        for job in case.jobs
        if job.view.running is None and job.free_at == case.now and job.view.name not in started
        if job.view.remaining_steps > 0
    )


class _Waiting:  # a case and its plan, with caches for the reasons of its jobs
    def __init__(
        self, case: Case, placements: Sequence[Placement], gate_passes: Mapping[int, int], prices: Prices | None
    ) -> None:
        self.case = case
        self.prices = prices
        self.gate_passes = gate_passes
        self.planned: dict[str, Placement] = {}  # by job, its first session
        self.placements = placements
        # Cache by pool and devices: the seconds from now on that all planned sessions leave free.
        self.free_now: dict[tuple[int, int], int] = {}
        self.now_by_pool: dict[str, Placement] = {}
        for placement in placements:
            if placement.start <= case.now:
                self.now_by_pool.setdefault(placement.pool, placement)
            for lane in placement.lanes:
                self.planned.setdefault(lane.job, placement)
        self.rooms: dict[tuple[int, int], Room] = {}  # cache by pool and devices

    def reason(self, job: PlannerJob) -> Reason:
        """Return the first reason that applies, with the job's first session in the plan."""
        reason = self._first_reason(job)
        if job.view.blocked is not None or job.gate_shut or isinstance(reason, NoAllowedPool | DoesNotFit):
            return reason
        planned = self.planned.get(job.view.name)
        if planned is None:
            return replace(reason, unplanned_until=self.case.until)
        return replace(reason, planned_pool=planned.pool, planned_start=planned.start)

    def _first_reason(self, job: PlannerJob) -> Reason:
        view = job.view
        if view.blocked is not None:
            return view.blocked
        if job.gate_shut:  # permanently, so the release time does not matter
            return self._gate_reason(job)
        if job.release > self.case.now:
            return NotReleased(job.release, view.why_not_before(job.release))
        if job.gate_parent is not None:
            return self._gate_reason(job)
        pools = [capacity.pool for capacity in self.case.capacities]
        permitted = [pool for pool in pools if not view.allowed_pools or pool.name in view.allowed_pools]
        if not permitted:
            return NoAllowedPool(view.allowed_pools)
        usable = [
            (number, offer)
            for number in range(len(pools))
            if (offer := self.case.classes[self.case.class_of[number]].offers[job.index]) is not None
        ]
        if not usable:
            return _does_not_fit(view, permitted)
        return self._deadline_reason(job, usable) or self._pools_reason(job, usable)

    def _gate_reason(self, job: PlannerJob) -> Reason:
        gate = job.view.gate
        if gate is None:
            raise ValueError(f"{job.view.name} waits for a gate it does not have")
        reached = self.case.snapshot.progress(gate.parent) or 0.0
        return GateClosed(gate.parent, reached, gate.fraction, self.gate_passes.get(job.index))

    def _deadline_reason(self, job: PlannerJob, usable: list[tuple[int, JobOffer]]) -> Reason | None:
        """Return a reason if one long session on the fastest pool, starting now, would miss the deadline, else None."""
        if job.deadline is None:
            return None
        possible = max(0, job.deadline - self.case.now)
        needed = min(offer.terms.length_for(job.view.remaining_steps / offer.speeds[-1]) for _, offer in usable)
        if needed <= possible:
            return None
        return DeadlineUnreachable(job.deadline, needed / 3_600, possible / 3_600)

    def _pools_reason(self, job: PlannerJob, usable: list[tuple[int, JobOffer]]) -> Reason:
        """Return why no pool runs the job now: another job gets the best pool with room, or the best pool lacks room.

        For a planned job only the pool of its first session is considered.
        """
        planned = self.planned.get(job.view.name)
        if planned is not None:
            usable = [pair for pair in usable if self.case.capacities[pair[0]].pool.name == planned.pool]
        ranked = sorted(usable, key=lambda pair: (-pair[1].worth * pair[1].speeds[-1], pair[0]))
        for number, offer in ranked:
            name = self.case.capacities[number].pool.name
            first = self.now_by_pool.get(name)
            if first is not None and self._room_now(number, offer).seconds >= offer.shortest(job.view.remaining_steps):
                return self._outbid(job, number, first.lanes[0].job)
        reasons = [
            (_RANK[type(reason)], rank, reason)
            for rank, (number, offer) in enumerate(ranked)
            if (reason := self._missing_room(job, number, offer)) is not None
        ]
        if reasons:
            return min(reasons, key=lambda ranking: ranking[:2])[2]
        return self._reserved(job, *ranked[0])

    def _reserved(self, job: PlannerJob, number: int, offer: JobOffer) -> Reason:
        """Return the reason if the best pool has room but stays idle now for a later session of the plan."""
        capacity, now = self.case.capacities[number], self.case.now
        key = number, offer.fewest
        if key not in self.free_now:
            booked = capacity.copy()
            for placement in self.placements:
                if placement.pool == capacity.pool.name:
                    booked.book(placement.start, placement.end, placement.devices)
            self.free_now[key] = booked.room(now, offer.fewest).seconds
        planned = self.planned.get(job.view.name)
        free = min(self.free_now[key], (self.case.until if planned is None else planned.start) - now)
        needed = offer.shortest(job.view.remaining_steps)
        if 0 < free < needed:
            return LeftoverTooShort(capacity.pool.name, free, needed)
        later = (placed for placed in self.placements if placed.pool == capacity.pool.name and placed.start > now)
        first = next((lane.job for placed in later for lane in placed.lanes if lane.job != job.view.name), None)
        return self._outbid(job, number, first or "work that is worth more later")

    def _outbid(self, job: PlannerJob, number: int, by: str) -> Reason:
        share, turns = job.view.share, self.case.turns
        before = (self.case.jobs[each] for each in turns.group(job.index) if turns.rank(each) < turns.rank(job.index))
        if share is not None and any(other.view.name == by for other in before):
            return NotItsTurn(by, share.part, share.so_far or 0.0)
        price = None
        if self.prices is not None:
            # Rounded, because the last digits depend on the solver's basis, and the plan's digest includes reasons.
            group, offer = self.case.class_of[number], self.case.classes[self.case.class_of[number]].offers[job.index]
            session_share = self.prices.share(group, (offer.thrifty if offer else None) or 1)
            per_hour = float(f"{self.prices.per_second(group, self.case.now) * session_share * 3_600:.6g}")
            price = per_hour if per_hour >= CHEAPEST else None
        return Outbid(self.case.capacities[number].pool.name, by, price, weight_to_start=None)

    def _missing_room(self, job: PlannerJob, number: int, offer: JobOffer) -> Reason | None:
        capacity = self.case.capacities[number]
        room = self._room_now(number, offer)
        name = capacity.pool.name
        needed = offer.shortest(job.view.remaining_steps)
        if room.seconds >= needed:
            return None
        until = self._room_from(capacity, needed, offer)
        if room.limited_by == "concurrency":
            if capacity.pool.device_counts:
                return DevicesTaken(name, offer.fewest, capacity.pool.devices_max, until)
            return ConcurrencyFull(name, capacity.pool.sessions_max, until)
        if room.seconds > 0:
            return LeftoverTooShort(name, room.seconds, needed)
        if room.limited_by == "opening hours":
            why = self._closed_why(number)
            return PoolClosed(name, why, until)
        return QuotaEmpty(name, room.limited_by, until)

    def _room_now(self, number: int, offer: JobOffer) -> Room:
        """Return the longest session that the pool would allow now if no session were planned."""
        key = number, offer.fewest
        if key not in self.rooms:
            self.rooms[key] = self.case.capacities[number].room(self.case.now, offer.fewest)
        return self.rooms[key]

    def _closed_why(self, number: int) -> str:
        view = self.case.capacities[number].view
        if view.closed_until is not None and view.closed_until > self.case.now:
            return view.closed_why or "switched off"
        return "outside its hours"

    def _room_from(self, capacity: PoolCapacity, needed: int, offer: JobOffer) -> int | None:
        """Return the first instant in the horizon with ``needed`` free seconds, planned sessions ignored, or None."""
        instant = capacity.next_change(self.case.now)
        while instant < min(self.case.until, NEVER):
            if capacity.room(instant, offer.fewest).seconds >= needed:
                return instant
            instant = capacity.next_change(instant)
        return None


_RANK: Mapping[type, int] = {QuotaEmpty: 0, PoolClosed: 1, ConcurrencyFull: 2, DevicesTaken: 2, LeftoverTooShort: 3}


def _does_not_fit(view: JobView, permitted: Sequence[Pool]) -> Reason:
    """Return the reason with the job's needs and the permitted pool that comes closest."""
    needs = view.needs
    short = [pool for pool in permitted if allowed(view, pool) and fits(view, pool) and too_short(view, pool)]
    if short:
        roomy = max(short, key=lambda pool: (longest(pool) - one_step(view, pool), pool.name))
        session = f"one session of {one_step(view, roomy) / 3_600:.1f} h"
        return DoesNotFit(session, f"{longest(roomy) / 3_600:.1f} h ({roomy.name})")
    least, most = needs.devices_min, max(needs.devices_min, needs.devices_max)
    devices = f"{least} to {most}" if any(pool.device_counts for pool in permitted) and least < most else f"{least}"
    demand = f"{devices} x {needs.vram_gib:g} GiB, {needs.dtype}"
    best = max(permitted, key=lambda pool: (fits(view, pool), pool.vram_gib, pool.devices_per_session, pool.name))
    numbers = ", ".join(sorted(best.dtypes))
    if needs.accelerator not in {"any", best.kind}:
        demand, numbers = f"{demand}, {needs.accelerator.upper()}", f"{numbers}, {best.kind.upper()}"
    offer = " or ".join(map(str, best.device_counts or (best.devices_per_session,)))
    return DoesNotFit(demand, f"{offer} x {best.vram_gib:g} GiB, {numbers} ({best.name})", view.misfit)
