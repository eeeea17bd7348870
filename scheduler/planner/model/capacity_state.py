"""Capacity state: what one pool has left once certain sessions are planned. Answers as ``core.admission.room`` does.

A state leads to the states that follow from it by one more session, and keeps what it was asked: walks over schedules
plan the same sessions on the same pools again and again, and equal pools share their states. Calendar windows are
counted down; rolling and first-use quotas, which move with every session, are asked from the core. A session takes as
many places of its pool as it has devices, where sessions differ in that, and one place elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from scheduler.core.admission import Room
from scheduler.core.ledger import Charge, RunningTotal
from scheduler.core.quota import (
    FirstUseQuota,
    RollingQuota,
    charges_by_device,
    longest,
    longest_rolling,
    rolling_edges,
)
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.count import NEVER, CalendarCount
from scheduler.planner.model.pool_rules import PoolRules, live_ends

# Sessions that are booked ahead (1) or are so no longer (-1); or the state in which all of them have been started.
Ahead: TypeAlias = "tuple[int, Sequence[PoolUse]] | CapacityState"

# So many states of a pool are kept, so many more for each other one that shares them, and so many answers of each.
STATES_MAX = 1_000
STATES_MORE = 100
ANSWERS_MAX = 500


# What a session takes of a pool: its start, the end of its hold, its places.
PoolUse = tuple[int, int, int]


class _StateCache:
    """The states that a pool and those like it have in common."""

    __slots__ = ("booked", "first", "others", "rules", "states")

    def __init__(self, rules: PoolRules, planned: _PlannedSessions) -> None:
        self.rules = rules
        self.others = 0  # pools with the same rules and the same past
        self.states = 0  # that follow from others
        self.first = CapacityState(self, None, planned=planned)
        self.booked: dict[tuple[PoolUse, ...], CapacityState] = {
            (): self.first
        }  # on which nothing has been started yet


class _PlannedSessions:
    """All sessions of a state, and what they leave of calendar quotas; an instant stands there once for each place.

    ``begins`` and ``finishes`` are in order, each by itself; what has been started has begun long ago. ``ends`` are the
    ends of that alone.
    """

    __slots__ = ("begins", "charges", "counts", "edges", "ends", "finishes", "metered")

    def __init__(self, counts: list[CalendarCount], charges: list[Charge], edges: list[int], ends: list[int]) -> None:
        self.counts, self.charges, self.edges, self.ends = counts, charges, edges, ends
        self.begins = [0] * len(ends)
        self.finishes = sorted(ends)
        self.metered: dict[str, tuple[RunningTotal, list[int]]] = {}  # by quota

    def copy(self) -> _PlannedSessions:
        """Return a copy that can be written in without touching this one."""
        twin = object.__new__(_PlannedSessions)
        twin.counts, twin.charges = [count.copy() for count in self.counts], self.charges.copy()
        twin.edges, twin.ends, twin.begins, twin.finishes = self.edges, self.ends, self.begins, self.finishes
        twin.metered = {}
        return twin

    def start(self, rules: PoolRules, use: PoolUse) -> None:
        """Write a session down that has been started."""
        start, end, places = use
        self.count(rules, (use,), 1)
        self.ends = [other for other in self.ends if other > start]
        self.ends += [end] * places
        self.begins = [0] * places + self.begins
        self.finishes = sorted([*self.finishes, *[end] * places])

    def book(self, sessions: Sequence[PoolUse]) -> None:
        """Let these be the sessions that are yet to come, in place of all others."""
        self.begins, self.finishes = [0] * len(self.ends), self.ends.copy()
        for start, end, places in sessions:
            self.begins += [start] * places
            self.finishes += [end] * places
        self.finishes.sort()

    def count(self, rules: PoolRules, sessions: Sequence[PoolUse], sign: int) -> None:
        """Take off what sessions use of quotas, or put it back where ``sign`` is -1."""
        for use in sessions:
            for count in self.counts:
                count.take(*use, sign)
        if rules.flexible:
            for start, end, places in sessions:
                charge = Charge(start, end, held=True, devices=places)
                if sign > 0:
                    self.charges.append(charge)
                else:
                    self.charges.remove(charge)
            self.edges = rules.edges(self.charges)

    def full_until(self, instant: int, level: int) -> int:
        """Return until when at least ``level`` places are taken from ``instant`` on; itself if they are not.

        They are after the n-th beginning as long as the end number n - ``level`` + 1 has not come.
        """
        begins, finishes = self.begins, self.finishes
        while (index := bisect_right(begins, instant) - level) >= 0 and finishes[index] > instant:
            instant = finishes[index]
        return instant

    def next_full(self, instant: int, level: int) -> int:
        """Return from when on at least ``level`` places are taken, which they are not at ``instant``."""
        begins, finishes = self.begins, self.finishes
        for index in range(max(bisect_right(begins, instant), level - 1), len(begins)):
            if finishes[index - level + 1] > begins[index]:
                return begins[index]
        return NEVER


class CapacityState:
    """The room of a pool when all sessions that led here are planned on it; never changes.

    ``sessions`` are those that are booked ahead, in order.
    """

    __slots__ = (
        "_family",
        "_leftovers",
        "_planned",
        "_rooms",
        "_rules",
        "added",
        "ahead",
        "answers",
        "before",
        "next_states",
        "sessions",
    )  # fmt: skip

    def __init__(
        self,
        family: _StateCache,
        before: CapacityState | None,
        sessions: tuple[PoolUse, ...] = (),
        planned: _PlannedSessions | None = None,
    ) -> None:
        self._family, self._rules, self.sessions = family, family.rules, sessions
        # How it follows from the state before, until that is worked out: by a session that is started, or by some that
        # are booked ahead (1), are so no longer (-1), or have all been started on the way to another state.
        self.before = before
        self.added: PoolUse | None = None
        self.ahead: Ahead | None = None
        self._planned = planned
        self.next_states: dict[PoolUse, CapacityState] = {}
        self._rooms: dict[tuple[int, int], Room] = {}
        self.answers: dict[int, tuple[int, int, bool]] = {}
        self._leftovers: dict[tuple[int, int], int] = {}

    def share(self) -> CapacityState:
        """Return this state for one more pool."""
        self._family.others += 1
        return self

    def after(self, use: PoolUse) -> CapacityState:
        """Return the state with one more session, which is started."""
        state = self.next_states.get(use)
        if state is None:
            state = self.next_states[use] = CapacityState(self._family, self, self.sessions)
            state.added = use
            self._family.states += 1
        return state

    def with_booked(self, sessions: Sequence[PoolUse]) -> CapacityState:
        """Return the state with more sessions that are booked ahead."""
        return self._booked(tuple(sorted([*self.sessions, *sessions])), (1, sessions))

    def without_booked(self, sessions: Sequence[PoolUse]) -> CapacityState:
        """Return the state without some of the sessions that are booked ahead."""
        rest = list(self.sessions)
        for one in sessions:
            rest.remove(one)
        return self._booked(tuple(rest), (-1, sessions))

    def with_all_booked(self, after: CapacityState, started: Sequence[PoolUse]) -> CapacityState:
        """Return the state in which all is booked ahead that has been ``started`` on the way from here to ``after``."""
        return self._booked(tuple(sorted([*self.sessions, *started])), after)

    def _booked(self, sessions: tuple[PoolUse, ...], ahead: Ahead) -> CapacityState:
        if self._family.booked.get(self.sessions) is not self:  # some have been started, or it is forgotten
            return self._next_state(sessions, ahead)
        state = self._family.booked.get(sessions)
        if state is None:
            state = self._family.booked[sessions] = self._next_state(sessions, ahead)
            self._family.states += 1
        return state

    def _next_state(self, sessions: tuple[PoolUse, ...], ahead: Ahead) -> CapacityState:
        state = CapacityState(self._family, self, sessions)
        state.ahead = ahead
        return state

    def with_bounded_cache(self) -> CapacityState:
        """Return this state, and let go of what follows from the first when there are too many states."""
        family = self._family
        if family.states > STATES_MAX + STATES_MORE * family.others:
            family.first.next_states.clear()
            family.booked = {(): family.first}
            family.states = 0
        return self

    @property
    def planned(self) -> _PlannedSessions:
        """What is planned, worked out from the nearest state before that was asked."""
        if self._planned is None:
            self._planned = self._started() if self.ahead is None else self._all_booked(self.ahead)
            self.before = self.added = self.ahead = None
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

    def _all_booked(self, ahead: Ahead) -> _PlannedSessions:
        past = self.before.planned if self.before is not None else None
        if past is None:
            raise ValueError("only the first state follows from none")
        if isinstance(ahead, CapacityState):
            planned = ahead.planned.copy()  # whether a session is started or yet to come, it takes the same of quotas
            planned.ends = past.ends
        else:
            sign, sessions = ahead
            planned = past.copy()
            planned.count(self._rules, sessions, sign)
        planned.book(self.sessions)
        return planned

    def room(self, start: int, places: int = 1) -> Room:
        """Return the longest session that may be planned from ``start``, the pool's overrun already set aside."""
        room = self._rooms.get((start, places))
        if room is None:
            if len(self._rooms) >= ANSWERS_MAX:
                self._rooms.clear()
            room = self._rooms[start, places] = Room(*self._room(start, places))
        return room

    def room_and_change(self, now: int) -> tuple[int, int, bool]:
        """Return what a walk asks: the seconds of :meth:`room` for as few places as can be, and :meth:`next_change`."""
        answer = self.answers.get(now)
        if answer is None:
            if len(self.answers) >= ANSWERS_MAX:
                self.answers.clear()
            change, shut = self.next_change(now)
            answer = self.answers[now] = 0 if shut else self._room(now, self._rules.fewest)[0], change, shut
        return answer

    def next_change(self, after: int) -> tuple[int, bool]:
        """Return the first instant after ``after`` with perhaps more room, and whether there is none before."""
        rules, planned = self._rules, self._planned or self.planned
        closes, openings, counts, places = rules.closes, rules.openings, planned.counts, rules.places
        shut = after
        while True:
            # As long as one thing leaves no room at all, whatever else changes makes none.
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
        """Return what is free in all windows at ``start`` if it can be used before they end, else NEVER."""
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
        """Return the seconds and what limits them."""
        rules, planned = self._rules, self._planned or self.planned
        index = bisect_right(rules.closes, start)  # the opening at ``start``, or else the next one
        if index == len(rules.openings) or rules.openings[index][0] > start:
            return 0, "opening hours"
        level = rules.places - places + 1  # where so many are taken there is none for it
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
        """Return what ``core.quota.longest`` does, or less where a certain use among planned ones would allow more.

        What is planned may begin at any time it is held for, so that spans that open with it bind as rolling ones do.
        Only the last span that a certain use opened is known: what was used in it does not count after its end.
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
            # What was over before any span that can still be asked about began is nothing to any.
            horizon = max(closes, rules.start - quota.span_seconds)
            later = [
                charge if charge.start >= closes else replace(charge, start=closes)
                for charge in charges
                if charge.end > horizon
            ]
            total = RunningTotal(later, by_device=charges_by_device(quota))
            planned.metered[quota.name] = total, rolling_edges(later, quota.span_seconds)
        metered, edges = planned.metered[quota.name]
        rest, span, pace = cap - (begin - start), quota.span_seconds, places if charges_by_device(quota) else 1
        return begin - start + longest_rolling(metered, edges, begin, rest, span, quota.limit_seconds, pace)

    def until_booked(self, start: int) -> int:
        """Return how long a session from ``start`` leaves all booked ones their places."""
        places = self._rules.places
        if self.planned.full_until(start, places) > start:
            return 0
        full_from = self.planned.next_full(start, places)
        return full_from if full_from == NEVER else full_from - start


def first_state(view: PoolView, start: int, until: int) -> CapacityState:
    """Return the state of a pool on which nothing is planned yet."""
    rules = PoolRules(view, start, until)
    ends = [end for end in live_ends(view) if end > start]
    return _StateCache(rules, _PlannedSessions(rules.counts, list(view.charges), rules.edges(view.charges), ends)).first
