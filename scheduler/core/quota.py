"""Quotas: rules that bound metered time or money, and the longest session each rule still allows.

Four shapes cover the platforms we know: a calendar period in a zone (Kaggle's week, a daily budget, a monthly
budget in money), a rolling span, and a span that opens with the first use (Studio Lab). Limits may change while
runs go on; an observed limit overrides the declared one for its window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Literal, assert_never

from scheduler.core.ledger import Charge, RunningTotal, cost_within, device_seconds_within, seconds_within
from scheduler.core.window import DAY, EVER, AllTime, Calendar, Window

if TYPE_CHECKING:
    from scheduler.core.pool import Pool

_NEVER = 1 << 62
BOOKS_SECONDS = 33 * DAY  # how far back charges are told at least; what was used before may have left a span open

Instants = tuple[int, int]  # all seconds from the first to the last, both included
Interval = tuple[int, int]  # [start, end)


@dataclass(frozen=True, slots=True)
class CalendarQuota:
    """At most ``limit_seconds`` in each window of a calendar; with ``by_device``, times the devices of each session."""

    name: str
    limit_seconds: int
    calendar: Calendar
    source: str = "declared"
    as_of: str = ""
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class RollingQuota:
    """At most ``limit_seconds`` in every interval (t - span, t]; ``by_device`` as above."""

    name: str
    limit_seconds: int
    span_seconds: int = 86_400
    source: str = "declared"
    as_of: str = ""
    by_device: bool = False


@dataclass(frozen=True, slots=True)
class FirstUseQuota:
    """At most ``limit_seconds`` in a span that opens with the first use after the span before it closed."""

    name: str
    limit_seconds: int
    span_seconds: int = 86_400
    source: str = "declared"
    as_of: str = ""


@dataclass(frozen=True, slots=True)
class MoneyQuota:
    """At most ``limit_microdollars`` in each window of a calendar, at the pool's price."""

    name: str
    limit_microdollars: int
    calendar: Calendar
    source: str = "declared"
    as_of: str = ""


Quota = CalendarQuota | RollingQuota | FirstUseQuota | MoneyQuota


@dataclass(frozen=True, slots=True)
class ObservedLimit:
    """What a platform said about one quota: ``limit`` (seconds or micro-dollars) from ``start`` until ``end``.

    Later observations (``at``) override earlier ones for the instants both cover.
    """

    quota: str
    start: int
    end: int
    limit: int
    at: int
    source: str = "observed"


@dataclass(frozen=True, slots=True)
class WindowUsage:
    """One window of one quota with what is used of it (seconds, or micro-dollars for money)."""

    quota: str
    window: Window
    limit: int
    used: int
    held: int

    @property
    def free(self) -> int:
        """What is left; never negative, even when a quota shrank below its use."""
        return max(0, self.limit - self.used)


ACCOUNT = "account"
"""The quota of which platforms tell that others use it too; it holds also where none of this name is declared."""


def current_quotas(pool: Pool, observed: Sequence[ObservedLimit]) -> tuple[Quota, ...]:
    """Return a pool's quotas with what its platform told of the account, unless one of that name is declared.

    Platforms tell device seconds of a pool whose sessions differ in devices.
    """
    quotas, by_device = pool.quotas, bool(pool.device_counts)
    if by_device:
        quotas = tuple(
            replace(quota, by_device=True) if isinstance(quota, CalendarQuota) and quota.name == ACCOUNT else quota
            for quota in quotas
        )
    account = [one for one in observed if one.quota == ACCOUNT and (one.start, one.end) == (EVER.start, EVER.end)]
    if not account or any(quota.name == ACCOUNT for quota in quotas):
        return quotas
    return (*quotas, CalendarQuota(ACCOUNT, account[-1].limit, AllTime(), account[-1].source, by_device=by_device))


def declared_limit(quota: Quota) -> int:
    """Return the declared limit, in seconds or micro-dollars."""
    return quota.limit_microdollars if isinstance(quota, MoneyQuota) else quota.limit_seconds


