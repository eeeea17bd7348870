"""The agenda: virtual time, and what is going to happen in it."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Agenda:
    """Events in order of time, then of entry. ``now`` is true time in UTC seconds."""

    def __init__(self, now: int) -> None:
        self.now = now
        self._entries: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def add(self, at: int, event: Callable[[], None]) -> None:
        """Let ``event`` happen at ``at``, or now when that is past."""
        self._count += 1
        heappush(self._entries, (max(at, self.now), self._count, event))

    def next_at(self) -> int | None:
        """Return when the next event happens."""
        return self._entries[0][0] if self._entries else None

    def advance(self, until: int) -> None:
        """Let time pass; ``until`` in the past does nothing."""
        while self._entries and self._entries[0][0] <= until:
            at, _, event = heappop(self._entries)
            self.now = max(self.now, at)
            event()
        self.now = max(self.now, until)


class SkewedClock:
    """The daemon's clock: true time, shifted by what somebody did to the host's clock."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self.skew_seconds = 0

    def now(self) -> int:
        """Return what the host's clock shows."""
        return self._agenda.now + self.skew_seconds

    def elapsed(self) -> float:
        """Return true seconds, whatever was done to the host's clock."""
        return float(self._agenda.now)

    def wall_seconds(self, scheduled_seconds: float) -> float:
        """Return real seconds, which are the same here."""
        return scheduled_seconds

    def payload_clock(self) -> dict[str, float]:
        """Return the ``clock`` part of the launch contract."""
        return {"epoch": 0.0, "origin": 0.0, "scale": 1.0}
