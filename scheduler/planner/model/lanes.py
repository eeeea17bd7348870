"""Lanes: which jobs share a session, on how many devices, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from scheduler.planner.model.session_yield import TOLERANCE

if TYPE_CHECKING:
    from scheduler.core.admission import Room
    from scheduler.planner.model.case import JobOffer, PoolClass

# Partners are chosen from this many of the densest waiting jobs.
PARTNERS_MAX = 16
# The cache of single-job sessions of a pool class is cleared when it holds this many.
ALONE_MAX = 50_000


class CandidateLane(NamedTuple):
    """One job's lane in a candidate session."""

    job: int
    devices: int
    steps: int


class CandidateSession(NamedTuple):
    """A session that could start: ``rate`` is its undiscounted value per second of length."""

    length: int
    lanes: tuple[CandidateLane, ...]
    rate: float

    @property
    def devices(self) -> int:
        """The sum of the devices of all lanes."""
        return sum(lane.devices for lane in self.lanes)


def compose(
    group: PoolClass, room: int, job: int, waiting: Iterable[int], remaining: Sequence[int]
) -> CandidateSession | None:
    """Return the best session of at most ``room`` seconds led by ``job``, or None if none is worth a launch.

    ``waiting`` are the jobs that could use the other devices, densest first.
    """
    offer = group.offers[job]
    if offer is None or room < offer.shortest(remaining[job]):
        return None
    if len(offer.speeds) == 1:
        return one_job_session(group, offer, min(room, offer.cap), job, remaining[job])
    others = _candidates(group, job, waiting)
    best: CandidateSession | None = None
    widest = max(1, _widest(offer))
    for devices in range(1, widest + 1):
        if offer.speeds[devices - 1] <= 0:
            continue
        for session in _with_partners(group, room, (job, devices), others, remaining):
            if best is None or session.rate > best.rate * (1 + TOLERANCE):
                best = session
    return best


def compose_fuller(
    group: PoolClass, room: int, job: int, in_turn: Iterable[int], others: Iterable[int], remaining: Sequence[int]
) -> CandidateSession | None:
    """Return the best session with partners from ``in_turn``, or from ``others`` if a device would be idle."""
    session = compose(group, room, job, in_turn, remaining)
    if session is None or session.devices == group.pool.devices_per_session:
        return session
    fuller = compose(group, room, job, others, remaining)
    return fuller if fuller is not None and len(fuller.lanes) > len(session.lanes) else session


def spare(group: PoolClass, session: CandidateSession, remaining: Sequence[int]) -> int:
    """Return the seconds to add to a session so that it finishes its jobs with a probability of 90 %."""
    seconds = 0
    for lane in session.lanes:
        offer = group.offers[lane.job]
        if offer is not None and lane.steps == remaining[lane.job]:
            seconds = max(seconds, offer.spare(lane.steps, lane.devices))
    return seconds


def mold(
    group: PoolClass,
    job: int,
    remaining: Sequence[int],
    rooms: Callable[[int], int],
    due_in: int | None,
    *,
    patient: bool = False,
) -> CandidateSession | None:
    """Return the session of ``job`` alone with the best device count, or None if none is worth a launch.

    ``rooms(devices)`` are the seconds available for a count, ``due_in`` the seconds until the deadline (None: no
    deadline). Of the counts that are in time, the one with the fewest device hours is chosen; if none is in time, the
    fastest. With ``patient``, return None if the only counts in time have no room now.
    """
    offer = group.offers[job]
    if offer is None:
        return None
    best: tuple[tuple[float, ...], CandidateSession] | None = None
    in_time_later = False
    for devices, speed in enumerate(offer.speeds, 1):
        if speed <= 0:
            continue
        takes = offer.time_for(remaining[job], devices)
        in_time = due_in is None or takes + offer.spare(remaining[job], devices) <= due_in
        session = _cut(group, rooms(devices), [(job, devices)], remaining)
        if session is None:
            in_time_later = in_time_later or in_time
            continue
        rank = (0.0, takes * devices, devices) if in_time else (1.0, takes, devices)
        if best is None or rank < best[0]:
            best = rank, session
    return None if best is None or (patient and in_time_later and best[0][0] > 0) else best[1]


class Capacity(Protocol):
    """The part of :class:`PoolCapacity` that is used here."""

    def room(self, start: int, devices: int = 0) -> Room:
        """Return the longest session that may start at ``start``."""

    def even(self, start: int, seconds: int, least: int, devices: int = 1) -> int:
        """Return ``seconds``, or less so that no remainder shorter than ``least`` is left."""


