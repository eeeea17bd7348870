"""First use: spans that open with a use after the span before closed, where nobody may know when that use began.

What a platform told of a session is certain. Everything else (a hold, a session it told no times of, the session that
is asked for) is used somewhere inside its interval, or not at all. A session is allowed when no span can come to more
than its limit, whenever the uncertain ones ran. Where all is certain this is exact; where nothing is, it is as strict
as a rolling quota and no stricter.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from scheduler.core.ledger import RunningTotal
from scheduler.core.window import DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from scheduler.core.ledger import Charge

_NEVER = 1 << 62
BOOKS_SECONDS = 33 * DAY  # how far back charges are told at least; what was used before may have left a span open

Instants = tuple[int, int]  # all seconds from the first to the last, both included
Interval = tuple[int, int]  # [start, end)


@dataclass(frozen=True, slots=True)
class Uses:
    """What may open a span: when it was certainly used and when possibly, each disjoint and in order."""

    certain: Sequence[Interval]
    possible: Sequence[Interval]

    def since(self, start: int) -> Uses:
        """Return what lies at ``start`` or after it."""
        return Uses(_since(self.certain, start), _since(self.possible, start))

    def with_possible(self, start: int, end: int) -> Uses:
        """Return these uses and one that is possible in [start, end)."""
        return Uses(self.certain, _union([*self.possible, (start, end)]))


def uses_of(charges: Iterable[Charge]) -> Uses:
    """Return what of ``charges`` may open a span, also what was given up and counts nothing."""
    uses = [charge for charge in charges if charge.sign >= 0 and charge.end > charge.start]
    return Uses(
        _union((charge.start, charge.end) for charge in uses if charge.is_certain),
        _union((charge.start, charge.end) for charge in uses if not charge.is_certain),
    )


def openings(
    uses: Uses, span: int, idle: Sequence[Instants], until: int = _NEVER
) -> tuple[list[Instants], list[Instants]]:
    """Return when spans may open before ``until``, and when from ``until`` on no span may be open.

    ``idle`` are the instants at which it may be that none is open. Such a state goes on until something is used: at the
    latest until the next certain use, or until any possible one before it.
    """
    found: list[Instants] = []
    beyond: list[Instants] = []
    left = list(idle)
    heapify(left)
    ends = [end for _, end in uses.certain]
    settled, last_gap = -_NEVER, -1
    while left:
        first, last = heappop(left)
        if last >= until:
            beyond.append((max(first, until), last))
            last = until - 1
        instant = max(first, settled)
        settled = max(settled, last + 1)
        while instant <= last:
            number = bisect_right(ends, instant)
            begins, ceases = uses.certain[number] if number < len(ends) else (_NEVER, _NEVER)
            opened = []
            if begins <= instant:
                opened = [(instant, min(last, ceases - 1))]
                instant = ceases
            else:
                if number > last_gap:  # idle from an earlier instant on, the gap was looked at as a whole
                    last_gap = number
                    opened = _within(uses.possible, instant, min(begins, until))
                    if begins < until:
                        opened.append((begins, begins))
                    else:
                        beyond.append((until, until))
                instant = begins
            found += opened
            for one in opened:
                heappush(left, (one[0] + span, one[1] + span))
    return found, beyond


def longest_first_use(
    charges: Sequence[Charge], start: int, cap: int, span: int, limit_at: Callable[[int], int], edges: Iterable[int]
) -> int:
    """Return the longest session (seconds, at most ``cap``) from ``start`` with which no span can be overrun.

    ``limit_at`` is the limit for a span that is met at an instant; it changes at ``edges`` only. A span overrun by
    others asks no more of the session than to stay out of it, and not to be what opens it.
    """
    uses = uses_of(charges)
    first = min((start, *(begins for begins, _ in (*uses.certain[:1], *uses.possible[:1]))))
    forgotten = span if first < start - BOOKS_SECONDS + span else 0
    unused = first - 1
    before, idle = openings(uses, span, [(unused, unused + forgotten)], start)
    asked = _Asked(charges, start, span, limit_at, edges, uses.since(start), before, idle)
    low, high = 0, min(cap, span)
    length, halves = high, True
    while low < high:
        excess = asked.excess(length)
        if excess == 0:
            low = length
        else:
            high = length - excess
        # What the session itself uses too much tells how much shorter it must be. Where that is little again and again,
        # the middle gets there sooner: every other question halves what is left.
        halves = excess <= 1 or not halves
        length = (low + high + 1) // 2 if halves else high
    return low


class _Asked:
    """The question how much too long a session from ``start`` is."""

    def __init__(
        self,
        charges: Sequence[Charge],
        start: int,
        span: int,
        limit_at: Callable[[int], int],
        edges: Iterable[int],
        uses: Uses,
        before: Sequence[Instants],
        idle: Sequence[Instants],
    ) -> None:
        self._start, self._span, self._limit_at = start, span, limit_at
        self._uses, self._idle = uses, idle
        self._reaching = [(max(first, start - span + 1), last) for first, last in before if last + span > start]
        near = [charge for charge in charges if charge.end > start - span]
        self._total = RunningTotal(near)
        turns = {edge for charge in near for edge in (charge.start, charge.end)}
        self._turns = turns | {turn - span for turn in turns} | {edge - back for edge in edges for back in (0, 1)}
        # When spans may open, from the start on, without the session; just beside them it may be to blame.
        self._known = openings(uses, span, idle)[0]
        self._turns |= {beside for first, last in self._known for beside in (first - 1, last + 1)}

    def excess(self, length: int) -> int:
        """Return by how many seconds at least a session of ``length`` is too long."""
        start, end, span = self._start, self._start + length, self._span
        found = openings(self._uses.with_possible(start, end), span, self._idle)[0]
        turns = sorted(self._turns | {start, end, start - span, end - span})
        excess = 0
        for first, last in (*self._reaching, *found):
            inner = turns[bisect_right(turns, first) : bisect_right(turns, last)]
            for opens in {first, *inner, last}:
                own = max(0, min(end, opens + span) - max(start, opens))
                if own <= excess and opens < start:
                    continue  # it can say nothing new
                used = self._total.until(opens + span) - self._total.until(opens)
                over = used + own - self._limit_at(max(opens, start))
                if over > 0 and own:
                    excess = max(excess, min(own, over))
                elif over > 0 and opens >= start and not any(one <= opens <= other for one, other in self._known):
                    excess = max(excess, 1)
        return excess


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _since(intervals: Sequence[Interval], instant: int) -> list[Interval]:
    return [(max(start, instant), end) for start, end in intervals if end > instant]


def _within(intervals: Sequence[Interval], start: int, end: int) -> list[Instants]:
    """Return the seconds of ``intervals`` in [start, end)."""
    return [(max(begins, start), min(ends, end) - 1) for begins, ends in intervals if begins < end and ends > start]
