"""Capacity state: what one pool has left once certain sessions are planned. Answers as ``core.admission.room`` does.

A state leads to the states that follow from it by one more session, and keeps what it was asked: walks over schedules
plan the same sessions on the same pools again and again, and equal pools share their states. Calendar windows are
counted down; rolling and first-use quotas, which move with every session, are asked from the core. A session takes as
many places of its pool as it has devices, where sessions differ in that, and one place elsewhere.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.core.admission import Room
from scheduler.core.ledger import Charge, RunningTotal
from scheduler.core.quota import (
    CalendarQuota,
    FirstUseQuota,
    MoneyQuota,
    RollingQuota,
    charges_by_device,
    longest,
    longest_rolling,
    rolling_edges,
)
from scheduler.planner.model.count import NEVER, Count

if TYPE_CHECKING:
    from scheduler.core.snapshot import PoolView

# So many states of a pool are kept, so many more for each other one that shares them, and so many answers of each.
STATES_MAX = 1_000
STATES_MORE = 100
ANSWERS_MAX = 500


class Rules:
    """What holds for a pool whatever is planned on it."""

    __slots__ = (
        "closed", "closes", "counts", "flexible", "openings", "others", "places", "pool", "start", "states", "view",
    )  # fmt: skip

    def __init__(self, view: PoolView, start: int, until: int) -> None:
        self.view, self.pool, self.start, self.places = view, view.pool, start, view.pool.places
        until += view.pool.session_cap_seconds + view.pool.overrun_seconds
        closed = max(start, view.closed_until or start)
        self.counts = [
            Count(quota, view, start, until)
            for quota in view.pool.quotas
            if isinstance(quota, CalendarQuota | MoneyQuota)
        ]
        self.openings = (
            [(opening.start, opening.end) for opening in view.pool.open_windows(closed, until)]
            if (closed < until)
            else []
        )
        self.closes = [closes for _, closes in self.openings]
        self.flexible = [quota for quota in view.pool.quotas if isinstance(quota, RollingQuota | FirstUseQuota)]
        self.closed = {quota.name: last_close(quota, view) for quota in self.flexible}
        self.others = 0  # pools with the same rules and the same past
        self.states = 0  # that follow from the first

    def edges_of(self, charge: Charge) -> list[int]:
        """Return when a charge opens room again under the quotas that move with every session."""
        found = []
        for quota in self.flexible:
            found.append(charge.start + quota.span_seconds)  # from then on what was used expires while another runs
            closes = self.closed[quota.name]
            if closes is None:
                found += [charge.end, charge.end + quota.span_seconds]
            elif closes > 0:
                found.append(closes)
        return found


class _Sessions:
    """All sessions of a state, and what they leave of calendar quotas; an instant stands there once for each place."""

    __slots__ = ("begins", "charges", "counts", "edges", "ends", "finishes", "metered")

    def __init__(self, counts: list[Count], charges: list[Charge], edges: list[int], ends: list[int]) -> None:
        self.counts, self.charges, self.edges, self.ends = counts, charges, edges, ends
        # Of the sessions yet to come that are booked; each list is in order by itself.
        self.begins: list[int] = []
        self.finishes: list[int] = []
        self.metered: dict[str, tuple[RunningTotal, list[int]]] = {}  # by quota

    def copy(self) -> _Sessions:
        """Return a copy that can be written in without touching this one."""
        twin = _Sessions([count.copy() for count in self.counts], self.charges.copy(), self.edges, self.ends.copy())
        twin.begins, twin.finishes = self.begins.copy(), self.finishes.copy()
        return twin

    def add(self, rules: Rules, start: int, held: int, places: int, *, ahead: bool) -> None:
        """Write a session down; one ``ahead`` is yet to come, and later ones must leave its places and its quota."""
        for count in self.counts:
            count.take(start, held, places)
        if rules.flexible:
            charge = Charge(start, held, held=True, devices=places)
            self.charges.append(charge)
            self.edges = sorted(self.edges + rules.edges_of(charge))
        if ahead:
            for _ in range(places):
                insort(self.begins, start)
                insort(self.finishes, held)
        else:
            self.ends = [other for other in self.ends if other > start]
            self.ends += [held] * places


class CapacityState:
    """The room of a pool when all sessions that led here are planned on it; never changes."""

    __slots__ = ("_before", "_changes", "_following", "_planned", "_rooms", "_rules")

    def __init__(
        self, rules: Rules, before: tuple[CapacityState, int, int, int, bool] | None, planned: _Sessions | None
    ) -> None:
        self._rules = rules
        self._before, self._planned = before, planned  # one of both; what nobody asks of a state is not worked out
        self._following: dict[tuple[int, int, int, bool], CapacityState] = {}
        self._rooms: dict[tuple[int, int], Room] = {}
        self._changes: dict[int, int] = {}

    def share(self) -> CapacityState:
        """Return this state for one more pool."""
        self._rules.others += 1
        return self

    def after(self, start: int, held: int, places: int = 1, *, ahead: bool) -> CapacityState:
        """Return the state with one more session in [start, held)."""
        key = start, held, places, ahead
        found = self._following.get(key)
        if found is None:
            found = CapacityState(self._rules, (self, *key), None)
            self._following[key] = found
            self._rules.states += 1
        return found

    def opened(self) -> CapacityState:
        """Return this state, and let go of what follows from it when there are too many states."""
        if self._rules.states > STATES_MAX + STATES_MORE * self._rules.others:
            self._following.clear()
            self._rules.states = 0
        return self

    @property
    def planned(self) -> _Sessions:
        """What is planned, worked out from the nearest state before that was asked."""
        if self._planned is None:
            added: list[tuple[int, int, int, bool]] = []
            state = self
            while state._before is not None:
                state, start, held, places, ahead = state._before
                added.append((start, held, places, ahead))
            found = state.planned.copy()
            for start, held, places, ahead in reversed(added):
                found.add(self._rules, start, held, places, ahead=ahead)
            self._planned, self._before = found, None
        return self._planned

    def room(self, start: int, places: int = 1) -> Room:
        """Return the longest session that may be planned from ``start``, the pool's overrun already set aside."""
        found = self._rooms.get((start, places))
        if found is None:
            if len(self._rooms) >= ANSWERS_MAX:
                self._rooms.clear()
            found = self._rooms[start, places] = self._room(start, places)
        return found

    def next_change(self, after: int) -> int:
        """Return the first instant after ``after`` at which there may be more room."""
        found = self._changes.get(after)
        if found is None:
            if len(self._changes) >= ANSWERS_MAX:
                self._changes.clear()
            found = self._changes[after] = self._next_change(after)
        return found

    def _room(self, start: int, places: int) -> Room:
        rules, planned = self._rules, self.planned
        overrun = rules.pool.overrun_seconds
        index = bisect_right(rules.closes, start)  # the opening at ``start``, or else the next one
        if index == len(rules.openings) or rules.openings[index][0] > start:
            return Room(0, "opening hours")
        others = rules.places - places  # so many may be taken
        if len(planned.ends) > others and self._running(start) > others:
            return Room(0, "concurrency")
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
        return Room(max(0, seconds - overrun), limited_by)

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
        others, begins = self._rules.places - places, self.planned.begins
        if self._taken(start) > others:
            return 0
        for instant in begins[bisect_right(begins, start) :]:
            if self._taken(instant) > others:
                return instant - start
        return NEVER

    def _taken(self, instant: int) -> int:
        """Return how many places sessions take at ``instant``, those that have been started and those booked ahead."""
        planned = self._planned or self.planned
        taken = sum(map(instant.__lt__, planned.ends))
        if planned.begins:
            taken += bisect_right(planned.begins, instant) - bisect_right(planned.finishes, instant)
        return taken

    def _running(self, instant: int) -> int:
        """Return how many places the sessions that have been started still take at ``instant``."""
        return sum(map(instant.__lt__, self.planned.ends))

    def _next_change(self, after: int) -> int:
        rules, planned = self._rules, self.planned
        index = bisect_right(rules.closes, after)
        if index == len(rules.openings):
            return NEVER
        # As long as one thing leaves no room at all, whatever else changes makes none.
        waits = [rules.openings[index][0], *(count.unspent_from(after) for count in planned.counts)]
        if self._taken(after) >= rules.places:
            waits.append(self._vacancy(after))
        latest = max(waits)
        if latest > after:
            return latest
        instants = [end for end in planned.ends if end > after]
        instants += planned.finishes[bisect_right(planned.finishes, after) :][:1]
        instants += [begins for begins, _ in rules.openings[index + 1 : index + 2]]
        instants += [count.next_start(after) for count in planned.counts]
        instants += planned.edges[bisect_right(planned.edges, after) :][:1]
        return min(instants, default=NEVER)

    def _vacancy(self, after: int) -> int:
        """Return the next instant at which a session ends and no booked one takes its place at once."""
        planned, most = self.planned, self._rules.places
        ends = sorted({end for end in (*planned.ends, *planned.finishes) if end > after})
        return next((end for end in ends if self._taken(end) < most), NEVER)


