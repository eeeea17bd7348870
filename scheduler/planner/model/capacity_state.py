"""Capacity state: what one pool has left once certain sessions are planned. Answers as ``core.admission.room`` does.

A state leads to the states that follow from it by one more session, and keeps what it was asked: walks over schedules
plan the same sessions on the same pools again and again, and equal pools share their states. Calendar windows are
counted down; rolling and first-use quotas, which move with every session, are asked from the core. A session takes as
many places of its pool as it has devices, where sessions differ in that, and one place elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

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
from scheduler.planner.model.count import NEVER
from scheduler.planner.model.pool_rules import Rules, live_ends

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scheduler.core.snapshot import PoolView
    from scheduler.planner.model.count import Count

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
    """All sessions of a state, and what they leave of calendar quotas; an instant stands there once for each place."""

    __slots__ = ("begins", "charges", "counts", "edges", "ends", "finishes", "levels", "marks", "metered")

    def __init__(self, counts: list[Count], charges: list[Charge], edges: list[int], ends: list[int]) -> None:
        self.counts, self.charges, self.edges, self.ends = counts, charges, edges, ends
        # Of the sessions yet to come that are booked; each list is in order by itself.
        self.begins: list[int] = []
        self.finishes: list[int] = []
        # When the number of places that they take changes; the number before, and from each of these instants on.
        self.marks: list[int] = []
        self.levels = [0]
        self.metered: dict[str, tuple[RunningTotal, list[int]]] = {}  # by quota

    def copy(self) -> _Sessions:
        """Return a copy that can be written in without touching this one."""
        twin = _Sessions([count.copy() for count in self.counts], self.charges.copy(), self.edges, self.ends)
        twin.begins, twin.finishes = self.begins, self.finishes
        twin.marks, twin.levels = self.marks, self.levels
        return twin

    def book(self, sessions: Sequence[Taken]) -> None:
        """Let these be the sessions that are yet to come, in place of all others."""
        self.begins = sorted([start for start, _, places in sessions for _ in range(places)])
        self.finishes = sorted([held for _, held, places in sessions for _ in range(places)])
        level = 0
        self.marks, self.levels = [], [0]
        for instant, change in sorted([*((begin, 1) for begin in self.begins), *((end, -1) for end in self.finishes)]):
            level += change
            if self.marks and self.marks[-1] == instant:
                self.levels[-1] = level
            else:
                self.marks.append(instant)
                self.levels.append(level)

    def add(self, rules: Rules, taken: Taken) -> None:
        """Write a session down that has been started."""
        start, held, places = taken
        self.count(rules, (taken,), 1)
        self.ends = [other for other in self.ends if other > start]
        self.ends += [held] * places

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


class CapacityState:
    """The room of a pool when all sessions that led here are planned on it; never changes.

    ``sessions`` are those that are booked ahead, in order.
    """

    __slots__ = (
        "_asked", "_changes", "_family", "_lefts", "_planned", "_rooms", "_rules",
        "added", "ahead", "before", "following", "sessions",
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
        self._rooms: dict[int, int] = {}
        self._changes: dict[int, tuple[int, bool]] = {}
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
            found.add(self._rules, taken)
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

    def seconds(self, start: int) -> int:
        """Return the seconds of :meth:`room` for a session that takes as few places as can be."""
        found = self._rooms.get(start)
        if found is None:
            if len(self._rooms) >= ANSWERS_MAX:
                self._rooms.clear()
            found = self._rooms[start] = self._room(start, self._rules.fewest)[0]
        return found

    def next_change(self, after: int) -> tuple[int, bool]:
        """Return the first instant after ``after`` with perhaps more room, and whether there is none before."""
        found = self._changes.get(after)
        if found is None:
            if len(self._changes) >= ANSWERS_MAX:
                self._changes.clear()
            found = self._changes[after] = self._next_change(after)
        return found

    def left_alone(self, start: int, places: int = 1) -> int:
        """Return what is free in all windows at ``start`` if it can be used before they end, else NEVER."""
        found = self._lefts.get((start, places))
        if found is None:
            if len(self._lefts) >= ANSWERS_MAX:
                self._lefts.clear()
            found = min((count.left_alone(start, places) for count in self.planned.counts), default=NEVER)
            self._lefts[start, places] = found
        return found

    def _room(self, start: int, places: int) -> tuple[int, str]:
        """Return the seconds and what limits them."""
        rules, planned = self._rules, self.planned
        overrun = rules.pool.overrun_seconds
        index = bisect_right(rules.closes, start)  # the opening at ``start``, or else the next one
        if index == len(rules.openings) or rules.openings[index][0] > start:
            return 0, "opening hours"
        others = rules.places - places  # so many may be taken
        if len(planned.ends) > others and self._running(start) > others:
            return 0, "concurrency"
        seconds, limited_by = rules.pool.session_cap_seconds + overrun, "session cap"
        if rules.closes[index] - start < seconds:
            seconds, limited_by = rules.closes[index] - start, "opening hours"
        if planned.begins:
            seconds = min(seconds, self.until_booked(start, places))
        for count in planned.counts:
            found = count.longest(start, seconds, places)
            if found < seconds:
                seconds, limited_by = found, count.name
        for quota in rules.flexible:
            found = self._longest(quota, start, seconds, places)
            if found < seconds:
                seconds, limited_by = found, quota.name
        return max(0, seconds - overrun), limited_by

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

    def until_booked(self, start: int, places: int = 1) -> int:
        """Return how long a session from ``start`` leaves all booked ones their places."""
        others = self._rules.places - places
        marks, levels = self.planned.marks, self.planned.levels
        index = bisect_right(marks, start)
        running = self._running(start)
        if levels[index] + running > others:
            return 0
        for number in range(index, len(marks)):
            if levels[number + 1] > others or (running and levels[number + 1] + self._running(marks[number]) > others):
                return marks[number] - start
        return NEVER

    def _taken(self, instant: int) -> int:
        """Return how many places sessions take at ``instant``, those that have been started and those booked ahead."""
        planned = self.planned
        return planned.levels[bisect_right(planned.marks, instant)] + self._running(instant)

    def _running(self, instant: int) -> int:
        """Return how many places the sessions that have been started still take at ``instant``."""
        ends = self.planned.ends
        return sum(map(instant.__lt__, ends)) if ends else 0

    def _next_change(self, after: int) -> tuple[int, bool]:
        shut, opens = after, self._shut_until(after)
        while shut < opens < NEVER:
            shut, opens = opens, self._shut_until(opens)
        if opens > after:
            return opens, True
        rules, planned = self._rules, self.planned
        index = bisect_right(rules.closes, after)
        instants = [end for end in planned.ends if end > after]
        instants += planned.finishes[bisect_right(planned.finishes, after) :][:1]
        instants += [begins for begins, _ in rules.openings[index + 1 : index + 2]]
        instants += [count.next_start(after) for count in planned.counts]
        instants += planned.edges[bisect_right(planned.edges, after) :][:1]
        return min(instants, default=NEVER), False

    def _shut_until(self, after: int) -> int:
        """Return the first instant from ``after`` on before which one thing leaves no room at all, whatever changes."""
        rules, planned = self._rules, self.planned
        index = bisect_right(rules.closes, after)
        if index == len(rules.openings):
            return NEVER
        found = max(after, rules.openings[index][0])
        for count in planned.counts:
            found = max(found, count.unspent_from(after))
        return max(found, self._vacancy(after)) if self._taken(after) >= rules.places else found

    def _vacancy(self, after: int) -> int:
        """Return the next instant at which a session ends and no booked one takes its place at once."""
        most, ends = self._rules.places, [end for end in self.planned.ends if end > after]
        marks, levels = self.planned.marks, self.planned.levels
        if not ends:
            for number in range(bisect_right(marks, after), len(marks)):
                if levels[number + 1] < most:
                    return marks[number]
            return NEVER
        ends = sorted({*ends, *marks[bisect_right(marks, after) :]})
        return next((end for end in ends if self._taken(end) < most), NEVER)


def first_state(view: PoolView, start: int, until: int) -> CapacityState:
    """Return the state of a pool on which nothing is planned yet."""
    rules = Rules(view, start, until)
    ends = [end for end in live_ends(view) if end > start]
    return _Family(rules, _Sessions(rules.counts, list(view.charges), rules.edges(view.charges), ends)).first
