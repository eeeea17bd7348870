"""Walk: one pass of the list dispatcher through time, from now to the horizon.

Events are jobs that enter the queues and pools that may have more room. There is a sorted queue per pool class.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from heapq import heapify, heappop, heappush
from operator import attrgetter

from scheduler.planner.dispatch.sessions import SessionBuilder
from scheduler.planner.model.booking import Booking
from scheduler.planner.model.case import ORDINARY, URGENT, Case, Entry, Shape
from scheduler.planner.model.lanes import CandidateSession
from scheduler.planner.model.plan_state import PlanState, as_schedule, initial_state, plan_state
from scheduler.planner.model.policy import PHASES, Admission, PinnedSession, PlanPolicy, Schedule
from scheduler.planner.model.pool_capacity import NEVER
from scheduler.planner.model.value import LATE_FACTOR

# A call of the admission rule: class, instant, entry, session (None: any session of the job), answer.
Question = tuple[int, int, Entry, CandidateSession | None, bool]
# A session that could start: the job's queue entry, class, pool, session.
Start = tuple[Entry, int, int, CandidateSession]

# A session of an earlier plan that cannot start is dropped after this time.
PATIENCE_SECONDS = 7_200
# After this many refusals of the densest jobs the rest of the queue is skipped.
REFUSALS_MAX = 12

_order = attrgetter("order")


class Walk(SessionBuilder):
    """The state of one walk; the sessions of ``booked`` are not moved."""

    def __init__(self, case: Case, policy: PlanPolicy, booked: Schedule | None = None) -> None:
        start_state = initial_state(case) if booked is None else plan_state(case, booked)
        super().__init__(case, start_state)
        self.policy, self.start_state, self.until = policy, start_state, case.until
        self.free_from = start_state.free_from.copy()
        self.gate_passes: dict[int, int] = {} if booked is None else dict(booked.gate_passes)
        self.bookings: list[Booking] = []
        self.questions: list[Question] = []
        self.refused: set[int] = set()  # jobs that a price has refused at least once
        # The shortest useful session of any job in the queue, by class.
        self.least = [NEVER] * len(case.classes)
        # Jobs whose rank depends on more than their density.
        self.reranked = {job for _, job in policy.factors}.union([job for _, job, _ in policy.phased], policy.urgent)
        if policy.order is not None:
            self.reranked.update(range(len(case.jobs)))
        self.visit_at = [0] * len(case.capacities)
        self.shut_until = [0] * len(case.capacities)  # no room before, independently of the plan
        self.busy_until = [0] * len(case.jobs)
        # An event is (instant, 0 for a job or 1 for a pool, its index).
        self.events = [(case.now, 1, pool) for pool in range(len(case.capacities))]
        self.pinned = {pool: list(sessions) for pool, sessions in policy.pinned.items() if sessions}
        for pool, pins in self.pinned.items():
            for pin in pins:
                for pinned in pin.jobs:
                    insort(self.pins[pinned], pin.start)
            self.events += [(pin.start, 1, pool) for pin in pins]
            self.events += [(pin.start + PATIENCE_SECONDS, 1, pool) for pin in pins]
        for index, start in self.columns.startable:
            if self.remaining[index] > 0:
                self._schedule_start(index, max(start, self.free_from[index]))
        for index in self.columns.live:
            self._pass_gates(index, case.jobs[index].reaches)
        heapify(self.events)

    def run(self) -> Schedule:
        """Walk to the horizon and return the schedule."""
        events, until = self.events, self.until
        changed_pools: set[int] = set()
        shut_until, queues, class_of = self.shut_until, self.queues, self.class_of
        while events and events[0][0] < until:
            now = events[0][0]
            while events and events[0][0] == now:
                _, is_pool, index = heappop(events)
                if not is_pool:
                    self._enqueue(index, now)
                elif now >= shut_until[index] or not queues[class_of[index]]:
                    changed_pools.add(index)
            if changed_pools and self.waiting:
                changed_pools = self._fill(now, changed_pools)
        return as_schedule(self._plan_state(), self.gate_passes)

    @property
    def leaves_room(self) -> bool:
        """Whether a further walk without prices could add a session: only refused or pinned jobs may be missing."""
        return bool(self.policy.pinned) or any(self.remaining[job] > 0 for job in self.refused)

    def _plan_state(self) -> PlanState:
        """Return the state of jobs and pools after the walk."""
        bookings = sorted([*self.start_state.bookings, *self.bookings], key=_order)
        jobs = self.remaining, self.last_pool, self.free_from
        walked = self.bookings, [capacity.state for capacity in self.capacities]
        return PlanState(self.case, bookings, jobs, self.turns, self.start_state.states, walked)

    def _schedule_start(self, index: int, start: int) -> None:
        if self.case.jobs[index].gate_parent is not None:
            start = max(start, self.gate_passes.get(index, NEVER))
        if start < self.until:
            heappush(self.events, (start, 0, index))

    def _enqueue(self, index: int, now: int) -> None:
        """Insert the job into the queue of every class that it may use."""
        if now < self.busy_until[index]:
            return
        if index in self.waiting:
            self._dequeue(index)
        columns, remaining = self.columns, self.remaining[index]
        shapes = columns.shapes_by_steps[index].get(remaining) or columns.shapes(index, remaining)
        deadline = columns.deadline[index]
        if deadline is not None and now < deadline < self.until:
            heappush(self.events, (deadline, 0, index))
        if index in self.reranked or (deadline is not None and deadline <= now):
            shapes = self._ranked(index, now, shapes)
        queues, least = self.queues, self.least
        for number, entry, _ in shapes:
            insort(queues[number], entry)
            least[number] = min(least[number], entry[4])
        self.waiting[index] = shapes

    def _ranked(self, index: int, now: int, shapes: Sequence[Shape]) -> Sequence[Shape]:
        """Return ``shapes`` with the policy's current rank; schedule an event for when the rank changes."""
        policy, deadline = self.policy, self.columns.deadline[index]
        late, urgent = 1.0, False
        if deadline is not None:
            if now < deadline:
                urgent = index in policy.urgent
            else:
                late = LATE_FACTOR
        order = None if policy.order is None else policy.order(self.case.jobs[index].view, self.remaining[index])
        factors, phased = policy.factors, policy.phased
        phase = (now - self.now) * PHASES // self.case.snapshot.horizon_seconds if phased else 0
        ranked = []
        for number, (_, _, ratio, _, shortest, density, offer), needed in shapes:
            tier, rank, second = ORDINARY, -late * density, ratio
            if order is not None:
                rank, second = order, 0.0
            elif factors:
                rank *= factors.get((number, index), 1.0)
            if phased and order is None:
                rank *= phased.get((number, index, phase), 1.0)
            if urgent and deadline is not None and now <= deadline - needed:
                if deadline - needed <= now + policy.foresight_seconds:
                    tier, rank, second = URGENT, float(deadline - needed), ratio
                else:
                    heappush(self.events, (deadline - needed - policy.foresight_seconds, 0, index))
            ranked.append((number, (tier, rank, second, index, shortest, density, offer), needed))
        return ranked

    def _dequeue(self, index: int) -> None:
        for number, entry, _ in self.waiting.pop(index):
            queue = self.queues[number]
            del queue[bisect_left(queue, entry)]

    def _fill(self, now: int, changed_pools: Collection[int]) -> set[int]:
        """Start sessions until no job fits; return the pools that may still have room."""
        rooms: dict[int, int] = {}
        queues, class_of = self.queues, self.class_of
        for pool in changed_pools:
            if queues[class_of[pool]]:
                self._update_room(now, pool, rooms)
        if self.pinned:
            self._start_pinned(now, rooms)
        if rooms:
            self._fill_rooms(now, rooms)
        return {pool for pool in changed_pools if pool in rooms or not queues[class_of[pool]]}

    def _fill_rooms(self, now: int, rooms: dict[int, int]) -> None:
        """Start the best job that fits until none does; ``rooms`` is updated."""
        if len(rooms) == 1:
            self._fill_room(now, next(iter(rooms)), rooms)
            return
        class_of, members = self.class_of, dict[int, list[int]]()
        free = rooms.keys() - self.pinned.keys()
        for group, _, pool in sorted([(class_of[pool], -rooms[pool], pool) for pool in free]):
            members.setdefault(group, []).append(pool)
        starts: dict[int, Start] = {}
        open_classes = set(members)
        while True:
            for group, pools in members.items():
                if group not in open_classes:
                    continue
                start = self._first_that_fits(now, group, pools, rooms) if pools else None
                if start is not None:
                    starts[group] = start
            if not starts:
                break
            best = min(starts.values(), key=_rank) if len(starts) > 1 else next(iter(starts.values()))
            _, group, pool, session = best
            self._start(now, group, pool, session)
            self._update_room(now, pool, rooms)
            members[group].remove(pool)
            if pool in rooms:
                insort(members[group], pool, key=lambda member: (-rooms[member], member))
            # The starts of other classes stay valid unless they need a job that has just started.
            started = {job for job, _, _ in session.lanes}
            open_classes = {
                other for other, start in starts.items() if other == group or not started.isdisjoint(_jobs_of(start[3]))
            }
            for other in open_classes:
                del starts[other]
        for pool in rooms:
            self._schedule_visit(pool, now)

    def _fill_room(self, now: int, pool: int, rooms: dict[int, int]) -> None:
        """Start the best job that fits on the single pool with room, until none does; ``rooms`` is updated."""
        group = self.class_of[pool]
        while pool in rooms and pool not in self.pinned:
            start = self._first_that_fits(now, group, [pool], rooms)
            if start is None:
                break
            self._start(now, *start[1:])
            self._update_room(now, pool, rooms)
        if pool in rooms:
            self._schedule_visit(pool, now)

    def _first_that_fits(self, now: int, group: int, pools: list[int], rooms: dict[int, int]) -> Start | None:
        """Return the start of the first waiting job that fits on one of ``pools`` (most room first), or None."""
        widest = rooms[pools[0]]
        if widest < self.least[group]:
            return None
        pins, admits, refused = self.pins, self.policy.admits, 0
        counts: Sequence[float] = ()
        least = 0.0
        if admits is not None and self.classes[group].pool.devices_per_session == 1:
            counts, least = admits.least(group, now)
        for entry in self.queues[group]:
            tier, rank, _, index, shortest, density, offer = entry
            if shortest > widest or pins[index]:
                continue
            if tier == URGENT and rank < now:
                self._enqueue(index, now)  # it cannot meet its deadline any more: it loses its urgent rank
                return self._first_that_fits(now, group, pools, rooms)
            refuses = False
            if counts and tier != URGENT:
                refuses = density * counts[index] < least
                self.questions.append((group, now, entry, None, refuses))
            if not refuses:
                pool = self._pick_pool(index, pools, rooms, offer.least)
                session = self._session(now, pool, (index, offer), rooms[pool], urgent=tier == URGENT)
                if session is None:
                    continue
                if tier == URGENT:
                    return entry, group, pool, session
                if admits is None or self._admits(admits, now, group, entry, session):
                    instead = self._session_by_turn(now, group, index, pools, rooms) if self.sharing else None
                    return entry, group, *(instead or (pool, session))
            self.refused.add(index)
            refused += 1
            if refused == REFUSALS_MAX:
                self.refused.update(self.waiting)  # the rest of the queue was not tried
                break
        return None

    def _admits(self, admits: Admission, now: int, group: int, entry: Entry, session: CandidateSession) -> bool:
        answer = admits(group, now, session)
        self.questions.append((group, now, entry, session, answer))
        return answer

    def _start_pinned(self, now: int, rooms: dict[int, int]) -> None:
        """Start the sessions of an earlier plan that are due; the next one of a pool may start early."""
        for pool in sorted(set(rooms) & set(self.pinned)):
            pins = self.pinned[pool]
            later: list[PinnedSession] = []
            for number, due in enumerate(pins):
                session = None
                if number == 0 or due.start <= now:
                    session = self._pinned_session(now, pool, due, rooms.get(pool, 0))
                if session is not None and now < due.start and self._too_early(due, session):
                    session = None
                if session is not None:
                    self._start(now, self.class_of[pool], pool, session)
                    self._update_room(now, pool, rooms)
                if session is not None or now >= due.start + PATIENCE_SECONDS:
                    for pinned in due.jobs:
                        self.pins[pinned].remove(due.start)
                else:
                    later.append(due)
            self.pinned[pool] = later
            if not later:
                del self.pinned[pool]

    def _update_room(self, now: int, pool: int, rooms: dict[int, int]) -> None:
        if not self.queues[self.class_of[pool]]:
            rooms.pop(pool, None)  # no job waits for it
            return
        state = self.capacities[pool].state
        seconds = state.seconds.get(now)
        if seconds is None:
            seconds = state.seconds_at(now)
        if seconds > 0:
            rooms[pool] = seconds
        else:
            rooms.pop(pool, None)
            self._schedule_visit(pool, now)

    def _start(self, now: int, group: int, pool: int, session: CandidateSession) -> None:
        case, capacity = self.case, self.capacities[pool]
        length, lanes, _ = session
        end = now + length + (self._spare(group, pool, session) if now == self.now else 0)
        booking = case.bookings.of(pool, now, end, lanes)
        capacity.state = capacity.state.after(booking.use)
        self.bookings.append(booking)
        self.visit_at[pool] = now
        for job, devices, steps in lanes:
            self._dequeue(job)
            if self.sharing:
                self.turns.add(job, devices * (end - now))
            before = self.columns.whole[job] - self.remaining[job]
            remaining = self.remaining[job] = self.remaining[job] - steps
            self.last_pool[job], self.free_from[job] = pool, end
            if job in case.children and (offer := case.classes[group].offers[job]) is not None:
                speed = offer.speeds[devices - 1] * (capacity.pool.sharing if len(lanes) > 1 else 1.0)
                self._pass_gates(job, partial(offer.terms.published_at, now, end - now, speed, before))
            if remaining > 0:
                self.busy_until[job] = end
                heappush(self.events, (end, 0, job))
            else:
                self.busy_until[job] = NEVER

    def _pass_gates(self, parent: int, passes_at: Callable[[int], int]) -> None:
        """Release the children whose gate the parent's planned progress has reached."""
        step = self.columns.whole[parent] - self.remaining[parent]
        for child in self.case.children.get(parent, ()):
            job = self.case.jobs[child]
            if child not in self.gate_passes and step >= job.gate_step:
                self.gate_passes[child] = max(passes_at(job.gate_step), self.now + 1)
                if job.startable and job.free_at is not None and self.remaining[child] > 0:
                    self._schedule_start(child, max(job.release, job.free_at, self.free_from[child]))

    def _schedule_visit(self, pool: int, now: int) -> None:
        """Schedule an event for when the pool may have more room; valid until a session starts on it."""
        if self.visit_at[pool] > now:
            return
        change, shut = self.capacities[pool].state.next_change(now)
        self.visit_at[pool] = change
        if shut:
            self.shut_until[pool] = change
        if change < self.until:
            heappush(self.events, (change, 1, pool))


def answers_alike(admits: Admission, questions: Iterable[Question]) -> bool:
    """Return whether ``admits`` gives the recorded answer to every question, so that the walk would be the same."""
    current: tuple[int, int] | None = None
    counts: Sequence[float] = ()
    least = 0.0
    for group, now, (_, _, _, job, _, density, _), session, answer in questions:
        if session is not None:
            if admits(group, now, session) != answer:
                return False
            continue
        if current != (group, now):
            current = group, now
            counts, least = admits.least(group, now)
        if (density * counts[job] < least) != answer:
            return False
    return True


def _rank(start: Start) -> tuple[tuple[int, float, float, int], float, int]:
    """Return the sort key of a start: the queue rank, then the job's density in the class."""
    (tier, rank, ratio, job, _, density, _), group, _, _ = start
    return (tier, rank, ratio, job), -density, group


def _jobs_of(session: CandidateSession) -> list[int]:
    return [job for job, _, _ in session.lanes]
