"""Capacity state: the capacity that is left on one pool after a set of planned sessions.

It gives the same answers as ``core.admission.room`` and caches them, because the search plans the same sessions on the
same pools many times. A state links to the states that follow from it by one more session; equal pools share states.
Calendar windows are counted down. Rolling and first-use quotas depend on every session and are computed by the core.
On pools with ``device_counts`` a session uses one place per device, on other pools one place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from jobs.nouns.quota import FirstUseQuota, RollingQuota, charges_by_device
from scheduler.core.admission import Room
from scheduler.core.ledger import Charge, RunningTotal
from scheduler.core.quota import longest, longest_rolling, rolling_edges
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.count import NEVER, CalendarCount
from scheduler.planner.model.pool_rules import PoolRules, live_ends

# How the booked sessions differ from the state before: (1, added) or (-1, removed), or the state that started them all.
BookingChange: TypeAlias = "tuple[int, Sequence[PoolUse]] | CapacityState"

# Cache sizes: states per pool, further states for each pool that shares them, answers per state.
STATES_MAX = 1_000
STATES_MORE = 100
ANSWERS_MAX = 500

# What a session uses of a pool: its start, the end of its quota hold, its places.
PoolUse = tuple[int, int, int]


class _StateCache:
    """The states shared by equal pools."""

    __slots__ = ("booked", "first", "others", "rules", "states")

    def __init__(self, rules: PoolRules, planned: _PlannedSessions) -> None:
        self.rules = rules
        self.others = 0  # further pools with the same rules, charges and live runs
        self.states = 0  # cached states, the first excluded
        self.first = CapacityState(self, None, planned=planned)
        # States with booked sessions only, by these sessions.
        self.booked: dict[tuple[PoolUse, ...], CapacityState] = {(): self.first}


class _PlannedSessions:
    """All sessions of a state, and the calendar quota they leave. An instant is listed once per place in use.

    ``begins`` and ``finishes`` are sorted independently; a started session has begin 0. ``ends`` are those of started
    sessions only.
    """

    __slots__ = ("begins", "charges", "counts", "edges", "ends", "finishes", "metered")

    def __init__(self, counts: list[CalendarCount], charges: list[Charge], edges: list[int], ends: list[int]) -> None:
        self.counts, self.charges, self.edges, self.ends = counts, charges, edges, ends
        self.begins = [0] * len(ends)
        self.finishes = sorted(ends)
        self.metered: dict[str, tuple[RunningTotal, list[int]]] = {}  # by quota

    def copy(self) -> _PlannedSessions:
        """Return an independent copy."""
        twin = object.__new__(_PlannedSessions)
        twin.counts, twin.charges = [count.copy() for count in self.counts], self.charges.copy()
        twin.edges, twin.ends, twin.begins, twin.finishes = self.edges, self.ends, self.begins, self.finishes
        twin.metered = {}
        return twin

    def start(self, rules: PoolRules, use: PoolUse) -> None:
        """Add a started session."""
        start, end, places = use
        self.count(rules, (use,), 1)
        self.ends = [other for other in self.ends if other > start]
        self.ends += [end] * places
        self.begins = [0] * places + self.begins
        self.finishes = sorted([*self.finishes, *[end] * places])

    def book(self, sessions: Sequence[PoolUse]) -> None:
        """Replace the booked sessions by ``sessions``."""
        self.begins, self.finishes = [0] * len(self.ends), self.ends.copy()
        for start, end, places in sessions:
            self.begins += [start] * places
            self.finishes += [end] * places
        self.finishes.sort()

    def count(self, rules: PoolRules, sessions: Sequence[PoolUse], sign: int) -> None:
        """Subtract the sessions from the quotas; ``sign`` -1 adds them back."""
        for use in sessions:
            for count in self.counts:
                count.subtract(*use, sign)
        if rules.flexible:
            for start, end, places in sessions:
                charge = Charge(start, end, held=True, devices=places)
                if sign > 0:
                    self.charges.append(charge)
                else:
                    self.charges.remove(charge)
            self.edges = rules.edges(self.charges)

    def full_until(self, instant: int, level: int) -> int:
        """Return the end of the stretch from ``instant`` on in which at least ``level`` places are in use.

        Return ``instant`` if fewer are in use. After begin number n that many are in use until end n - ``level`` + 1.
        """
        begins, finishes = self.begins, self.finishes
        while (index := bisect_right(begins, instant) - level) >= 0 and finishes[index] > instant:
            instant = finishes[index]
        return instant

    def next_full(self, instant: int, level: int) -> int:
        """Return the first instant after ``instant`` at which at least ``level`` places are in use, else NEVER."""
        begins, finishes = self.begins, self.finishes
        for index in range(max(bisect_right(begins, instant), level - 1), len(begins)):
            if finishes[index - level + 1] > begins[index]:
                return begins[index]
        return NEVER


class CapacityState:
    """The capacity of a pool after a set of sessions. Only its caches change; ``sessions`` are booked, sorted."""

    __slots__ = (
        "_changes", "_family", "_leftovers", "_planned", "_rooms", "_rules",
        "added", "before", "change", "next_states", "seconds", "sessions",
    )  # fmt: skip

    def __init__(
        self,
        family: _StateCache,
        before: CapacityState | None,
        sessions: tuple[PoolUse, ...] = (),
        planned: _PlannedSessions | None = None,
    ) -> None:
        self._family, self._rules, self.sessions = family, family.rules, sessions
        # ``planned`` is computed on demand from the state ``before``, by one started session (``added``) or ``change``.
        self.before = before
        self.added: PoolUse | None = None
        self.change: BookingChange | None = None
        self._planned = planned
        self.next_states: dict[PoolUse, CapacityState] = {}
        self._rooms: dict[tuple[int, int], Room] = {}
        self.seconds: dict[int, int] = {}  # of the longest session with the fewest places, by its start
        self._changes: dict[int, tuple[int, bool]] = {}
        self._leftovers: dict[tuple[int, int], int] = {}

    def share(self) -> CapacityState:
        """Return this state, for one more pool that is equal."""
        self._family.others += 1
        return self

    def after(self, use: PoolUse) -> CapacityState:
        """Return the state with one more started session."""
        state = self.next_states.get(use)
        if state is None:
            state = self.next_states[use] = CapacityState(self._family, self, self.sessions)
            state.added = use
            self._family.states += 1
        return state

    def with_booked(self, sessions: Sequence[PoolUse]) -> CapacityState:
        """Return the state with more booked sessions."""
        return self._booked(tuple(sorted([*self.sessions, *sessions])), (1, sessions))

    def without_booked(self, sessions: Sequence[PoolUse]) -> CapacityState:
        """Return the state without some of its booked sessions; raises ValueError for one that is not booked."""
        remaining = list(self.sessions)
        for use in sessions:
            remaining.remove(use)
        return self._booked(tuple(remaining), (-1, sessions))

    def with_all_booked(self, after: CapacityState, started: Sequence[PoolUse]) -> CapacityState:
        """Return this state with the sessions booked that were ``started`` between it and ``after``."""
        return self._booked(tuple(sorted([*self.sessions, *started])), after)

    def _booked(self, sessions: tuple[PoolUse, ...], change: BookingChange) -> CapacityState:
        if self._family.booked.get(self.sessions) is not self:  # it has started sessions, or was evicted
            return self._next_state(sessions, change)
        state = self._family.booked.get(sessions)
        if state is None:
            state = self._family.booked[sessions] = self._next_state(sessions, change)
            self._family.states += 1
        return state

    def _next_state(self, sessions: tuple[PoolUse, ...], change: BookingChange) -> CapacityState:
        state = CapacityState(self._family, self, sessions)
        state.change = change
        return state

    def with_bounded_cache(self) -> CapacityState:
        """Return this state; clear the cache first if it holds too many states."""
        family = self._family
        if family.states > STATES_MAX + STATES_MORE * family.others:
            family.first.next_states.clear()
            family.booked = {(): family.first}
            family.states = 0
        return self

    @property
    def planned(self) -> _PlannedSessions:
        """The planned sessions, computed from the nearest earlier state that has them."""
        if self._planned is None:
            self._planned = self._started() if self.change is None else self._all_booked(self.change)
            self.before = self.added = self.change = None
        return self._planned

    def _started(self) -> _PlannedSessions:
        added: list[PoolUse] = []
        state = self
        while state.added is not None and state.before is not None:
            added.append(state.added)
            state = state.before
        sessions = state.planned.copy()
        for use in reversed(added):
            sessions.start(self._rules, use)
        return sessions

    def _all_booked(self, change: BookingChange) -> _PlannedSessions:
        past = self.before.planned if self.before is not None else None
        if past is None:
            raise ValueError("only the first state follows from none")
        if isinstance(change, CapacityState):
            planned = change.planned.copy()  # a started and a booked session use the same quota
            planned.ends = past.ends
        else:
            sign, sessions = change
            planned = past.copy()
            planned.count(self._rules, sessions, sign)
        planned.book(self.sessions)
        return planned

    def room(self, start: int, places: int = 1) -> Room:
        """Return the longest session that may start at ``start``, the pool's overrun already subtracted."""
        room = self._rooms.get((start, places))
        if room is None:
            if len(self._rooms) >= ANSWERS_MAX:
                self._rooms.clear()
            room = self._rooms[start, places] = Room(*self._room(start, places))
        return room

    def seconds_at(self, start: int) -> int:
        """Return the seconds of :meth:`room` for the fewest places."""
        seconds = self.seconds.get(start)
        if seconds is None:
            if len(self.seconds) >= ANSWERS_MAX:
                self.seconds.clear()
            seconds = self.seconds[start] = self._room(start, self._rules.fewest)[0]
        return seconds

    def next_change(self, after: int) -> tuple[int, bool]:
        """Return the first instant after ``after`` that may have more room, and whether there is no room before it."""
        change = self._changes.get(after)
        if change is None:
            if len(self._changes) >= ANSWERS_MAX:
                self._changes.clear()
            change = self._changes[after] = self._next_change(after)
        return change

    def _next_change(self, after: int) -> tuple[int, bool]:
        rules, planned = self._rules, self._planned or self.planned
        closes, openings, counts, places = rules.closes, rules.openings, planned.counts, rules.places
        shut = after
        while True:
            # While one limit leaves no room, a change of another limit cannot make room.
            index, instant = bisect_right(closes, shut), shut
            if index == len(closes):
                return NEVER, True
            full = bisect_right(planned.begins, instant) - places
            if full >= 0 and planned.finishes[full] > instant:
                shut = planned.full_until(instant, places)
            shut = max(shut, openings[index][0])
            for count in counts:
                if (unspent := count.unspent_from(instant)) > shut:
                    shut = unspent
            if shut == instant:
                break
            if shut >= NEVER:
                return NEVER, True
        if shut > after:
            return shut, True
        change = NEVER
        for instants in (rules.begins, planned.finishes, planned.edges):
            index = bisect_right(instants, after)
            if index < len(instants) and instants[index] < change:
                change = instants[index]
        return change, False

    def leftover(self, start: int, places: int = 1) -> int:
        """Return the least quota, in seconds, left in a window at ``start`` if it fits before the end, else NEVER."""
        free = self._leftovers.get((start, places))
        if free is None:
            if len(self._leftovers) >= ANSWERS_MAX:
                self._leftovers.clear()
            free = NEVER
            for count in self.planned.counts:
                free = min(free, count.leftover(start, places))
            self._leftovers[start, places] = free
        return free

    def _room(self, start: int, places: int) -> tuple[int, str]:
        """Return the seconds of the longest session, and the name of the limit that binds."""
        rules, planned = self._rules, self._planned or self.planned
        index = bisect_right(rules.closes, start)  # the opening at ``start`` or the next one
        if index == len(rules.openings) or rules.openings[index][0] > start:
            return 0, "opening hours"
        level = rules.places - places + 1  # with this many places in use the session does not fit
        begun = bisect_right(planned.begins, start)
        if begun >= level and planned.finishes[begun - level] > start:
            running = sum(map(start.__lt__, planned.ends))
            return 0, "concurrency" if running >= level else "session cap"
        seconds, limited_by = rules.held_at_most, "session cap"
        if rules.closes[index] - start < seconds:
            seconds, limited_by = rules.closes[index] - start, "opening hours"
        if begun < len(planned.begins) and (full := planned.next_full(start, level) - start) < seconds:
            seconds = full
        for count in planned.counts:
            allowed = count.longest(start, seconds, places)
            if allowed < seconds:
                seconds, limited_by = allowed, count.name
        for quota in rules.flexible:
            allowed = self._longest(quota, start, seconds, places)
            if allowed < seconds:
                seconds, limited_by = allowed, quota.name
        seconds -= rules.overrun
        return max(0, seconds), limited_by

    def _longest(self, quota: RollingQuota | FirstUseQuota, start: int, cap: int, places: int) -> int:
        """Return the seconds that ``core.quota.longest`` allows, or fewer.

        A planned session may begin at any time of its hold, so the span that it opens is treated as a rolling span.
        Only the last span opened by a certain charge is exact: its charges do not count after its end.
        """
        rules, planned = self._rules, self.planned
        closes, charges = rules.closed[quota.name], planned.charges
        if closes is None:
            return longest(quota, charges, start, cap, rules.view.observed, devices=places)
        opened = closes - quota.span_seconds
        if start < closes:
            free = quota.limit_seconds - sum(charge.within(opened, closes) for charge in charges)
            if free < min(cap, closes - start):
                return max(0, free)
            if cap <= closes - start:
                return cap
        begin = max(start, closes)
        if quota.name not in planned.metered:
            # Charges that ended before the earliest span that is still open cannot affect any span; drop them.
            earliest = max(closes, rules.start - quota.span_seconds)
            later = [c if c.start >= closes else replace(c, start=closes) for c in charges if c.end > earliest]
            total = RunningTotal(later, by_device=charges_by_device(quota))
            planned.metered[quota.name] = total, rolling_edges(later, quota.span_seconds)
        metered, edges = planned.metered[quota.name]
        cap_left, span, pace = cap - (begin - start), quota.span_seconds, places if charges_by_device(quota) else 1
        return begin - start + longest_rolling(metered, edges, begin, cap_left, span, quota.limit_seconds, pace)

    def until_booked(self, start: int) -> int:
        """Return the seconds from ``start`` for which a session leaves every booked session its place."""
        places = self._rules.places
        if self.planned.full_until(start, places) > start:
            return 0
        full_from = self.planned.next_full(start, places)
        return full_from if full_from == NEVER else full_from - start


def first_state(view: PoolView, start: int, until: int) -> CapacityState:
    """Return the state of a pool without planned sessions."""
    rules = PoolRules(view, start, until)
    ends = [end for end in live_ends(view) if end > start]
    return _StateCache(rules, _PlannedSessions(rules.counts, list(view.charges), rules.edges(view.charges), ends)).first