def charges_by_device(quota: Quota) -> bool:
    """Tell whether a second counts once for each device of its session."""
    return isinstance(quota, CalendarQuota | RollingQuota) and quota.by_device


def charged_within(quota: Quota, charges: Iterable[Charge], window: Window) -> int:
    """Return what ``quota`` counts of ``charges`` inside ``window``, holds included: seconds, or micro-dollars."""
    if isinstance(quota, MoneyQuota):
        return cost_within(charges, window)
    return device_seconds_within(charges, window) if charges_by_device(quota) else seconds_within(charges, window)


def shows_device_hours(pool: Pool) -> bool:
    """Tell whether people are told device hours of a pool: as its first quota counts, or if it has none."""
    return bool(pool.device_counts) and (not pool.quotas or charges_by_device(pool.quotas[0]))


def displayed_charges(pool: Pool, charges: Sequence[Charge]) -> Sequence[Charge]:
    """Return a pool's charges as people are told of them: where they are told device hours, one for each device."""
    if not shows_device_hours(pool):
        return charges
    return [replace(charge, devices=1) for charge in charges for _ in range(charge.devices)]


def limit_at(quota: Quota, instant: int, observed: Sequence[ObservedLimit] = ()) -> int:
    """Return the limit in force at ``instant``: the newest observation that covers it, else the declared one."""
    newest: ObservedLimit | None = None
    for one in observed:
        covers = one.quota == quota.name and one.start <= instant < one.end
        if covers and (newest is None or one.at >= newest.at):
            newest = one
    return declared_limit(quota) if newest is None else newest.limit


def windows(quota: Quota, charges: Sequence[Charge], start: int, end: int) -> list[Window]:
    """Return the windows of ``quota`` that overlap [start, end), in order.

    A rolling quota answers with the one span that ends at ``start``; a first-use quota with the spans its charges
    opened, and with the span a session starting at ``start`` would open.
    """
    match quota:
        case CalendarQuota() | MoneyQuota():
            return list(quota.calendar.windows(start, end))
        case RollingQuota():
            return [Window(start - quota.span_seconds, start)]
        case FirstUseQuota():
            return _first_use_windows(quota, charges, start, end)
        case _:
            assert_never(quota)


def usage(quota: Quota, charges: Sequence[Charge], at: int, observed: Sequence[ObservedLimit] = ()) -> WindowUsage:
    """Return the window of ``quota`` that counts at ``at`` and what is used and held in it."""
    window = windows(quota, charges, at, at + 1)[0]
    return WindowUsage(
        quota=quota.name,
        window=window,
        limit=limit_at(quota, at, observed),
        used=charged_within(quota, charges, window),
        held=charged_within(quota, [charge for charge in charges if charge.held], window),
    )


def longest(
    quota: Quota,
    charges: Sequence[Charge],
    start: int,
    cap_seconds: int,
    observed: Sequence[ObservedLimit] = (),
    price_microdollars_per_hour: int = 0,
    devices: int = 1,
) -> int:
    """Return the longest session (seconds, at most ``cap_seconds``) on ``devices`` the quota allows from ``start``.

    The session may cross window edges; each window is charged its own part. Zero means nothing is left.
    """
    match quota:
        case RollingQuota():
            return _longest_rolling(quota, charges, start, cap_seconds, limit_at(quota, start, observed), devices)
        case FirstUseQuota():
            edges = {edge for one in observed if one.quota == quota.name for edge in (one.start, one.end)}
            return longest_first_use(
                charges, start, cap_seconds, quota.span_seconds, lambda at: limit_at(quota, at, observed), edges
            )
        case CalendarQuota() | MoneyQuota():
            rate = devices if charges_by_device(quota) else 1
            return _longest_calendar(quota, charges, start, cap_seconds, observed, price_microdollars_per_hour, rate)
        case _:
            assert_never(quota)


