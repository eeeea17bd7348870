"""The daemon: APScheduler as a timer around the cycle, the lease, signals and the wake-up pipe."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler import clock
from scheduler.service.alerts import mail
from scheduler.service.cycle import Cycle
from scheduler.service.housekeeping import run_due
from scheduler.store import due, events
from scheduler.store import lease as leases
from scheduler.store.engine import DatabaseCorrupt, Fenced, StoreFailure
from scheduler.wake import Waker

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from scheduler.app import App
    from scheduler.service.ports import Log, Ports
    from scheduler.store.lease import Lease

LOCK_FILE = "daemon.lock"
_MAIL_SECONDS = 60
CRASHES_MAX = 20  # in a row; sessions outlive the daemon, and a service manager starts it anew


class LostLeadership(Exception):
    """Another daemon took over; this one must not write any more."""


class NotLeader(Exception):
    """Another daemon holds the lease."""


@dataclass
class Daemon:
    """One daemon process. ``run`` returns when it was asked to stop, or when its ``stop_at`` has passed."""

    app: App
    log: Log
    _stop: threading.Event = field(default_factory=threading.Event)
    _failure: BaseException | None = None
    _lease: Lease | None = None
    _crashes: int = 0  # in a row
    _cycled_at: int | None = None  # scheduled second of the newest finished cycle

    def run(self) -> None:
        """Hold the lease and run cycles until stopped.

        Raises AlreadyRunning, NotLeader, LostLeadership, StoreFailure.
        """
        settings = self.app.settings
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        with closing(leases.file_lock(settings.state_dir / LOCK_FILE)):
            # Whoever holds the lock goes by its folder's name, one process at a time: the lease that a killed daemon
            # left behind is taken over at once, under a new epoch, and need not run out first.
            holder = f"{socket.gethostname()}:{settings.state_dir.resolve()}"
            self._lease = leases.acquire(self.app.database, holder, settings.daemon.lease_seconds)
            if self._lease is None:
                raise NotLeader("another daemon holds the lease of this database")
            try:
                self._run_as_leader(self.app.ports(self.log, self._lease.epoch))
            finally:
                with suppress(StoreFailure):
                    leases.release(self.app.database, self._lease)
                self.app.database.close()
        if self._failure is not None:
            raise self._failure

    def _run_as_leader(self, ports: Ports) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        settings = self.app.settings.daemon
        # It warns of every cycle that takes longer than its interval; the next one coming later is what we want.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        cycle = Cycle(ports)
        timer = BackgroundScheduler(
            timezone="UTC",
            # One thread for the work, so that cycle and housekeeping never overlap; one for the lease, so that a
            # slow platform call does not lose it.
            executors={"default": ThreadPoolExecutor(1), "lease": ThreadPoolExecutor(1), "mail": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        cycle_wall = max(0.05, ports.clock.wall_seconds(settings.cycle_seconds))
        house_wall = max(1.0, ports.clock.wall_seconds(settings.housekeeping_seconds))
        timer.add_job(self._guarded, "interval", [lambda: self._tick(ports, cycle)], seconds=cycle_wall, id="cycle")
        timer.add_job(
            self._guarded,
            "interval",
            [lambda: run_due(ports, ports.clock.now())],
            seconds=house_wall,
            id="housekeeping",
        )
        timer.add_job(self._renew, "interval", seconds=settings.lease_seconds / 3, id="lease", executor="lease")

        # On a thread of its own: a mail server that hangs must not hold up training.
        timer.add_job(
            self._guarded,
            "interval",
            [lambda: mail(ports, self.app.mailing, ports.clock.now())],
            seconds=max(1.0, ports.clock.wall_seconds(_MAIL_SECONDS)),
            id="mail",
            executor="mail",
        )

        def look_now() -> None:
            timer.modify_job("cycle", next_run_time=clock.utc_datetime())

        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
        with ports.write() as tx:
            events.append(tx, "daemon.started", "daemon", ports.clock.now(), pid=os.getpid(), epoch=ports.epoch)
        self.log.info("daemon.started", pid=os.getpid(), epoch=ports.epoch, pools=sorted(ports.pools))
        timer.start()
        try:
            with closing(Waker(self.app.settings.state_dir, look_now)):
                look_now()
                self._stop.wait()
            self.log.info("daemon.stopping")
        finally:
            timer.shutdown(wait=True)
            for number, handler in previous.items():
                signal.signal(number, handler)
        if self._failure is None:
            with ports.write() as tx:
                events.append(tx, "daemon.stopped", "daemon", ports.clock.now(), pid=os.getpid())
            self.log.info("daemon.stopped")

    def _tick(self, ports: Ports, cycle: Cycle) -> None:
        stop_at = self.app.settings.daemon.stop_at
        if stop_at is None or ports.clock.now() < stop_at:
            self._cycled_at = cycle.run()
        elif cycle.drain("the rehearsal's time is over"):
            self._stop.set()

    def _guarded(self, work: Callable[[], object]) -> None:
        """Run one piece of work; what may pass is logged and tried again, what may not stops the daemon."""
        if self._stop.is_set():
            return
        try:
            work()
            self._crashes = 0
        except Fenced as error:
            self._give_up(LostLeadership(str(error)))
        except DatabaseCorrupt as error:
            self._give_up(error)
        except (StoreFailure, OSError) as error:
            self.log.error("cycle.failed", why=str(error), next="tried again with the next cycle")
        except Exception as error:
            # One bad cycle must not end a daemon that guards running sessions; one that never succeeds guards nothing.
            self.log.exception("cycle.crashed")
            self._crashes += 1
            if self._crashes >= CRASHES_MAX:
                self._give_up(error)

    def _renew(self) -> None:
        if self._lease is None or self._stop.is_set():
            return
        try:
            self._lease = leases.renew(self.app.database, self._lease, self.app.settings.daemon.lease_seconds)
            self._note_cycle(self._lease.epoch)
        except Fenced as error:
            self._give_up(LostLeadership(str(error)))
        except StoreFailure as error:
            self.log.error("lease.not_renewed", why=str(error))

    def _note_cycle(self, epoch: int) -> None:
        """Tell everybody when the next cycle is due; with the lease, because a cycle may come many times a second."""
        if self._cycled_at is None:
            return
        at = self._cycled_at + self.app.settings.daemon.cycle_seconds
        with self.app.database.write() as tx:
            leases.fence(tx, epoch)
            due.set_due(tx, due.CYCLE, at)

    def _give_up(self, failure: BaseException) -> None:
        self.log.error("daemon.giving_up", why=str(failure))
        self._failure = failure
        self._stop.set()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._stop.set()
