"""The dispatcher's walk written plainly: every look sorts all that wait, every pool and every offer is asked anew.

The oracle of the walk in use, which must come to the same sessions from any case, policy and schedule, and what its
speed is compared with.
"""

from __future__ import annotations

from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from scheduler.core.plan import Placement, PlannedLane
from scheduler.planner.model.lanes import CandidateSession, compose, compose_fuller, mold_evenly, spare
from scheduler.planner.model.policy import PHASES, PinnedSession, PlanPolicy, Schedule
from scheduler.planner.model.pool_capacity import NEVER
from scheduler.planner.model.value import LATE_FACTOR
from tests.lab.planner.plain_pool import PlainPool

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from scheduler.planner.model.case import Case

# The order of waiting jobs: those that must make a deadline by the last instant they could start, then the others
# by density and Smith ratio (both negated); ties by the job's index, that is its place in the queue.
Key = tuple[int, float, float, int]
URGENT, ORDINARY = 0, 1
# How long a session of an earlier plan is waited for before its place is given away.
PATIENCE_SECONDS = 7_200
# How much longer than planned it may last: others are planned to follow it.
SLOWER_SECONDS = 1_800
# When so many of the densest jobs cannot pay the price, the rest will not either.
REFUSALS_MAX = 12


class PlainWalk:
    """One walk through time; ``booked`` is a schedule that it must leave as it is."""

    def __init__(self, case: Case, policy: PlanPolicy, booked: Schedule | None = None) -> None:
        self.case = case
        self.policy = policy
        self.leaves_room = True  # for all that is known: whoever fills up looks everywhere again
        self.capacities = [PlainPool(capacity.view, case.now, case.until) for capacity in case.capacities]
        self.remaining = [job.view.remaining_steps - job.expected_steps for job in case.jobs]
        self.done = [job.view.done_step + job.expected_steps for job in case.jobs]
        self.last_pool = [job.view.last_pool for job in case.jobs]
        self.free_from = [0] * len(case.jobs)
        self.gate_passes: dict[int, int] = {}
        self.placements: list[Placement] = []
        self.turns = case.turns.copy()
        if booked is not None:
            self._book(booked)
        # By class and job, as of when the job came into the queues: its shortest useful session, and its density.
        self.shortest = [[0] * len(case.jobs) for _ in case.classes]
        self.density = [[0.0] * len(case.jobs) for _ in case.classes]
        self.keys: dict[int, list[Key | None]] = {}
        self.events: list[tuple[int, int, int]] = []  # instant, 0 for a job or 1 for a pool, its index
        self.looked_until = [0] * len(case.capacities)
        self.idle: set[int] = set()
        self.busy_until = [0] * len(case.jobs)
        self.pinned = {pool: list(found) for pool, found in policy.pinned.items() if found}
        self.pins = [0] * len(case.jobs)
        for pinned in (job for found in policy.pinned.values() for one in found for job in one.jobs):
            self.pins[pinned] += 1
        for pool, pins in self.pinned.items():
            for one in pins:
                heappush(self.events, (one.start, 1, pool))
                heappush(self.events, (one.start + PATIENCE_SECONDS, 1, pool))
        for index, job in enumerate(case.jobs):
            self._schedule_start(index)
            if job.expected_steps and job.free_at is not None:
                self._pass_gates(index, job.reaches)
        for pool in range(len(case.capacities)):
            heappush(self.events, (case.now, 1, pool))

    def _book(self, booked: Schedule) -> None:
        """Take what ``booked`` uses out of the capacities, and let its jobs come after it."""
        indices = {job.view.name: job.index for job in self.case.jobs}
        capacities = {capacity.pool.name: capacity for capacity in self.capacities}
        for placement in booked.placements:
            capacities[placement.pool].book(placement.start, placement.end, placement.devices)
            for planned_lane in placement.lanes:
                job = indices[planned_lane.job]
                self.remaining[job] -= planned_lane.steps
                self.done[job] += planned_lane.steps
                self.last_pool[job] = placement.pool
                self.free_from[job] = max(self.free_from[job], placement.end)
                self.turns.add(job, planned_lane.devices * (placement.end - placement.start))
        self.placements, self.gate_passes = list(booked.placements), dict(booked.gate_passes)

    def run(self) -> Schedule:
        """Walk to the horizon."""
        events, until = self.events, self.case.until
        while events and events[0][0] < until:
            now = events[0][0]
            looking = self.idle
            while events and events[0][0] == now:
                _, is_pool, index = heappop(events)
                if is_pool:
                    looking.add(index)
                else:
                    self._enqueue(index, now)
            self.idle = self._fill(now, looking) if self.keys else looking
        self.placements.sort(key=lambda found: (found.start, found.pool, found.lanes[0].job))
        return Schedule(tuple(self.placements), self.gate_passes)

    def _schedule_start(self, index: int) -> None:
        job = self.case.jobs[index]
        if not job.startable or job.free_at is None or self.remaining[index] <= 0:
            return
        opens = self.gate_passes.get(index, NEVER) if job.gate_parent is not None else 0
        start = max(job.release, job.free_at, opens, self.free_from[index])
        if start < self.case.until:
            heappush(self.events, (start, 0, index))

    def _enqueue(self, index: int, now: int) -> None:
        """Make the job wait in the queue of every class it may use."""
        if now < self.busy_until[index]:
            return
        self.keys.pop(index, None)
        job = self.case.jobs[index]
        remaining = self.remaining[index]
        if job.deadline is not None and now < job.deadline:
            heappush(self.events, (job.deadline, 0, index))
        policy = self.policy
        late = LATE_FACTOR if job.deadline is not None and now >= job.deadline else 1.0
        phase = (now - self.case.now) * PHASES // self.case.snapshot.horizon_seconds
        urgent = job.deadline is not None and late == 1.0 and index in policy.urgent
        order = None if policy.order is None else policy.order(job.view, remaining)
        weight_left = -job.view.importance / remaining
        factors, phased = policy.factors, policy.phased
        keys: list[Key | None] = []
        for number, group in enumerate(self.case.classes):
            offer = group.offers[index]
            if offer is None:
                keys.append(None)
                continue
            density, takes = offer.density(remaining), offer.time_for(remaining)
            self.shortest[number][index], self.density[number][index] = offer.shortest(remaining), density
            if order is not None:
                key = (ORDINARY, order, 0.0, index)
            else:
                rank = -late * density
                if factors:
                    rank *= factors.get((number, index), 1.0)
                if phased:
                    rank *= phased.get((number, index, phase), 1.0)
                key = (ORDINARY, rank, weight_left * offer.speeds[-1], index)
            if urgent and job.deadline is not None:
                latest = job.deadline - takes
                if now <= latest <= now + policy.foresight_seconds:
                    key = (URGENT, float(latest), weight_left * offer.speeds[-1], index)
                elif latest > now:
                    heappush(self.events, (latest - policy.foresight_seconds, 0, index))
            keys.append(key)
        self.keys[index] = keys

    def _queue(self, group: int) -> list[Key]:
        return sorted(key for keys in self.keys.values() if (key := keys[group]) is not None)

    def _fill(self, now: int, looking: Collection[int]) -> set[int]:
        """Start sessions until nobody fits any more; return the pools that may still have room."""
        rooms: dict[int, int] = {}
        for pool in looking:
            self._update_room(now, pool, rooms)
        if self.pinned:
            self._keep_appointments(now, rooms)
        if rooms:
            self._fill_rooms(now, rooms)
        return {pool for pool in looking if pool in rooms or not self._queue(self.case.class_of[pool])}

    def _fill_rooms(self, now: int, rooms: dict[int, int]) -> None:
        """Start the best of all jobs that fit, again and again; ``rooms`` are left as they are then."""
        members: dict[int, list[int]] = {}
        for pool in sorted(rooms):
            if pool not in self.pinned:
                members.setdefault(self.case.class_of[pool], []).append(pool)
        found: dict[int, tuple[Key, int, int, CandidateSession] | None] = {}
        while True:
            for group, pools in members.items():
                if group not in found:
                    found[group] = self._first_that_fits(now, group, pools, rooms) if pools else None
            best = min((one for one in found.values() if one is not None), key=self._rank, default=None)
            if best is None:
                break
            _, group, pool, session = best
            self._start(now, group, pool, session)
            self._update_room(now, pool, rooms)
            members[group] = [other for other in members[group] if other in rooms]
            # What the others found stands unless it needs a job that has just been taken.
            taken = {lane.job for lane in session.lanes}
            found = {
                other: one
                for other, one in found.items()
                if other != group and (one is None or not any(lane.job in taken for lane in one[3].lanes))
            }
        for pool in rooms:
            self._look_again(pool, now)

    def _rank(self, found: tuple[Key, int, int, CandidateSession]) -> tuple[Key, float, int]:
        """Return what the best goes by; where a job may start on pools of several classes, where it makes most."""
        key, group, _, _ = found
        return key, -self.density[group][key[3]], group

    def _first_that_fits(
        self, now: int, group: int, pools: list[int], rooms: dict[int, int]
    ) -> tuple[Key, int, int, CandidateSession] | None:
        """Return (rank, class, pool, session) of the first waiting job that can use one of ``pools`` now."""
        offers = self.case.classes[group].offers
        widest = max(rooms[pool] for pool in pools)
        shortest, density, pins = self.shortest[group], self.density[group], self.pins
        admits, refused = self.policy.admits, 0
        alone = self.case.classes[group].pool.devices_per_session == 1
        counts, least = admits.least(group, now) if admits is not None else ((), 0.0)
        for key in self._queue(group):
            tier, rank, _, index = key
            if shortest[index] > widest or pins[index]:
                continue
            if tier == URGENT:
                if rank < now:
                    self._enqueue(index, now)  # too late by now: it waits with the others
                    return self._first_that_fits(now, group, pools, rooms)
            elif admits is not None and alone and density[index] * counts[index] < least:
                refused += 1
                if refused == REFUSALS_MAX:
                    break
                continue
            offer = offers[index]
            if offer is None:
                continue
            pool = self._pick_pool(index, pools, rooms, offer.least)
            session = self._session(now, pool, index, rooms[pool], urgent=tier == URGENT)
            if session is None:
                continue
            if tier == URGENT or admits is None or admits(group, now, session):
                instead = None if tier == URGENT else self._in_turn(now, group, index, pools, rooms)
                return key, group, *(instead or (pool, session))
            refused += 1
            if refused == REFUSALS_MAX:
                break
        return None

    def _in_turn(
        self, now: int, group: int, index: int, pools: list[int], rooms: dict[int, int]
    ) -> tuple[int, CandidateSession] | None:
        """Return where who goes before ``index`` takes the place that it has won: they share their hours."""
        other = self.turns.next(index, self.keys, self.case.classes[group].offers)
        if other == index:
            return None
        pool = self._pick_pool(other, pools, rooms, self.shortest[group][other])
        session = self._session(now, pool, other, rooms[pool], urgent=False)
        return None if session is None else (pool, session)

    def _keep_appointments(self, now: int, rooms: dict[int, int]) -> None:
        """Start what an earlier plan wants here by now; the next of a pool may come early, the patient ones late."""
        for pool in sorted(set(rooms) & set(self.pinned)):
            pins = self.pinned[pool]
            kept: list[PinnedSession] = []
            for number, due in enumerate(pins):
                session = None
                if number == 0 or due.start <= now:
                    session = self._pinned_session(now, pool, due, rooms.get(pool, 0))
                if session is not None and now < due.start and self._too_early(due, session):
                    session = None
                if session is not None:
                    self._start(now, self.case.class_of[pool], pool, session)
                    self._update_room(now, pool, rooms)
                if session is not None or now >= due.start + PATIENCE_SECONDS:
                    for pinned in due.jobs:
                        self.pins[pinned] -= 1
                else:
                    kept.append(due)
            self.pinned[pool] = kept
            if not kept:
                del self.pinned[pool]

    def _too_early(self, due: PinnedSession, session: CandidateSession) -> bool:
        """Tell whether a session waits for its time: its jobs have others before, or it would be less than planned."""
        lanes = {job: steps for job, _, steps in session.lanes}
        others = [one for pins in self.pinned.values() for one in pins if one.start < due.start]
        unfinished = [job for job in due.jobs if self.remaining[job] > lanes.get(job, 0)]
        less = session.length < due.seconds or any(job not in lanes for job in unfinished)
        return any(job in one.jobs for one in others for job in lanes) or (bool(unfinished) and less)

    def _pinned_session(self, now: int, pool: int, due: PinnedSession, room: int) -> CandidateSession | None:
        group = self.case.classes[self.case.class_of[pool]]
        jobs = self.turns.in_turn(due.jobs, self.keys, group.offers)
        room = min(room, due.seconds + SLOWER_SECONDS)
        if jobs and group.pool.device_counts:
            return self._molded(now, pool, jobs[0], room, urgent=False)
        return compose(group, room, jobs[0], jobs, self.remaining) if jobs and room else None

    def _update_room(self, now: int, pool: int, rooms: dict[int, int]) -> None:
        if not self._queue(self.case.class_of[pool]):
            rooms.pop(pool, None)  # nobody waits for it: what room it has need not be known
            return
        seconds = self.capacities[pool].room(now).seconds
        if seconds > 0:
            rooms[pool] = seconds
        else:
            rooms.pop(pool, None)
            self._look_again(pool, now)

    def _pick_pool(self, index: int, pools: list[int], rooms: dict[int, int], least: int) -> int:
        """Prefer the pool the job ran on last; among the others the roomiest, then the first by name."""
        last = self.last_pool[index]
        for pool in pools:
            if self.capacities[pool].pool.name == last and rooms[pool] >= least:
                return pool
        return max(pools, key=lambda pool: (rooms[pool], -pool))

    def _session(self, now: int, pool: int, index: int, room: int, *, urgent: bool) -> CandidateSession | None:
        group = self.case.class_of[pool]
        if self.capacities[pool].pool.device_counts:
            return self._molded(now, pool, index, NEVER, urgent=urgent)
        session, offer = self._composed(group, room, index), self.case.classes[group].offers[index]
        if session is None or offer is None:
            return None
        even = self.capacities[pool].even(now, session.length, offer.least)
        if even < session.length:
            return self._composed(group, even, index) or session
        return session

    def _molded(self, now: int, pool: int, index: int, most: int, *, urgent: bool) -> CandidateSession | None:
        """Return the session of a job where it may ask for its devices, at most ``most`` seconds long."""
        group, deadline = self.case.classes[self.case.class_of[pool]], self.case.jobs[index].deadline
        return mold_evenly(group, self.capacities[pool], now, most, index, self.remaining, deadline, patient=urgent)

    def _composed(self, group: int, room: int, lead: int) -> CandidateSession | None:
        """Compose a session; of jobs that share hours one at most sits in it, unless a device would stand still."""
        found, turns = self.case.classes[group], self.turns
        unpinned = (key[3] for key in self._queue(group) if not self.pins[key[3]])
        if not turns:
            return compose(found, room, lead, unpinned, self.remaining)
        few = turns.partners(lead, free := list(unpinned), self.keys, found.offers)
        return compose_fuller(found, room, lead, few, free, self.remaining)

    def _start(self, now: int, group: int, pool: int, session: CandidateSession) -> None:
        capacity = self.capacities[pool]
        end = now + session.length + (self._spare(group, pool, session) if now == self.case.now else 0)
        capacity.start_session(now, end, session.devices)
        self.looked_until[pool] = now
        sharing = capacity.pool.sharing if len(session.lanes) > 1 else 1.0
        planned_lanes = []
        for lane in session.lanes:
            job = self.case.jobs[lane.job]
            planned_lanes.append(PlannedLane(job.view.name, lane.devices, lane.steps))
            del self.keys[lane.job]
            self.turns.add(lane.job, lane.devices * (end - now))
            offer = self.case.classes[group].offers[lane.job]
            if offer is None:
                continue
            speed = offer.speeds[lane.devices - 1] * sharing
            before = self.done[lane.job]
            self.done[lane.job] += lane.steps
            self.remaining[lane.job] -= lane.steps
            self.last_pool[lane.job] = capacity.pool.name
            published = partial(offer.terms.published_at, now, end - now, speed, before)
            self._pass_gates(lane.job, published)
            self.busy_until[lane.job] = end if self.remaining[lane.job] > 0 else NEVER
            if self.remaining[lane.job] > 0:
                heappush(self.events, (end, 0, lane.job))
        self.placements.append(Placement(capacity.pool.name, now, end, tuple(planned_lanes)))

    def _spare(self, group: int, pool: int, session: CandidateSession) -> int:
        """Return the seconds by which a session that starts now is held longer, so that a slow job still ends in it.

        What is not used is given back; a remainder of seconds would cost another set-up.
        """
        room = self.capacities[pool].room(self.case.now, session.devices).seconds
        return max(0, min(spare(self.case.classes[group], session, self.remaining), room - session.length))

    def _pass_gates(self, parent: int, passes_at: Callable[[int], int]) -> None:
        """Release the children whose gate the parent's planned progress now reaches."""
        for child in self.case.children.get(parent, ()):
            needed = self.case.jobs[child].gate_step
            if child not in self.gate_passes and self.done[parent] >= needed:
                self.gate_passes[child] = max(passes_at(needed), self.case.now + 1)
                self._schedule_start(child)

    def _look_again(self, pool: int, now: int) -> None:
        """Come back to the pool when it may have more room; that stands until a session takes some of it."""
        if self.looked_until[pool] > now:
            return
        change = self.capacities[pool].next_change(now)
        self.looked_until[pool] = change
        if change < self.case.until:
            heappush(self.events, (change, 1, pool))
