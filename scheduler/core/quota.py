"""Quotas: limits of metered time or money, and the longest session that each still allows.

There are four kinds: a calendar period in a time zone (Kaggle's week, a daily budget), the same in money, a rolling
span, and a span that opens with its first use (Studio Lab). Limits may change while runs go on; an observed limit
overrides the declared one for its window.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from typing import Literal, assert_never

from jobs.nouns.pool import Pool
from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, Quota, RollingQuota, charges_by_device
from jobs.nouns.window import DAY, EVER, AllTime, Window
from scheduler.core.ledger import Charge, RunningTotal, cost_within, device_seconds_within, seconds_within

_NEVER = 1 << 62
BOOKS_SECONDS = 33 * DAY  # callers pass at least the charges of this time; an older use may have left a span open

Instants = tuple[int, int]  # [first second, last second], both included
Interval = tuple[int, int]  # [start, end)


@dataclass(frozen=True, slots=True)
class ObservedLimit:
    """A limit that a platform reports for one quota: seconds or micro-dollars, in [start, end).

    Later observations (``at``) override earlier ones where both apply.
    """

    quota: str
    start: int
    end: int
    limit: int
    at: int
    source: str = "observed"


ACCOUNT = "account"
"""The name of the quota of the whole account, as reported by a platform. It applies even if it is not declared."""


def current_quotas(pool: Pool, observed: Sequence[ObservedLimit]) -> tuple[Quota, ...]:
    """Return a pool's quotas, with the reported limit of the account unless a quota of that name is declared.

    Platforms report device seconds for a pool with ``device_counts``.
    """
    quotas, by_device = pool.quotas, bool(pool.device_counts)
    if by_device:
        quotas = tuple(
            replace(quota, by_device=True) if isinstance(quota, CalendarQuota) and quota.name == ACCOUNT else quota
            for quota in quotas
        )
    account = [each for each in observed if each.quota == ACCOUNT and (each.start, each.end) == (EVER.start, EVER.end)]
    if not account or any(quota.name == ACCOUNT for quota in quotas):
        return quotas
    return (*quotas, CalendarQuota(ACCOUNT, account[-1].limit, AllTime(), account[-1].source, by_device=by_device))


def declared_limit(quota: Quota) -> int:
    """Return the declared limit, in seconds or micro-dollars."""
    return quota.limit_microdollars if isinstance(quota, MoneyQuota) else quota.limit_seconds


def charged_within(quota: Quota, charges: Iterable[Charge], window: Window) -> int:
    """Return the use of ``quota`` by ``charges`` inside ``window``, holds included: seconds or micro-dollars."""
    if isinstance(quota, MoneyQuota):
        return cost_within(charges, window)
    return device_seconds_within(charges, window) if charges_by_device(quota) else seconds_within(charges, window)


def shows_device_hours(pool: Pool) -> bool:
    """Return whether a pool's hours are displayed as device hours: by its first quota, or its device counts."""
    return bool(pool.device_counts) and (not pool.quotas or charges_by_device(pool.quotas[0]))


def displayed_charges(pool: Pool, charges: Sequence[Charge]) -> Sequence[Charge]:
    """Return a pool's charges for display: one per device if device hours are displayed."""
    if not shows_device_hours(pool):
        return charges
    return [replace(charge, devices=1) for charge in charges for _ in range(charge.devices)]


def limit_at(quota: Quota, instant: int, observed: Sequence[ObservedLimit] = ()) -> int:
    """Return the limit at ``instant``: the newest observation that covers it, else the declared one."""
    newest: ObservedLimit | None = None
    for limit in observed:
        covers = limit.quota == quota.name and limit.start <= instant < limit.end
        if covers and (newest is None or limit.at >= newest.at):
            newest = limit
    return declared_limit(quota) if newest is None else newest.limit