def mold_evenly(
    group: PoolClass,
    capacity: Capacity,
    start: int,
    most: int,
    job: int,
    remaining: Sequence[int],
    deadline: int | None,
    *,
    patient: bool,
) -> CandidateSession | None:
    """Return the session of :func:`mold` at ``start``, shortened if the remainder of its window would be useless."""
    due_in = None if deadline is None else deadline - start

    def room(devices: int) -> int:
        return min(most, capacity.room(start, devices).seconds)

    session, offer = mold(group, job, remaining, room, due_in, patient=patient), group.offers[job]
    if session is None or offer is None:
        return None
    even = capacity.even(start, session.length, offer.least, session.devices)
    if even == session.length:
        return session
    return _cut(group, even, [(job, session.devices)], remaining) or session


def one_job_session(group: PoolClass, offer: JobOffer, room: int, job: int, remaining: int) -> CandidateSession | None:
    """Return the session of at most ``room`` seconds with one job on one device, or None if it is useless."""
    key = job, remaining, room
    if key in group.alone:
        return group.alone[key]
    if len(group.alone) >= ALONE_MAX:
        group.alone.clear()
    session = group.alone[key] = _one_job_session(offer, room, job, remaining)
    return session


def _one_job_session(offer: JobOffer, room: int, job: int, remaining: int) -> CandidateSession | None:
    """Return the result of :func:`_cut` for one job on one device, but faster."""
    length = min(offer.session_for(remaining, 1, 1.0), room)
    steps = offer.steps_in(length, 1, 1.0, remaining)
    if steps < remaining:
        worthwhile = offer.terms.minimum * offer.speeds[0] - TOLERANCE
        if steps < worthwhile - 1 or steps < 1 or (offer.risk > 0 and length < offer.least):
            return None
    return CandidateSession(length, (CandidateLane(job, 1, steps),), offer.worth * steps / length)


def _widest(offer: JobOffer) -> int:
    """Return the device count beyond which the job gains nothing."""
    top = offer.speeds[-1]
    return next(count for count, speed in enumerate(offer.speeds, 1) if speed >= top)


def _candidates(group: PoolClass, job: int, waiting: Iterable[int]) -> list[int]:
    partners: list[int] = []
    for other in waiting:
        if other != job and group.offers[other] is not None:
            partners.append(other)
            if len(partners) == PARTNERS_MAX:
                break
    return partners


def _with_partners(
    group: PoolClass, room: int, lead: tuple[int, int], others: list[int], remaining: Sequence[int]
) -> Iterable[CandidateSession]:
    """Yield the session of the lead alone, then sessions with the partners that have the most value in its time."""
    lead_only = _cut(group, room, [lead], remaining)
    if lead_only is None:
        return
    yield lead_only
    sharing = group.pool.sharing
    free = group.pool.devices_per_session - lead[1]
    ranked: list[tuple[float, int, int]] = []
    for rank, other in enumerate(others):
        offer = group.offers[other]
        devices = offer.fewest if offer is not None else 0
        if offer is None or devices > free:
            continue
        gain = offer.worth * offer.steps_in(lead_only.length, devices, sharing, remaining[other])
        ranked.append((-gain / devices, rank, devices))
    ranked.sort()
    shares = [lead]
    for _, rank, devices in ranked:
        if devices <= free:
            shares.append((others[rank], devices))
            free -= devices
    if len(shares) == 1:
        return
    may_refill = len(others) >= len(shares)
    lengths = sorted({_need(group, share, remaining[share[0]], room) for share in shares}, reverse=True)
    for length in lengths if may_refill else lengths[:1]:
        shared = _cut(group, length, shares, remaining)
        if shared is not None:
            yield shared


def _need(group: PoolClass, share: tuple[int, int], remaining: int, room: int) -> int:
    offer = group.offers[share[0]]
    return min(room, offer.session_for(remaining, share[1], group.pool.sharing)) if offer is not None else 0


def _cut(
    group: PoolClass, room: int, shares: list[tuple[int, int]], remaining: Sequence[int]
) -> CandidateSession | None:
    """Return the session of ``shares`` (job, devices), cut to its longest lane and ``room``; None if useless."""
    sharing = group.pool.sharing if len(shares) > 1 else 1.0
    length = 0
    for job, devices in shares:
        offer = group.offers[job]
        if offer is not None:
            length = max(length, offer.session_for(remaining[job], devices, sharing))
    length = min(length, room)
    lanes: list[CandidateLane] = []
    total = 0.0
    for job, devices in shares:
        offer = group.offers[job]
        if offer is None:
            continue
        steps = offer.steps_in(length, devices, sharing, remaining[job])
        worthwhile = offer.terms.minimum * offer.speeds[devices - 1] * sharing - TOLERANCE
        too_short = offer.risk > 0 and length < offer.least
        if steps < remaining[job] and (steps < worthwhile - 1 or steps < 1 or too_short):
            if not lanes:
                return None
            continue
        lanes.append(CandidateLane(job, devices, steps))
        total += offer.worth * steps
    return CandidateSession(length, tuple(lanes), total / length)