def _longest_calendar(
    quota: CalendarQuota | MoneyQuota,
    charges: Sequence[Charge],
    start: int,
    cap: int,
    observed: Sequence[ObservedLimit],
    price: int,
    devices: int,
) -> int:
    end = start + cap
    for window in quota.calendar.windows(start, end):
        limit = limit_at(quota, max(window.start, start), observed)
        free = _free_seconds(quota, charges, window, limit, price) // devices
        if free < window.overlap(start, end):
            return max(window.start, start) + free - start
    return cap


def _free_seconds(
    quota: CalendarQuota | MoneyQuota, charges: Sequence[Charge], window: Window, limit: int, price: int
) -> int:
    if isinstance(quota, CalendarQuota):
        return max(0, limit - charged_within(quota, charges, window))
    if price <= 0:
        return window.seconds
    # Each run's cost is rounded up on its own, so the division here rounds down.
    return max(0, limit - cost_within(charges, window)) * 3_600 // price


def _opened_spans(quota: FirstUseQuota, charges: Sequence[Charge]) -> list[Window]:
    """Return the spans that charges open which were used as they are written."""
    spans: list[Window] = []
    for charge in sorted((charge for charge in charges if charge.sign > 0), key=_start):
        opens = max(charge.start, spans[-1].end) if spans else charge.start
        while opens < charge.end:
            spans.append(Window(opens, opens + quota.span_seconds))
            opens = spans[-1].end
    return spans


def _start(charge: Charge) -> int:
    return charge.start


def _first_use_windows(quota: FirstUseQuota, charges: Sequence[Charge], start: int, end: int) -> list[Window]:
    spans = [span for span in _opened_spans(quota, charges) if span.start < end and span.end > start]
    covered = start
    for span in spans:
        if span.start > covered:
            break
        covered = span.end
    if covered < end and not any(span.start <= covered < span.end for span in spans):
        spans.append(Window(covered, covered + quota.span_seconds))
    return sorted(spans)


def _longest_rolling(
    quota: RollingQuota, charges: Sequence[Charge], start: int, cap: int, limit: int, devices: int
) -> int:
    near = [charge for charge in charges if charge.end > start - quota.span_seconds]
    metered = RunningTotal(near, by_device=quota.by_device)
    pace = devices if quota.by_device else 1
    return longest_rolling(
        metered, rolling_edges(near, quota.span_seconds), start, cap, quota.span_seconds, limit, pace
    )


def rolling_edges(charges: Sequence[Charge], span: int) -> list[int]:
    """Return, in order, the instants at which use within a rolling span begins or ceases to rise or to fall."""
    return sorted({edge for one in charges for edge in (one.start, one.end, one.start + span, one.end + span)})


