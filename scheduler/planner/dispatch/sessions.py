"""Sessions: builds the sessions that could start at the current instant of a walk. ``Walk`` chooses among them."""

from collections.abc import Sequence

from scheduler.planner.model.case import Case, Entry, JobOffer, Shape
from scheduler.planner.model.lanes import CandidateSession, compose, compose_fuller, mold_evenly, one_job_session, spare
from scheduler.planner.model.plan_state import PlanState
from scheduler.planner.model.policy import PinnedSession
from scheduler.planner.model.pool_capacity import NEVER

# A session of an earlier plan may last this much longer than planned. The sessions after it limit the extension.
SLOWER_SECONDS = 1_800


class SessionBuilder:
    """Builds sessions from the waiting jobs and the capacity that is left on pools; a walk updates both."""

    def __init__(self, case: Case, start: PlanState) -> None:
        self.case, self.columns, self.now = case, case.columns, case.now
        self.classes, self.class_of = case.classes, case.class_of
        self.capacities = [capacity.copy(state) for capacity, state in zip(case.capacities, start.states, strict=True)]
        self.remaining, self.last_pool = start.remaining.copy(), start.last_pool.copy()
        self.sharing = bool(start.turns)
        self.turns = start.turns.copy() if self.sharing else start.turns
        self.queues: list[list[Entry]] = [[] for _ in case.classes]
        self.waiting: dict[int, Sequence[Shape]] = {}  # the entries of each waiting job in all queues
        # The starts of each job's sessions in the earlier plan, sorted.
        self.pins: list[list[int]] = [[] for _ in case.jobs]

    def _pick_pool(self, index: int, pools: list[int], rooms: dict[int, int], least: int) -> int:
        """Return the pool of the job's last session if it has room, else the first of ``pools``: it has most room."""
        last = self.last_pool[index]
        return last if rooms.get(last, 0) >= least and last in pools else pools[0]

    def _session(
        self, now: int, pool: int, lead: tuple[int, JobOffer], room: int, *, urgent: bool
    ) -> CandidateSession | None:
        index, offer = lead
        capacity, group = self.capacities[pool], self.class_of[pool]
        if capacity.pool.device_counts:
            return self._mold(now, pool, index, NEVER, urgent=urgent)
        session = self._compose(group, room, index, offer)
        if session is None:
            return None
        length = session.length
        even = capacity.even(now, length, offer.least)
        return session if even >= length else self._compose(group, even, index, offer) or session

    def _mold(self, now: int, pool: int, index: int, most: int, *, urgent: bool) -> CandidateSession | None:
        """Return the session of a job on a pool with ``device_counts``, at most ``most`` seconds long."""
        group, deadline = self.classes[self.class_of[pool]], self.columns.deadline[index]
        return mold_evenly(group, self.capacities[pool], now, most, index, self.remaining, deadline, patient=urgent)

    def _compose(self, group: int, room: int, lead: int, offer: JobOffer) -> CandidateSession | None:
        """Return the best session led by ``lead``, with one job per share group unless a device would be idle."""
        pools, turns = self.classes[group], self.turns
        if len(offer.speeds) == 1:
            remaining = self.remaining[lead]
            return one_job_session(pools, offer, min(room, offer.cap), lead, remaining)
        unpinned = (entry[3] for entry in self.queues[group] if not self.pins[entry[3]])
        if not self.sharing:
            return compose(pools, room, lead, unpinned, self.remaining)
        in_turn = turns.partners(lead, free := list(unpinned), self.waiting, pools.offers)
        return compose_fuller(pools, room, lead, in_turn, free, self.remaining)

    def _session_by_turn(
        self, now: int, group: int, index: int, pools: list[int], rooms: dict[int, int]
    ) -> tuple[int, CandidateSession] | None:
        """Return (pool, session) of the job whose turn comes before ``index``; None without such a job or session."""
        offers = self.classes[group].offers
        other = self.turns.next(index, self.waiting, offers)
        offer = offers[other]
        if other == index or offer is None:
            return None
        shortest = offer.shortest(self.remaining[other])
        pool = self._pick_pool(other, pools, rooms, shortest)
        if rooms[pool] < shortest and not self.capacities[pool].pool.device_counts:
            return None
        session = self._session(now, pool, (other, offer), rooms[pool], urgent=False)
        return None if session is None else (pool, session)

    def _pinned_session(self, now: int, pool: int, due: PinnedSession, room: int) -> CandidateSession | None:
        group = self.classes[self.class_of[pool]]
        jobs = self.turns.in_turn(due.jobs, self.waiting, group.offers)
        room = min(room, due.seconds + SLOWER_SECONDS)
        if jobs and group.pool.device_counts:
            return self._mold(now, pool, jobs[0], room, urgent=False)
        return compose(group, room, jobs[0], jobs, self.remaining) if jobs and room else None

    def _too_early(self, due: PinnedSession, session: CandidateSession) -> bool:
        """Return whether a pinned session should wait: a job has an earlier pinned session, or would train less now.

        A planned session may deliberately continue into the next day's hours.
        """
        steps_of = {job: steps for job, _, steps in session.lanes}
        if any(start < due.start for job in steps_of for start in self.pins[job][:1]):
            return True
        whole = session.length >= due.seconds
        return any(self.remaining[job] > steps_of.get(job, 0) and not (whole and job in steps_of) for job in due.jobs)

    def _spare(self, group: int, pool: int, session: CandidateSession) -> int:
        """Return the seconds reserved beyond the expected end of a session that starts now, in case its job is slow.

        Unused seconds are released; another session for a small remainder would cost a set-up.
        """
        room = self.capacities[pool].room(self.now, session.devices).seconds
        return max(0, min(spare(self.classes[group], session, self.remaining), room - session.length))
