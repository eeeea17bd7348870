"""Reads the database for pages and programs, and caches expensive results until something changes."""

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
    """Read access to the database and the settings, with a cache; may be shared between threads."""

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
        """The time of the app's clock in UTC seconds; in a rehearsal the simulated time."""
        return self.app.clock.now()

    def read(self) -> AbstractContextManager[Connection]:
        """Return a context manager for one read transaction. Raises StoreFailure."""
        return self.app.reading.read()

    def revision(self, tx: Connection) -> str:
        """Return a text that changes with every event, plan and heartbeat."""
        beats = zlib.crc32("".join(runs.live_heartbeats(tx)).encode())
        return f"{self.news(tx)}-{beats:08x}"

    def news(self, tx: Connection) -> str:
        """Return a text that changes with every event and plan."""
        return f"{events.newest_id(tx)}-{plans.newest_number(tx)}"

    def plan(self, tx: Connection) -> Plan | None:
        """Return the newest plan; None if there is none yet."""
        return self.kept("plan", plans.newest_number(tx), lambda: plans.newest(tx))

    def charges(self, tx: Connection) -> Mapping[str, Sequence[Charge]]:
        """Return the charges that count in any current quota window, by pool."""
        # The cache may keep charges that have left every window since the last ledger entry; they count nowhere.
        newest = ledger.newest_number(tx)
        return self.kept("charges", newest, lambda: ledger.charges(tx, self.now - ledger.LOOK_BACK_SECONDS))

    def alarms(self, tx: Connection) -> Sequence[Event]:
        """Return the newest events that may require an action; events read before are not read again."""
        event_id, alarms = self._alarms
        newest = events.newest_id(tx)
        while event_id < newest:
            fresh = events.tail(tx, event_id or None, _ALARMS_MAX, ALARMS)
            alarms = (*alarms, *fresh)[-_ALARMS_MAX:]
            event_id = newest if len(fresh) < _ALARMS_MAX else fresh[-1].id
        self._alarms = event_id, alarms
        return alarms

    def reasons(self, tx: Connection) -> Mapping[str, Reason]:
        """Return the reason why each waiting job waits in the newest plan, by job."""
        plan = self.plan(tx)
        deferrals = plan.deferrals if plan else ()
        return self.kept("reasons", plans.newest_number(tx), lambda: {one.job: one.reason for one in deferrals})

    def places(self, tx: Connection) -> Mapping[str, Placement]:
        """Return the first session of each job in the newest plan, by job."""

        def make() -> Mapping[str, Placement]:
            plan = self.plan(tx)
            ahead = sorted(plan.placements, key=lambda place: place.start, reverse=True) if plan else []
            return {lane.job: place for place in ahead for lane in place.lanes}

        return self.kept("places", plans.newest_number(tx), make)

    def trainings(self, tx: Connection, records: Sequence[JobRecord], now: int) -> list[TrainingProgress]:
        """Return the training progress of jobs, in the order of ``records``."""
        active = any(isinstance(record.state, Active) for record in records)
        live = queue_waits.attach(tx, runs.live(tx)) if active else []
        beat = self.app.settings.daemon.heartbeat_seconds
        return trainings(tx, records, live, self.plan(tx), self.pools, beat, now)

    def why(self, state: JobState, reason: Reason | None, place: Placement | None) -> str:
        """Return one sentence that says why a job is in its state; ``place`` is its next planned session."""
        if not isinstance(state, Queued):
            return why(state, None, self.zone, 0)
        if reason is not None:
            return reason.sentence(self.zone)
        if place is not None:
            return f"starts on {place.pool} at {show(place.start, self.zone)}"
        return "the next plan considers it"

    def kept(self, name: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """Return the result of ``make``, cached under ``name`` for as long as ``version`` stays the same.

        Concurrent callers wait for the first caller. If ``make`` fails there, the next caller calls it.
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
            # After a failure of ``make``. A stored error would keep its frames alive, and with them a transaction.
            making.cancel()
            with self._lock:
                if self._kept.get(name) is cached and making.cancelled():
                    del self._kept[name]
        return value