def longest_rolling(
    metered: RunningTotal, edges: Sequence[int], start: int, cap: int, span: int, limit: int, pace: int = 1
) -> int:
    """Return the longest session from ``start`` with which no span holds more than ``limit`` of what ``metered`` has.

    The session counts ``pace`` times: once, or for each of its devices.

    Forward-looking: old use expires while the session runs (facts: a tenth of the quota is lost otherwise).

    With U(t) the known use in (t - span, t], the session [start, start + l) is allowed when for every t >= start
    U(t) + pace * (min(t - start, l) - max(0, t - span - start)) <= limit. U is piecewise linear with integer slopes,
    so looking at its breakpoints, which are the ``edges``, is exact.
    """
    length = min(cap, span)
    first, last = bisect_right(edges, start), bisect_right(edges, start + length + span)
    points = sorted({*edges[first:last], start + span})

    def use(instant: int) -> int:
        return metered.until(instant) - metered.until(instant - span)

    previous, used = start, use(start)
    if used > limit:
        return 0
    uses = []
    for point in points:
        if previous >= start + length:
            break
        reached = use(point)
        uses.append(reached)
        total = reached + pace * (point - start)
        if total > limit:
            before = used + pace * (previous - start)
            slope_times_run = total - before
            room = limit - before
            length = min(length, previous + room * (point - previous) // slope_times_run - start)
            break
        previous, used = point, reached
    for number, point in enumerate(points):
        if point >= start + length:
            reached = uses[number] if number < len(uses) else use(point)
            length = min(length, (limit - reached) // pace + max(0, point - span - start))
    return max(0, length)


@dataclass(frozen=True, slots=True)
class Meter:
    """One quota of one pool; amounts are seconds or micro-dollars, as ``unit`` says.

    ``used`` is spent, ``held`` is set aside for sessions that go on. The window is [``start``, ``end``).
    ``resets_at`` is when room comes back, None when nothing has to. ``source`` and ``as_of`` say who set the limit.
    ``waited`` is what of ``used`` was billed while sessions waited in the platform's queue.
    """

    pool: str
    quota: str
    unit: Literal["seconds", "microdollars"]
    limit: int
    used: int
    held: int
    free: int
    start: int
    end: int
    resets_at: int | None
    source: str
    as_of: str
    waited: int = 0


# Spans that open with a use after the span before closed, where nobody may know when that use began.
#
# What a platform told of a session is certain. Everything else (a hold, a session it told no times of, the session that
# is asked for) is used somewhere inside its interval, or not at all. A session is allowed when no span can come to more
# than its limit, whenever the uncertain ones ran. Where all is certain this is exact; where nothing is, it is as strict
# as a rolling quota and no stricter.
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
    instants: list[Instants] = []
    beyond: list[Instants] = []
    heap = list(idle)
    heapify(heap)
    ends = [end for _, end in uses.certain]
    settled, last_gap = -_NEVER, -1
    while heap:
        first, last = heappop(heap)
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
            instants += opened
            for one in opened:
                heappush(heap, (one[0] + span, one[1] + span))
    return instants, beyond


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
    check = _ExcessCheck(charges, start, span, limit_at, edges, uses.since(start), before, idle)
    low, high = 0, min(cap, span)
    length, halves = high, True
    while low < high:
        excess = check.excess(length)
        if excess == 0:
            low = length
        else:
            high = length - excess
        # What the session itself uses too much tells how much shorter it must be. Where that is little again and again,
        # the middle gets there sooner: every other question halves what is left.
        halves = excess <= 1 or not halves
        length = (low + high + 1) // 2 if halves else high
    return low


class _ExcessCheck:
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
        self._openings = openings(uses, span, idle)[0]
        self._turns |= {beside for first, last in self._openings for beside in (first - 1, last + 1)}

    def excess(self, length: int) -> int:
        """Return by how many seconds at least a session of ``length`` is too long."""
        start, end, span = self._start, self._start + length, self._span
        opened = openings(self._uses.with_possible(start, end), span, self._idle)[0]
        turns = sorted(self._turns | {start, end, start - span, end - span})
        excess = 0
        for first, last in (*self._reaching, *opened):
            inner = turns[bisect_right(turns, first) : bisect_right(turns, last)]
            for opens in {first, *inner, last}:
                own = max(0, min(end, opens + span) - max(start, opens))
                if own <= excess and opens < start:
                    continue  # it can say nothing new
                used = self._total.until(opens + span) - self._total.until(opens)
                beyond = used + own - self._limit_at(max(opens, start))
                if beyond > 0 and own:
                    excess = max(excess, min(own, beyond))
                elif beyond > 0 and opens >= start and not any(one <= opens <= other for one, other in self._openings):
                    excess = max(excess, 1)
        return excess


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def _since(intervals: Sequence[Interval], instant: int) -> list[Interval]:
    return [(max(start, instant), end) for start, end in intervals if end > instant]


def _within(intervals: Sequence[Interval], start: int, end: int) -> list[Instants]:
    """Return the seconds of ``intervals`` in [start, end)."""
    return [(max(begins, start), min(ends, end) - 1) for begins, ends in intervals if begins < end and ends > start]