def windows(quota: Quota, charges: Sequence[Charge], start: int, end: int) -> list[Window]:
    """Return the windows of ``quota`` that overlap [start, end), in order.

    For a rolling quota that is the span that ends at ``start``; for a first-use quota the spans opened by charges, and
    the span that a session at ``start`` would open.
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


def longest(
    quota: Quota,
    charges: Sequence[Charge],
    start: int,
    cap_seconds: int,
    observed: Sequence[ObservedLimit] = (),
    price_microdollars_per_hour: int = 0,
    devices: int = 1,
) -> int:
    """Return the seconds (at most ``cap_seconds``) of the longest session on ``devices`` allowed from ``start``.

    The session may cross window edges; each window is charged its part. Zero means that nothing is left.
    """
    match quota:
        case RollingQuota():
            span, limit = quota.span_seconds, limit_at(quota, start, observed)
            near = [charge for charge in charges if charge.end > start - span]
            metered, pace = RunningTotal(near, by_device=quota.by_device), devices if quota.by_device else 1
            return longest_rolling(metered, rolling_edges(near, span), start, cap_seconds, span, limit, pace)
        case FirstUseQuota():
            edges = {edge for limit in observed if limit.quota == quota.name for edge in (limit.start, limit.end)}
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
        if isinstance(quota, CalendarQuota):
            free = max(0, limit - charged_within(quota, charges, window))
        else:  # each run's cost is rounded up, so the division rounds down
            free = max(0, limit - cost_within(charges, window)) * 3_600 // price if price > 0 else window.seconds
        free //= devices
        if free < window.overlap(start, end):
            return max(window.start, start) + free - start
    return cap


def _first_use_windows(quota: FirstUseQuota, charges: Sequence[Charge], start: int, end: int) -> list[Window]:
    opened: list[Window] = []  # by charges, if they were used at exactly the recorded times
    for charge in sorted((charge for charge in charges if charge.sign > 0), key=lambda charge: charge.start):
        opens = max(charge.start, opened[-1].end) if opened else charge.start
        while opens < charge.end:
            opened.append(Window(opens, opens + quota.span_seconds))
            opens = opened[-1].end
    spans = [span for span in opened if span.start < end and span.end > start]
    covered = start
    for span in spans:
        if span.start > covered:
            break
        covered = span.end
    if covered < end:
        spans.append(Window(covered, covered + quota.span_seconds))
    return sorted(spans)


def rolling_edges(charges: Sequence[Charge], span: int) -> list[int]:
    """Return, sorted, the instants at which the slope of the use within a rolling span changes."""
    return sorted({edge + shift for charge in charges for edge in (charge.start, charge.end) for shift in (0, span)})


def longest_rolling(
    metered: RunningTotal, edges: Sequence[int], start: int, cap: int, span: int, limit: int, pace: int
) -> int:
    """Return the longest session from ``start`` with which no span exceeds ``limit``, given the use in ``metered``.

    A second of the session counts ``pace`` times: once, or once per device. Old use expires while the session runs;
    ignoring that would lose a tenth of the quota.

    With U(t) the known use in (t - span, t], the session [start, start + l) is allowed when for every t >= start
    U(t) + pace * (min(t - start, l) - max(0, t - span - start)) <= limit. U is piecewise linear with integer slopes,
    so it is exact to check its breakpoints, which are the ``edges``.
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
            room = limit - before
            length = min(length, previous + room * (point - previous) // (total - before) - start)
            break
        previous, used = point, reached
    for number, point in enumerate(points):
        if point >= start + length:
            reached = uses[number] if number < len(uses) else use(point)
            length = min(length, (limit - reached) // pace + max(0, point - span - start))
    return max(0, length)


@dataclass(frozen=True, slots=True)
class Meter:
    """One quota of one pool; amounts are seconds or micro-dollars, by ``unit``.

    ``used`` is spent, ``held`` is reserved for live sessions. The window is [``start``, ``end``). ``resets_at`` is when
    used quota is free again, None if none is used. ``source`` and ``as_of`` are the origin of the limit. ``waited``
    is the part of ``used`` that was billed while sessions waited in the platform's queue.
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


def meter(pool: str, quota: Quota, charges: Sequence[Charge], at: int, observed: Sequence[ObservedLimit] = ()) -> Meter:
    """Return the meter of a quota at an instant; ``charges`` must cover its window."""
    window, limit = windows(quota, charges, at, at + 1)[0], limit_at(quota, at, observed)
    charged = charged_within(quota, charges, window)
    held = charged_within(quota, [charge for charge in charges if charge.held], window)
    source, as_of = quota.source, quota.as_of
    covering = [limit for limit in observed if limit.quota == quota.name and limit.start <= at < limit.end]
    if newest := max(covering, key=lambda limit: limit.at, default=None):
        source, as_of = newest.source, datetime.fromtimestamp(newest.at, UTC).date().isoformat()
    waits = [charge for charge in charges if charge.waited]
    return Meter(
        pool=pool,
        quota=quota.name,
        unit="microdollars" if isinstance(quota, MoneyQuota) else "seconds",
        limit=limit,
        used=charged - held,
        held=held,
        free=max(0, limit - charged),
        start=window.start,
        end=window.end,
        resets_at=_resets_at(quota, charges, window.end, at),
        source=source,
        as_of=as_of,
        waited=(cost_within if isinstance(quota, MoneyQuota) else seconds_within)(waits, window),
    )


def _resets_at(quota: Quota, charges: Sequence[Charge], end: int, now: int) -> int | None:
    match quota:
        case RollingQuota(span_seconds=span):
            leaving = [max(now, charge.start + span) for charge in charges if charge.end + span > now]
            return min(leaving, default=None)
        case FirstUseQuota():
            # A first-use span without any use starts now.
            opened = any(charge.start < end and charge.end > end - quota.span_seconds for charge in charges)
            return end if opened else None
        case _:
            return None if end == EVER.end else end


# First-use spans: a span opens with the first use after the previous span closed. The time of that use may be unknown.
#
# Times reported by a platform are certain. Everything else (a hold, a session without reported times, the requested
# session) is used somewhere inside its interval, or not at all. A session is allowed if no span can exceed its limit,
# whenever the uncertain ones ran. With certain times only this is exact; without any it equals a rolling quota.
@dataclass(frozen=True, slots=True)
class Uses:
    """The uses that may open a span: certain and possible intervals, each disjoint and sorted."""

    certain: Sequence[Interval]
    possible: Sequence[Interval]


def openings(
    uses: Uses, span: int, idle: Sequence[Instants], until: int = _NEVER
) -> tuple[list[Instants], list[Instants]]:
    """Return the instants before ``until`` at which spans may open, and those from ``until`` on without an open span.

    ``idle`` are the instants at which perhaps no span is open. That state lasts at most until the next certain use, and
    ends earlier with any possible use.
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
                if number > last_gap:  # the gap was handled from an earlier idle instant
                    last_gap = number
                    opened = _within(uses.possible, instant, min(begins, until))
                    if begins < until:
                        opened.append((begins, begins))
                    else:
                        beyond.append((until, until))
                instant = begins
            instants += opened
            for earliest, latest in opened:
                heappush(heap, (earliest + span, latest + span))
    return instants, beyond


def longest_first_use(
    charges: Sequence[Charge], start: int, cap: int, span: int, limit_at: Callable[[int], int], edges: Iterable[int]
) -> int:
    """Return the longest session (seconds, at most ``cap``) from ``start`` with which no span can exceed its limit.

    ``limit_at`` is the limit of a span at an instant; it changes only at ``edges``. If a span exceeds its limit without
    the session, the session must not overlap or open it.
    """
    opening = [charge for charge in charges if charge.sign >= 0 and charge.end > charge.start]  # possible ones too
    uses = Uses(
        _union((charge.start, charge.end) for charge in opening if charge.is_certain),
        _union((charge.start, charge.end) for charge in opening if not charge.is_certain),
    )
    first = min((start, *(begins for begins, _ in (*uses.certain[:1], *uses.possible[:1]))))
    forgotten = span if first < start - BOOKS_SECONDS + span else 0
    unused = first - 1
    before, idle = openings(uses, span, [(unused, unused + forgotten)], start)
    uses = Uses(_since(uses.certain, start), _since(uses.possible, start))
    check = _ExcessCheck(charges, start, span, limit_at, edges, uses, before, idle)
    low, high = 0, min(cap, span)
    length, halves = high, True
    while low < high:
        excess = check.excess(length)
        if excess == 0:
            low = length
        else:
            high = length - excess
        # The excess is the number of seconds by which to shorten the session. If it is small, bisection converges
        # faster, so every second step bisects.
        halves = excess <= 1 or not halves
        length = (low + high + 1) // 2 if halves else high
    return low


class _ExcessCheck:
    """Computes by how many seconds a session from ``start`` exceeds the limits of first-use spans."""

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
        # When spans may open without the session, from ``start`` on. At other instants only the session may open one.
        self._openings = openings(uses, span, idle)[0]
        self._turns |= {beside for first, last in self._openings for beside in (first - 1, last + 1)}

    def excess(self, length: int) -> int:
        """Return a lower bound of the seconds by which a session of ``length`` is too long; 0 if it fits."""
        start, end, span = self._start, self._start + length, self._span
        uses = Uses(self._uses.certain, _union([*self._uses.possible, (start, end)]))
        opened = openings(uses, span, self._idle)[0]
        turns = sorted(self._turns | {start, end, start - span, end - span})
        excess = 0
        for first, last in (*self._reaching, *opened):
            inner = turns[bisect_right(turns, first) : bisect_right(turns, last)]
            for opens in {first, *inner, last}:
                own = max(0, min(end, opens + span) - max(start, opens))
                if own <= excess and opens < start:
                    continue  # it cannot raise ``excess``
                used = self._total.until(opens + span) - self._total.until(opens)
                beyond = used + own - self._limit_at(max(opens, start))
                if beyond > 0 and own:
                    excess = max(excess, min(own, beyond))
                elif beyond > 0 and opens >= start and not any(low <= opens <= high for low, high in self._openings):
                    excess = max(excess, 1)  # the session opens a span that exceeds its limit by other use
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
