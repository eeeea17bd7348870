"""Pool rules: the limits of a pool that do not depend on the plan, computed once per horizon."""

from collections.abc import Iterable

from jobs.nouns.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from scheduler.core.ledger import Charge
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.count import NEVER, CalendarCount


class PoolRules:
    """Openings, caps and quotas of one pool from ``start`` to the horizon."""

    __slots__ = (
        "begins", "closed", "closes", "counts", "fewest", "flexible", "held_at_most", "openings", "overrun", "places",
        "pool", "start", "view",
    )  # fmt: skip

    def __init__(self, view: PoolView, start: int, until: int) -> None:
        self.view, self.pool, self.start, self.places = view, view.pool, start, view.pool.places
        self.fewest = view.pool.places_of(0)  # places of the smallest session
        self.overrun = view.pool.overrun_seconds
        self.held_at_most = view.pool.session_cap_seconds + self.overrun
        until += self.held_at_most
        closed = max(start, view.closed_until or start)
        self.counts = [
            CalendarCount(quota, view, start, until)
            for quota in view.pool.quotas
            if isinstance(quota, CalendarQuota | MoneyQuota)
        ]
        self.openings = (
            [(opening.start, opening.end) for opening in view.pool.open_windows(closed, until)]
            if (closed < until)
            else []
        )
        self.closes = [closes for _, closes in self.openings]
        # Instants at which room may appear independently of the plan: an opening or a quota window begins.
        self.begins = sorted({opens for opens, _ in self.openings}.union(*(count.starts for count in self.counts)))
        self.flexible = [quota for quota in view.pool.quotas if isinstance(quota, RollingQuota | FirstUseQuota)]
        self.closed = {quota.name: last_close(quota, view) for quota in self.flexible}

    def edges(self, charges: Iterable[Charge]) -> list[int]:
        """Return, sorted, the instants at which ``charges`` free room under rolling and first-use quotas."""
        return sorted(edge for charge in charges for edge in self._edges_of(charge))

    def _edges_of(self, charge: Charge) -> list[int]:
        """Return the instants at which one charge frees room under rolling and first-use quotas."""
        edges = []
        for quota in self.flexible:
            edges.append(charge.start + quota.span_seconds)  # the charge begins to expire
            closes = self.closed[quota.name]
            if closes is None:
                edges += [charge.end, charge.end + quota.span_seconds]
            elif closes > 0:
                edges.append(closes)
        return edges


def live_ends(view: PoolView) -> list[int]:
    """Return the ends of the holds of live runs, one entry per place in use."""
    return [run.held_until for run in view.live for _ in range(view.pool.places_of(run.devices))]


def last_close(quota: RollingQuota | FirstUseQuota, view: PoolView) -> int | None:
    """Return the end of the last span with a certain beginning; -NEVER if there is none, None if it is unknown.

    A rolling quota has no spans. Observed limits and possible charges make spans uncertain (None).
    """
    if any(limit.quota == quota.name for limit in view.observed) or any(not charge.sign for charge in view.charges):
        return None
    uses = sorted((charge for charge in view.charges if charge.sign > 0), key=lambda charge: (charge.start, charge.end))
    closes, certain = -NEVER, isinstance(quota, FirstUseQuota)
    for charge in uses if certain else ():
        if charge.end <= closes:
            continue
        if charge.is_certain and not certain:
            return None
        certain = certain and charge.is_certain
        while certain and closes < charge.end:
            closes = max(closes, charge.start) + quota.span_seconds
    return closes
