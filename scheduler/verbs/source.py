"""Source: reads the database for pages and programs, and caches expensive results until something changes."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager
from threading import Lock
from typing import Any, TypeVar

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from scheduler.app import App
from scheduler.core.job import Active, JobState, Queued
from scheduler.core.ledger import Charge
from scheduler.core.plan import Placement, Plan
from scheduler.core.reasons import Reason, show
from scheduler.core.why import why
from scheduler.store import events, ledger, plans, queue_waits, runs
from scheduler.store.events import Event
from scheduler.store.jobs import JobRecord
from scheduler.views.needs import ALARMS
from scheduler.views.training import TrainingProgress, trainings

T = TypeVar("T")
_KEPT_MAX = 128
_ALARMS_MAX = 200


class Source:
    """The database and the settings, for reading; may be shared between threads."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.zone: str = app.settings.zone
        self._kept: OrderedDict[Hashable, tuple[Hashable, Future[Any]]] = OrderedDict()
        self._lock = Lock()
        self._alarms: tuple[int, tuple[Event, ...]] = (0, ())

    @property
    def pools(self) -> Mapping[str, Pool]:
        """The enabled pools by name."""
        return self.app.pools

    @property
    def now(self) -> int:
        """Scheduled UTC seconds."""
        return self.app.clock.now()

    def read(self) -> AbstractContextManager[Connection]:
        """One read transaction. Raises StoreFailure."""
        return self.app.reading.read()

    def revision(self, tx: Connection) -> str:
        """Return a word that changes with everything stored: events, plans, heartbeats."""
        beats = zlib.crc32("".join(runs.live_heartbeats(tx)).encode())
        return f"{self.news(tx)}-{beats:08x}"

    def news(self, tx: Connection) -> str:
        """Return a word that changes with every event and plan."""
        return f"{events.newest_id(tx)}-{plans.newest_number(tx)}"

    def plan(self, tx: Connection) -> Plan | None:
        """Return the newest plan."""
        return self.kept("plan", plans.newest_number(tx), lambda: plans.newest(tx))

    def charges(self, tx: Connection) -> Mapping[str, Sequence[Charge]]:
        """Return by pool the charges that count in any current quota window."""
        # Cached until the next ledger entry; charges that have since left every window do not count anyway.
        newest = ledger.newest_number(tx)
        return self.kept("charges", newest, lambda: ledger.charges(tx, self.now - ledger.LOOK_BACK_SECONDS))

    def alarms(self, tx: Connection) -> Sequence[Event]:
        """Return the newest events of interest to a person; only new events are read from the log."""
        event_id, alarms = self._alarms
        newest = events.newest_id(tx)
        while event_id < newest:
            fresh = events.tail(tx, event_id or None, _ALARMS_MAX, ALARMS)
            alarms = (*alarms, *fresh)[-_ALARMS_MAX:]
            event_id = newest if len(fresh) < _ALARMS_MAX else fresh[-1].id
        self._alarms = event_id, alarms
        return alarms

    def reasons(self, tx: Connection) -> Mapping[str, Reason]:
        """Return by job the reason why it waits in the newest plan."""
        plan = self.plan(tx)
        deferrals = plan.deferrals if plan else ()
        return self.kept("reasons", plans.newest_number(tx), lambda: {one.job: one.reason for one in deferrals})

    def places(self, tx: Connection) -> Mapping[str, Placement]:
        """Return by job its first session in the newest plan."""

        def make() -> Mapping[str, Placement]:
            plan = self.plan(tx)
            ahead = sorted(plan.placements, key=lambda place: place.start, reverse=True) if plan else []
            return {lane.job: place for place in ahead for lane in place.lanes}

        return self.kept("places", plans.newest_number(tx), make)

    def trainings(self, tx: Connection, records: Sequence[JobRecord], now: int) -> list[TrainingProgress]:
        """Return the training progress by job."""
        active = any(isinstance(record.state, Active) for record in records)
        live = queue_waits.attach(tx, runs.live(tx)) if active else []
        beat = self.app.settings.daemon.heartbeat_seconds
        return trainings(tx, records, live, self.plan(tx), self.pools, beat, now)

    def why(self, state: JobState, reason: Reason | None, place: Placement | None) -> str:
        """Return one sentence on why a job is in its state; ``place`` is its next planned session."""
        if not isinstance(state, Queued):
            return why(state, None, self.zone, 0)
        if reason is not None:
            return reason.sentence(self.zone)
        if place is not None:
            return f"starts on {place.pool} at {show(place.start, self.zone)}"
        return "the next plan considers it"

    def kept(self, name: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """Return the cached result of ``make`` for ``version``; only the newest version is cached.

        Concurrent callers wait for the first one. If ``make`` fails there, the next caller calls it.
        """
        making: Future[T] | None = None
        with self._lock:
            cached = self._kept.get(name)
            if cached is None or cached[0] != version:
                making = Future()
                cached = self._kept[name] = (version, making)
                while len(self._kept) > _KEPT_MAX:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(name)
        if making is None:
            try:
                return cached[1].result()
            except CancelledError:
                return self.kept(name, version, make)
        try:
            value = make()
            making.set_result(value)
        finally:
            making.cancel()  # ``make`` failed; an error that is kept would keep its frames, and a transaction
            with self._lock:
                if self._kept.get(name) is cached and making.cancelled():
                    del self._kept[name]
        return value
