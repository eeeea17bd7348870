"""Pool rules: what holds for a pool whatever is planned on it, cut to the horizon once."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.ledger import Charge
from scheduler.core.quota import CalendarQuota, FirstUseQuota, MoneyQuota, RollingQuota
from scheduler.core.snapshot import PoolView
from scheduler.planner.model.count import NEVER, CalendarCount


class PoolRules:
    """What holds for a pool whatever is planned on it."""

    __slots__ = (
        "begins", "closed", "closes", "counts", "fewest", "flexible", "held_at_most", "openings", "overrun", "places",
        "pool", "start", "view",
    )  # fmt: skip

    def __init__(self, view: PoolView, start: int, until: int) -> None:
        self.view, self.pool, self.start, self.places = view, view.pool, start, view.pool.places
        self.fewest = view.pool.places_of(0)  # places that a session takes at least
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
        # When something begins that may bring room whatever is planned: an opening, a window of a quota.
        self.begins = sorted({opens for opens, _ in self.openings}.union(*(count.starts for count in self.counts)))
        self.flexible = [quota for quota in view.pool.quotas if isinstance(quota, RollingQuota | FirstUseQuota)]
        self.closed = {quota.name: last_close(quota, view) for quota in self.flexible}

    def edges(self, charges: Iterable[Charge]) -> list[int]:
        """Return, in order, when charges open room again under the quotas that move with every session."""
        return sorted(edge for charge in charges for edge in self._edges_of(charge))

    def _edges_of(self, charge: Charge) -> list[int]:
        """Return when a charge opens room again under the quotas that move with every session."""
        edges = []
        for quota in self.flexible:
            edges.append(charge.start + quota.span_seconds)  # from then on what was used expires while another runs
            closes = self.closed[quota.name]
            if closes is None:
                edges += [charge.end, charge.end + quota.span_seconds]
            elif closes > 0:
                edges.append(closes)
        return edges


def live_ends(view: PoolView) -> list[int]:
    """Return when the live runs' holds end, each once for every place that it takes."""
    return [run.held_until for run in view.live for _ in range(view.pool.places_of(run.devices))]


def last_close(quota: RollingQuota | FirstUseQuota, view: PoolView) -> int | None:
    """Return when the last span closes whose opening is certain, long ago if there is none; None when nobody can tell.

    A rolling quota has no spans: nothing that was used is ever forgotten but by the passing of time.
    """
    if any(limit.quota == quota.name for limit in view.observed) or any(not charge.sign for charge in view.charges):
        return None  # limits that change with the hour, uses that perhaps never were
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
