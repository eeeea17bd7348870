"""Subscriptions: events and log lines sent as they come. One look at the database serves all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from threading import Event as Flag
from threading import Lock
from typing import TYPE_CHECKING, Any

from scheduler.bridge.errors import BadRequest, Busy
from scheduler.store import events
from scheduler.web.shapes import EventRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from scheduler.bridge import arguments as given
    from scheduler.bridge.surface import Surface
    from scheduler.store.events import Event

LOOK_SECONDS = 0.2
SUBSCRIPTIONS_MAX = 10_000
LOGS_MAX = 16  # platforms are asked for each
_BATCH = 200
_LOGS_EVERY = 5  # looks


@dataclass(slots=True)
class _Events:
    """One subscription to events: all up to ``position`` were sent, or are none of its."""

    number: int
    position: int
    kinds: frozenset[str] | None
    subject: str | None

    def wants(self, event: Event) -> bool:
        return (self.kinds is None or event.kind in self.kinds) and self.subject in {None, event.subject}


@dataclass(slots=True)
class _Log:
    """One subscription to what a run prints: all up to byte ``after`` was sent."""

    number: int
    run: str
    after: int


@dataclass
class Subscriptions:
    """All subscriptions of one port. ``send`` is given each document; what it raises ends :meth:`serve`."""

    surface: Surface
    send: Callable[[dict[str, Any]], None]
    _numbers: count[int] = field(default_factory=lambda: count(1))
    _of_events: dict[int, _Events] = field(default_factory=dict)
    _of_logs: dict[int, _Log] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _news: Flag = field(default_factory=Flag)
    _closed: bool = False
    _failing: bool = False

    def events(self, asked: given.SubscribeEvents, reply: Callable[[dict[str, Any]], None]) -> None:
        """Begin to send events; ``reply`` is called before the first is sent. Raises Busy, StoreFailure."""
        with self.surface.source.read() as tx:
            newest, gone = events.newest_id(tx), events.pruned_up_to(tx)
        after = newest if asked.after is None else asked.after
        one = _Events(self._number(), after, None if asked.kinds is None else frozenset(asked.kinds), asked.subject)
        reply({"subscription": one.number, "position": after, "missed_up_to": gone if after < gone else 0})
        with self._lock:
            self._of_events[one.number] = one
        self._news.set()

    def log(self, asked: given.ReadLog, reply: Callable[[dict[str, Any]], None]) -> None:
        """Begin to send what a run prints; ``reply`` comes first. Raises Busy, UnknownRun, StoreFailure."""
        if len(self._of_logs) >= LOGS_MAX:
            raise Busy(f"{LOGS_MAX} logs are followed already")
        self.surface.tails.read(asked.run, asked.after, patience_seconds=0.0)
        one = _Log(self._number(), asked.run, asked.after)
        reply({"subscription": one.number, "position": asked.after})
        with self._lock:
            self._of_logs[one.number] = one
        self._news.set()

    def end(self, number: int) -> None:
        """End a subscription. Raises BadRequest when there is none of this number."""
        with self._lock:
            if self._of_events.pop(number, None) is None and self._of_logs.pop(number, None) is None:
                raise BadRequest(f"there is no subscription {number}", "See the answers to events.subscribe")

    def close(self) -> None:
        """End :meth:`serve`."""
        self._closed = True
        self._news.set()

    def serve(self) -> None:
        """Send what comes until closed."""
        for look in count():
            if not (self._of_events or self._of_logs):
                self._news.wait()
            elif not self._news.is_set():
                self._news.wait(LOOK_SECONDS)
            self._news.clear()
            if self._closed:
                return
            try:
                self._look_for_events()
                if self._of_logs and look % _LOGS_EVERY == 0:
                    self._look_for_lines()
                self._failing = False
            except OSError:
                raise  # nobody reads any more
            except Exception as error:  # noqa: BLE001 - said to the reader, once; the next look may succeed
                if not self._failing:
                    self.send({"trouble": self.surface.tell(error)})
                self._failing = True

    def _look_for_events(self) -> None:
        with self._lock:
            waiting = list(self._of_events.values())
        if not waiting:
            return
        with self.surface.source.read() as tx:
            newest = events.newest_id(tx)
            behind = [one for one in waiting if one.position < newest]
            found = {at: events.after(tx, at, _BATCH) for at in {one.position for one in behind}}
        for one in behind:
            self._send_events(one, found[one.position], newest)
        if any(len(batch) == _BATCH for batch in found.values()):
            self._news.set()  # there is more

    def _send_events(self, one: _Events, batch: list[Event], newest: int) -> None:
        position = batch[-1].id if len(batch) == _BATCH else max(newest, one.position)
        mine = [event for event in batch if one.wants(event)]
        if mine and one.number in self._of_events:
            self.send({"subscription": one.number, "position": position, "events": _rows(mine)})
        one.position = position

    def _look_for_lines(self) -> None:
        with self._lock:
            followed = list(self._of_logs.values())
        for one in followed:
            log = self.surface.tails.read(one.run, one.after, patience_seconds=0.0)
            if log.next > one.after or (log.ended and log.next == one.after):
                self.send({"subscription": one.number, "position": log.next, "log": log.model_dump(mode="json")})
                one.after = log.next
            if log.ended:
                self._of_logs.pop(one.number, None)

    def _number(self) -> int:
        if len(self._of_events) + len(self._of_logs) >= SUBSCRIPTIONS_MAX:
            raise Busy(f"there are {SUBSCRIPTIONS_MAX} subscriptions already")
        return next(self._numbers)


def _rows(found: Iterable[Event]) -> list[dict[str, Any]]:
    return [EventRow.model_validate(event).model_dump(mode="json") for event in found]
