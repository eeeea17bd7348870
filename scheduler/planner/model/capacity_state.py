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
from scheduler.planner.model.count import NEVER, Count
from scheduler.planner.model.pool_rules import Rules, live_ends

# Sessions that are booked ahead (1) or are so no longer (-1); or the state in which all of them have been started.
Ahead: TypeAlias = "tuple[int, Sequence[Taken]] | CapacityState"

# So many states of a pool are kept, so many more for each other one that shares them, and so many answers of each.
STATES_MAX = 1_000
STATES_MORE = 100
ANSWERS_MAX = 500


# What a session takes of a pool: its start, the end of its hold, its places.
Taken = tuple[int, int, int]


class _Family:
    """The states that a pool and those like it have in common."""

    __slots__ = ("booked", "first", "others", "rules", "states")

    def __init__(self, rules: Rules, planned: _Sessions) -> None:
        self.rules = rules
        self.others = 0  # pools with the same rules and the same past
        self.states = 0  # that follow from others
        self.first = CapacityState(self, None, planned=planned)
        self.booked: dict[tuple[Taken, ...], CapacityState] = {(): self.first}  # on which nothing has been started yet


class _Sessions:
    """All sessions of a state, and what they leave of calendar quotas; an instant stands there once for each place.

    ``begins`` and ``finishes`` are in order, each by itself; what has been started has begun long ago. ``ends`` are the
    ends of that alone.
    """

    __slots__ = ("begins", "charges", "counts", "edges", "ends", "finishes", "metered")

    def __init__(self, counts: list[Count], charges: list[Charge], edges: list[int], ends: list[int]) -> None:
        self.counts, self.charges, self.edges, self.ends = counts, charges, edges, ends
        self.begins = [0] * len(ends)
        self.finishes = sorted(ends)
        self.metered: dict[str, tuple[RunningTotal, list[int]]] = {}  # by quota

    def copy(self) -> _Sessions:
        """Return a copy that can be written in without touching this one."""
        twin = object.__new__(_Sessions)
        twin.counts, twin.charges = [count.copy() for count in self.counts], self.charges.copy()
        twin.edges, twin.ends, twin.begins, twin.finishes = self.edges, self.ends, self.begins, self.finishes
        twin.metered = {}
        return twin

    def start(self, rules: Rules, taken: Taken) -> None:
        """Write a session down that has been started."""
        start, held, places = taken
        self.count(rules, (taken,), 1)
        self.ends = [other for other in self.ends if other > start]
        self.ends += [held] * places
        self.begins = [0] * places + self.begins
        self.finishes = sorted([*self.finishes, *[held] * places])

    def book(self, sessions: Sequence[Taken]) -> None:
        """Let these be the sessions that are yet to come, in place of all others."""
        self.begins, self.finishes = [0] * len(self.ends), self.ends.copy()
        for start, held, places in sessions:
            self.begins += [start] * places
            self.finishes += [held] * places
        self.finishes.sort()

    def count(self, rules: Rules, sessions: Sequence[Taken], sign: int) -> None:
        """Take off what sessions use of quotas, or put it back where ``sign`` is -1."""
        for taken in sessions:
            for count in self.counts:
                count.take(*taken, sign)
        if rules.flexible:
            for start, held, places in sessions:
                charge = Charge(start, held, held=True, devices=places)
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
        "_asked", "_family", "_lefts", "_planned", "_rules",
        "added", "ahead", "before", "following", "looks", "sessions",
    )  # fmt: skip

    def __init__(
        self,
        family: _Family,
        before: CapacityState | None,
        sessions: tuple[Taken, ...] = (),
        planned: _Sessions | None = None,
    ) -> None:
        self._family, self._rules, self.sessions = family, family.rules, sessions
        # How it follows from the state before, until that is worked out: by a session that is started, or by some that
        # are booked ahead (1), are so no longer (-1), or have all been started on the way to another state.
        self.before = before
        self.added: Taken | None = None
        self.ahead: Ahead | None = None
        self._planned = planned
        self.following: dict[Taken, CapacityState] = {}
        self._asked: dict[tuple[int, int], Room] = {}
        self.looks: dict[int, tuple[int, int, bool]] = {}
        self._lefts: dict[tuple[int, int], int] = {}

    def share(self) -> CapacityState:
        """Return this state for one more pool."""
        self._family.others += 1
        return self

    def after(self, taken: Taken) -> CapacityState:
        """Return the state with one more session, which is started."""
        found = self.following.get(taken)
        if found is None:
            found = self.following[taken] = CapacityState(self._family, self, self.sessions)
            found.added = taken
            self._family.states += 1
        return found

    def more(self, sessions: Sequence[Taken]) -> CapacityState:
        """Return the state with more sessions that are booked ahead."""
        return self._booked(tuple(sorted([*self.sessions, *sessions])), (1, sessions))

    def less(self, sessions: Sequence[Taken]) -> CapacityState:
        """Return the state without some of the sessions that are booked ahead."""
        left = list(self.sessions)
        for one in sessions:
            left.remove(one)
        return self._booked(tuple(left), (-1, sessions))

    def all_booked(self, after: CapacityState, started: Sequence[Taken]) -> CapacityState:
        """Return the state in which all is booked ahead that has been ``started`` on the way from here to ``after``."""
        return self._booked(tuple(sorted([*self.sessions, *started])), after)

    def _booked(self, sessions: tuple[Taken, ...], ahead: Ahead) -> CapacityState:
        if self._family.booked.get(self.sessions) is not self:  # some have been started, or it is forgotten
            return self._follows(sessions, ahead)
        found = self._family.booked.get(sessions)
        if found is None:
            found = self._family.booked[sessions] = self._follows(sessions, ahead)
            self._family.states += 1
        return found

    def _follows(self, sessions: tuple[Taken, ...], ahead: Ahead) -> CapacityState:
        found = CapacityState(self._family, self, sessions)
        found.ahead = ahead
        return found

    def opened(self) -> CapacityState:
        """Return this state, and let go of what follows from the first when there are too many states."""
        family = self._family
        if family.states > STATES_MAX + STATES_MORE * family.others:
            family.first.following.clear()
            family.booked = {(): family.first}
            family.states = 0
        return self

    @property
    def planned(self) -> _Sessions:
        """What is planned, worked out from the nearest state before that was asked."""
        if self._planned is None:
            self._planned = self._started() if self.ahead is None else self._all_booked(self.ahead)
            self.before = self.added = self.ahead = None
        return self._planned

    def _started(self) -> _Sessions:
        added: list[Taken] = []
        state = self
        while state.added is not None and state.before is not None:
            added.append(state.added)
            state = state.before
        found = state.planned.copy()
        for taken in reversed(added):
            found.start(self._rules, taken)
        return found

    def _all_booked(self, ahead: Ahead) -> _Sessions:
        past = self.before.planned if self.before is not None else None
        if past is None:
            raise ValueError("only the first state follows from none")
        if isinstance(ahead, CapacityState):
            found = ahead.planned.copy()  # whether a session is started or yet to come, it takes the same of quotas
            found.ends = past.ends
        else:
            sign, sessions = ahead
            found = past.copy()
            found.count(self._rules, sessions, sign)
        found.book(self.sessions)
        return found

    def room(self, start: int, places: int = 1) -> Room:
        """Return the longest session that may be planned from ``start``, the pool's overrun already set aside."""
        found = self._asked.get((start, places))
        if found is None:
            if len(self._asked) >= ANSWERS_MAX:
                self._asked.clear()
            found = self._asked[start, places] = Room(*self._room(start, places))
        return found

    def look(self, now: int) -> tuple[int, int, bool]:
        """Return what a walk asks: the seconds of :meth:`room` for as few places as can be, and :meth:`next_change`."""
        found = self.looks.get(now)
        if found is None:
            if len(self.looks) >= ANSWERS_MAX:
                self.looks.clear()
            change, shut = self.next_change(now)
            found = self.looks[now] = 0 if shut else self._room(now, self._rules.fewest)[0], change, shut
        return found

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
        for known in (rules.begins, planned.finishes, planned.edges):
            index = bisect_right(known, after)
            if index < len(known) and known[index] < change:
                change = known[index]
        return change, False

    def left_alone(self, start: int, places: int = 1) -> int:
        """Return what is free in all windows at ``start`` if it can be used before they end, else NEVER."""
        found = self._lefts.get((start, places))
        if found is None:
            if len(self._lefts) >= ANSWERS_MAX:
                self._lefts.clear()
            found = NEVER
            for count in self.planned.counts:
                found = min(found, count.left_alone(start, places))
            self._lefts[start, places] = found
        return found

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
            found = count.longest(start, seconds, places)
            if found < seconds:
                seconds, limited_by = found, count.name
        for quota in rules.flexible:
            found = self._longest(quota, start, seconds, places)
            if found < seconds:
                seconds, limited_by = found, quota.name
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
            free = quota.limit_seconds - sum(found.within(opened, closes) for found in charges)
            if free < min(cap, closes - start):
                return max(0, free)
            if cap <= closes - start:
                return cap
        begin = max(start, closes)
        if quota.name not in planned.metered:
            # What was over before any span that can still be asked about began is nothing to any.
            known = max(closes, rules.start - quota.span_seconds)
            later = [
                found if found.start >= closes else replace(found, start=closes)
                for found in charges
                if found.end > known
            ]
            total = RunningTotal(later, by_device=charges_by_device(quota))
            planned.metered[quota.name] = total, rolling_edges(later, quota.span_seconds)
        metered, edges = planned.metered[quota.name]
        left, span, pace = cap - (begin - start), quota.span_seconds, places if charges_by_device(quota) else 1
        return begin - start + longest_rolling(metered, edges, begin, left, span, quota.limit_seconds, pace)

    def until_booked(self, start: int) -> int:
        """Return how long a session from ``start`` leaves all booked ones their places."""
        places = self._rules.places
        if self.planned.full_until(start, places) > start:
            return 0
        found = self.planned.next_full(start, places)
        return found if found == NEVER else found - start


def first_state(view: PoolView, start: int, until: int) -> CapacityState:
    """Return the state of a pool on which nothing is planned yet."""
    rules = Rules(view, start, until)
    ends = [end for end in live_ends(view) if end > start]
    return _Family(rules, _Sessions(rules.counts, list(view.charges), rules.edges(view.charges), ends)).first