def first_state(view: PoolView, start: int, until: int) -> CapacityState:
    """Return the state of a pool on which nothing is planned yet."""
    rules = Rules(view, start, until)
    edges = sorted(edge for charge in view.charges for edge in rules.edges_of(charge))
    ends = [end for end in live_ends(view) if end > start]
    return CapacityState(rules, None, _Sessions(rules.counts, list(view.charges), edges, ends))


def live_ends(view: PoolView) -> list[int]:
    """Return when the live runs' holds end, each once for every place that it takes."""
    return [run.held_until for run in view.live for _ in range(view.pool.places_of(run.devices))]


def last_close(quota: RollingQuota | FirstUseQuota, view: PoolView) -> int | None:
    """Return when the last span closes whose opening is certain, long ago if there is none; None when nobody can tell.

    A rolling quota has no spans: nothing that was used is ever forgotten but by the passing of time.
    """
    if any(seen.quota == quota.name for seen in view.observed) or any(not found.sign for found in view.charges):
        return None  # limits that change with the hour, uses that perhaps never were
    uses = sorted((found for found in view.charges if found.sign > 0), key=lambda found: (found.start, found.end))
    closes, known = -NEVER, isinstance(quota, FirstUseQuota)
    for charge in uses if known else ():
        if charge.end <= closes:
            continue
        if charge.is_certain and not known:
            return None
        known = known and charge.is_certain
        while known and closes < charge.end:
            closes = max(closes, charge.start) + quota.span_seconds
    return closes
