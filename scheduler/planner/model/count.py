"""Calendar count: the windows of one calendar quota of a pool, and the quota left in each while a plan grows."""

from bisect import bisect_right

from jobs.nouns.quota import CalendarQuota, MoneyQuota, charges_by_device
from jobs.nouns.window import Window
from scheduler.core.quota import charged_within, declared_limit, limit_at
from scheduler.core.snapshot import PoolView

NEVER = 1 << 62


class CalendarCount:
    """One calendar quota: the ``starts`` of its windows, and the seconds or micro-dollars left in each."""

    __slots__ = ("_ends", "_free", "_money", "_price", "by_device", "name", "starts")

    def __init__(self, quota: CalendarQuota | MoneyQuota, view: PoolView, start: int, until: int) -> None:
        self.name = quota.name
        self._money = isinstance(quota, MoneyQuota)
        self.by_device = charges_by_device(quota)
        self._price = view.pool.price_microdollars_per_hour
        windows = list(quota.calendar.windows(start, until))
        self.starts, self._ends = [window.start for window in windows], [window.end for window in windows]
        charged_until = max((charge.end for charge in view.charges), default=start)
        self._free = [
            lowest_limit(quota, view, window, start)
            - (charged_within(quota, view.charges, window) if window.start < charged_until else 0)
            for window in windows
        ]

    def copy(self) -> "CalendarCount":
        """Return an independent copy."""
        twin = object.__new__(CalendarCount)
        twin.name, twin._money, twin._price, twin.by_device = self.name, self._money, self._price, self.by_device
        twin.starts, twin._ends = self.starts, self._ends
        twin._free = self._free.copy()
        return twin

    def longest(self, start: int, cap: int, devices: int = 1) -> int:
        """Return the seconds of the longest session on ``devices`` from ``start``, at most ``cap``."""
        if self._money and self._price <= 0:
            return cap
        index = bisect_right(self.starts, start) - 1
        begins, end = start, start + cap
        while begins < end and index < len(self._ends):
            free, until = self._seconds(index, devices), self._ends[index]
            if free < min(until, end) - begins:
                return begins + free - start
            begins = until
            index += 1
        return cap

    def leftover(self, start: int, devices: int = 1) -> int:
        """Return the seconds of quota left in the window at ``start`` if all fit before it ends, else NEVER."""
        index = bisect_right(self.starts, start) - 1
        free = self._seconds(index, devices)
        return free if start + free <= self._ends[index] else NEVER

    def subtract(self, start: int, end: int, devices: int = 1, sign: int = 1) -> None:
        """Subtract a session from the quota of every window that it overlaps; ``sign`` -1 adds it back."""
        pace = devices if self.by_device else 1
        index = bisect_right(self.starts, start) - 1
        while index < len(self._ends) and self.starts[index] < end:
            seconds = max(0, min(end, self._ends[index]) - max(start, self.starts[index]))
            self._free[index] -= sign * (-(-seconds * self._price // 3_600) if self._money else seconds * pace)
            index += 1

    def free_in(self, start: int) -> int:
        """Return the seconds left in the window that contains ``start``."""
        return self._seconds(bisect_right(self.starts, max(start, self.starts[0])) - 1)

    def unspent_from(self, instant: int) -> int:
        """Return the first instant from ``instant`` on whose window has quota left."""
        index = bisect_right(self.starts, instant) - 1
        if not self._money and self._free[index] > 0:
            return instant
        while index < len(self._ends) and self._seconds(index) == 0:
            index += 1
            instant = self.starts[index] if index < len(self.starts) else NEVER
        return instant

    def _seconds(self, index: int, devices: int = 1) -> int:
        free = max(0, self._free[index])
        if not self._money:
            return free // devices if self.by_device else free
        return free * 3_600 // self._price if self._price > 0 else NEVER


def lowest_limit(quota: CalendarQuota | MoneyQuota, view: PoolView, window: Window, start: int) -> int:
    """Return the lowest limit observed or declared for any instant of ``window`` from ``start`` on."""
    if not view.observed:
        return declared_limit(quota)
    instants = {max(window.start, start)}
    for observed in view.observed:
        instants.update(edge for edge in (observed.start, observed.end) if edge in window and edge > start)
    return min(limit_at(quota, instant, view.observed) for instant in instants)
