"""The daemon: APScheduler as a timer for cycles, with the lease, signals, reloads and the wake-up pipe."""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

from apscheduler.schedulers.base import BaseScheduler
from sqlalchemy import Connection

from config.credentials import credential_files
from config.errors import ConfigError, Problem
from config.logging import configure
from jobs.nouns.window import WEEK
from jobs.size import counted
from platforms.base import PlatformError
from platforms.record_file import fingerprint
from platforms.wrap import LatePlatform
from scheduler import clock, line
from scheduler.app import App, require_one_account
from scheduler.core.run import Run, Running
from scheduler.service.cycle.cycle import Cycle, tell_endings
from scheduler.service.facts.contradictions import settle
from scheduler.service.outside.calls import Calls
from scheduler.service.outside.ports import EventLog, Ports
from scheduler.service.upkeep.housekeeping import run_due
from scheduler.store import counts, due, events, queue_waits, runs
from scheduler.store import lease as leases
from scheduler.store.errors import DatabaseCorrupt, Fenced, StoreFailure
from scheduler.store.lease import Lease
from scheduler.views.long_work import LongWork
from scheduler.wake import Waker

LOCK_FILE = "daemon.lock"
_RELOAD, _STOP, _MAIL, _CYCLE_SOON = "reload", "stop", "mail", "cycle soon"
_WHY_CHARACTERS = 1_000  # of a reason in an event
_POLLS_PER_LEASE = 6  # polls of the lease by a daemon that stands by
_CYCLES_PER_INTERVAL = 6  # at most, if late answers arrive or a session has just started
_SHORT_INTERVAL_WALL_SECONDS = 10.0  # a shorter interval needs no additional cycles
_JUST_STARTED_WALL_SECONDS = 60.0  # a session this young soon sends its first report, or fails
_SHUTDOWN_SECONDS = 10.0  # real time for launches, messages and deployments to end; other work is repeated later
_PLANNER_IDLE_SECONDS = 10.0  # real time after which the idle planner's process ends if no session runs
_PLANNER_WARM_SECONDS = 900.0  # and while one runs: an event may need a plan, and a warm planner is cheap
_WATCH_SECONDS = 2.0  # interval of the checks whether the clock was set
_JUMP_SECONDS = 2.0  # more than a slewed clock differs between two checks
CRASHES_MAX = 20  # in a row; sessions outlive the daemon, and the service manager restarts it
# Settings that cannot change while the daemon runs: its lock, lease and records depend on them.
_FIXED = ("state_dir", "database_url", "clock")
_ADDRESS_VARIABLE = "NOTIFY_SOCKET"
_SEND_SECONDS = 1.0  # timeout of a message: a service manager that does not read must not delay the daemon
_STATUS_CHARACTERS = 200
_EXTENSIONS = 20  # requests for more time at most; one every 15 seconds makes five minutes
_EXTENSION_SECONDS = 15


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """The service manager that listens at ``address``; if that is empty, nothing is sent."""

    address: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> "ServiceManager":
        """Return the service manager that started this process and wants its messages, if there is one."""
        return cls(environ.get(_ADDRESS_VARIABLE, ""))

    def report(self, state: str, status: str) -> bool:
        """Send a state of sd_notify, such as ``READY``, and a line for people. WATCHDOG is for finished work only."""
        return self._notify(f"{state}=1", _status(status))

    @contextmanager
    def more_time(self) -> Iterator[None]:
        """Ask repeatedly for more time while the body runs, at most five minutes: a hung process must be killed."""
        done = threading.Event()

        def ask() -> None:
            for _ in range(_EXTENSIONS):
                if not self._notify(f"EXTEND_TIMEOUT_USEC={2 * _EXTENSION_SECONDS}000000") or done.wait(
                    _EXTENSION_SECONDS
                ):
                    return

        asking = threading.Thread(target=ask, name="more time", daemon=True)
        asking.start()
        try:
            yield
        finally:
            done.set()
            asking.join()

    def _notify(self, *lines: str) -> bool:
        """Send one datagram and return whether it was accepted. A lost message is not repeated."""
        if not self.address:
            return False
        # A leading @ means the zero byte of an abstract address.
        address = f"\0{self.address[1:]}" if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_SECONDS)
                sender.sendto("\n".join(lines).encode(), address)
        except OSError:
            return False
        return True


def _status(text: str) -> str:
    """Return a status as one printable line; a line break in it would begin another assignment."""
    return f"STATUS={''.join(c if c.isprintable() else ' ' for c in text)[:_STATUS_CHARACTERS]}"


class LostLeadership(Exception):
    """Another daemon took over; this one must not write any more."""


@dataclass(repr=False, eq=False)  # the signal module calls the repr of a handler, which should not show the fields
class Daemon:
    """One daemon process. ``run`` returns when asked to stop, or when ``stop_at`` of the settings has passed."""

    app: App
    log: EventLog
    load: Callable[[], App] | None = None  # reads the settings again, on SIGHUP
    manager: ServiceManager = field(default_factory=ServiceManager.of)
    _stop: threading.Event = field(default_factory=threading.Event)
    # Requests to the main thread. A signal handler may interrupt anything; only this queue's put is safe in it.
    _requests: SimpleQueue[str] = field(default_factory=SimpleQueue)
    _calls: Calls = field(default_factory=Calls)
    _work: LongWork = field(default_factory=LongWork)
    _ports: Ports = field(init=False)
    _cycle: Cycle = field(init=False)
    _line: str = ""
    _mail_now: Callable[[], None] = lambda: None
    _logged_up_to: int = 0  # the last event whose ending was logged
    _actions: int = 0  # number of actions required of people
    _renewed: bool = True  # whether the last renewal of the lease was written
    _failure: BaseException | None = None
    _lease: Lease | None = None
    _crashes: int = 0  # in a row
    _cycled_at: int | None = None  # scheduled second of the newest finished cycle

    def run(self) -> None:
        """Wait for the lease, then run cycles until stopped. Raises AlreadyRunning, LostLeadership, StoreFailure."""
        settings = self.app.settings
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with closing(leases.FileLock(settings.state_dir / LOCK_FILE)), self._signals():
            self._lease = self._win_lease()
            if self._lease is None:
                self.log.info("daemon.stopped", why="asked to stop while another daemon held the lease")
                return
            try:
                self._use(self.app, self.app.ports(self.log, self._lease.epoch))
                self._run_as_leader()
            finally:
                with suppress(StoreFailure):
                    leases.release(self.app.database, self._lease)
                self.app.planner.close()
                self.app.database.close()
        if self._failure is not None:
            raise self._failure

    def _win_lease(self) -> Lease | None:
        """Return the lease as soon as no other daemon holds it; None if asked to stop before. Raises StoreFailure.

        The locked state folder identifies a daemon. So the lease of a killed daemon of the same folder is acquired at
        once, with a new epoch. The lease of another daemon must be released or expire first.
        """
        seconds = self.app.settings.daemon.lease_seconds
        holder = leases.holder_of(self.app.settings.state_dir)
        lease = leases.acquire(self.app.database, holder, seconds)
        if lease is None:
            with self.app.database.read() as tx:
                other = leases.current(tx)
            self.log.info("daemon.standing_by", leader=other.holder if other else "")
            self.manager.report("READY", "stands by: another daemon holds the lease")
        while lease is None:
            if self._next_request(seconds / _POLLS_PER_LEASE) == _STOP:
                return None
            self.manager.report("WATCHDOG", "stands by: another daemon holds the lease")
            try:
                lease = leases.acquire(self.app.database, holder, seconds)
            except StoreFailure as error:
                self.log.error("lease.unknown", why=str(error), next="tried again")
        return lease

    def _credentials(self) -> str:
        """Return a text that changes when a file with credentials or with secrets of jobs changes."""
        return fingerprint(credential_files(os.environ, self.app.settings.state_dir))

    def _next_request(self, seconds: float) -> str | None:
        """Return the next request to the main thread; None if none arrives within ``seconds``."""
        try:
            return self._requests.get(timeout=seconds)
        except Empty:
            return None

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals into requests to the main thread while the body runs."""
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        previous = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _use(self, app: App, ports: Ports) -> None:
        """Use this app from the next cycle on; a running cycle ends with the previous one."""
        ports = replace(ports, calls=self._calls)
        # Launches do not wait for results of outdated settings.
        self._calls.forget(("data", "wheels", "open", "plan"))
        self.app, self._ports, self._cycle = app, ports, Cycle(ports)

    def _run_as_leader(self) -> None:
        from apscheduler.executors.pool import ThreadPoolExecutor
        from apscheduler.schedulers.background import BackgroundScheduler

        # It warns of each cycle that is longer than its interval, but then a later next cycle is intended.
        logging.getLogger("apscheduler").setLevel(logging.ERROR)
        timer = BackgroundScheduler(
            timezone="UTC",
            # One thread for cycles and housekeeping, so that they never overlap; one for the lease, so that a slow
            # platform call does not lose it; one for mail, so that a hung mail server does not delay training.
            executors={"default": ThreadPoolExecutor(1), "lease": ThreadPoolExecutor(1), "mail": ThreadPoolExecutor(1)},
            job_defaults={"coalesce": True, "misfire_grace_time": None, "max_instances": 1},
        )
        self._set_intervals(timer)

        def run_cycle_now() -> None:
            timer.modify_job("cycle", next_run_time=clock.utc_datetime())

        # Through the main thread: during its shutdown the timer holds a lock that a cycle would wait for.
        self._calls.on_late = lambda: self._requests.put(_CYCLE_SOON)
        self._mail_now = lambda: self._requests.put(_MAIL)
        self._write_event("daemon.started", pid=os.getpid(), epoch=self._ports.epoch)
        self.log.info("daemon.started", pid=os.getpid(), epoch=self._ports.epoch, pools=sorted(self._ports.pools))
        with self._ports.database.read() as tx:
            self._logged_up_to = events.newest_id(tx)
        timer.start()
        try:
            with closing(Waker(self.app.settings.state_dir, run_cycle_now)):
                run_cycle_now()
                self.manager.report("READY", "holds the lease, starts the first cycle")
                watch = clock.JumpDetector()
                last_credentials = self._credentials()
                while (request := self._next_request(_WATCH_SECONDS)) != _STOP:
                    if request == _RELOAD:
                        self._guarded(lambda: self._reload(timer))
                        run_cycle_now()
                    elif request is not None:
                        self._bring_forward(timer, request)
                    if (credentials := self._credentials()) != last_credentials and self.load is not None:
                        last_credentials = credentials
                        self.log.info("credentials.changed", next="the settings are read again")
                        self._requests.put(_RELOAD)
                    if abs(jump := watch.jump()) > _JUMP_SECONDS:
                        # The timer uses the wall clock: after it was set back by an hour, it would sleep for an hour.
                        self.log.warning("clock.set", seconds=round(jump), next="all timers start again")
                        self._set_intervals(timer)
                        run_cycle_now()
            self.log.info("daemon.stopping")
        finally:
            self.manager.report("STOPPING", "waits for the end of the cycle; sessions continue")
            with self.manager.more_time():
                timer.shutdown(wait=True)
                self._calls.settle(("launch", "letters", "mail", "deploy"), _SHUTDOWN_SECONDS)
            for folder in self._line_folders():
                line.remove(folder)
        if self._failure is None:
            self._write_event("daemon.stopped", pid=os.getpid())
            self.log.info("daemon.stopped")

    def _bring_forward(self, timer: BaseScheduler, request: str) -> None:
        """Run the mail job now, or the cycle soon: not at once, since platforms must not be polled all the time."""
        cycle = self.app.clock.wall_seconds(self.app.settings.daemon.cycle_seconds)
        at = clock.utc_datetime() + timedelta(seconds=cycle / _CYCLES_PER_INTERVAL if request == _CYCLE_SOON else 0)
        name = "mail" if request == _MAIL else "cycle"
        if (job := timer.get_job(name)) is not None and job.next_run_time > at:
            timer.modify_job(name, next_run_time=at)

    def _set_intervals(self, timer: BaseScheduler) -> None:
        """Set the timer's intervals by the settings; earlier ones are replaced."""
        settings, wall = self.app.settings.daemon, self.app.clock.wall_seconds
        for name, work, seconds, thread in (
            ("cycle", self._tick, max(0.05, wall(settings.cycle_seconds)), "default"),
            ("housekeeping", self._run_duties, max(1.0, wall(settings.housekeeping_seconds)), "default"),
            ("mail", self._mail, max(1.0, wall(60)), "mail"),
        ):
            guarded = partial(self._guarded, work, counts=name != "mail")
            timer.add_job(guarded, "interval", seconds=seconds, id=name, executor=thread, replace_existing=True)
        seconds = settings.lease_seconds / 3
        timer.add_job(self._renew, "interval", seconds=seconds, id="lease", executor="lease", replace_existing=True)

    def _tick(self) -> None:
        stop_at = self.app.settings.daemon.stop_at
        if stop_at is None or self._ports.clock.now() < stop_at:
            self._cycled_at = self._cycle.run()
        elif self._cycle.drain("the rehearsal's time is over"):
            self._ask_to_stop()
        self._crashes = 0
        before, self._logged_up_to = self._logged_up_to, tell_endings(self._ports, self._logged_up_to)
        if before != self._logged_up_to:
            self._mail_now()
        self._work.record(self._ports, self._ports.clock.now())
        self._notify_progress()
        with self._ports.database.read() as tx:
            live = runs.live(tx)
        waits = _PLANNER_WARM_SECONDS if live else _PLANNER_IDLE_SECONDS
        if self._has_new_session(live):
            self._calls.on_late()
        self.app.planner.rest_when_idle(clock.stopwatch(), waits)

    def _has_new_session(self, live: Sequence[Run]) -> bool:
        """Return whether a session has just started, so that its first report or its failure is expected soon."""
        wall, now = self.app.clock.wall_seconds, self._ports.clock.now()
        if wall(self.app.settings.daemon.cycle_seconds) < _SHORT_INTERVAL_WALL_SECONDS:
            return False
        began = [run.state.started for run in live if isinstance(run.state, Running)]
        return any(wall(now - at) < _JUST_STARTED_WALL_SECONDS for at in began)

    def _run_duties(self) -> None:
        run_due(self._ports, self._ports.clock.now())

    def _mail(self) -> None:
        from scheduler.notify.exports import export
        from scheduler.notify.mail import post
        from scheduler.views.needs import watch_needs

        ports, now, apart = self._ports, self._ports.clock.now(), partial(self._guarded, counts=False)

        def list_actions() -> None:
            settle(ports, now)
            self._actions = watch_needs(ports, now, now - WEEK)

        apart(list_actions)  # messages are sent even if the list cannot be made
        post(ports, self.app.mailing, apart, now)
        self._calls.gather("exports", {"": partial(apart, partial(export, ports, self.app.settings.export, now))})

    def _notify_progress(self) -> None:
        """Feed the watchdog if the database accepts writes, and publish the status line. Called after each cycle."""
        with self._ports.database.read() as tx:
            text = status_line(tx, self._actions)
        if self._renewed:
            self.manager.report("WATCHDOG", text)
        if text != self._line:
            for folder in self._line_folders():
                try:
                    line.write(folder, text)
                except OSError as error:
                    self.log.warning("line.not_written", folder=folder, why=str(error))
            self._line = text

    def _line_folders(self) -> list[str]:
        return line.folders(str(self.app.settings.state_dir), os.environ.get("RUNTIME_DIRECTORY", ""))

    def _reload(self, timer: BaseScheduler) -> None:
        """Use new settings if all of them are valid; otherwise log why, and keep the old ones."""
        if self.load is None:
            raise AssertionError("a reload is requested only if settings can be read")
        now = round(clock.stopwatch() * 1e6)
        self.manager.report(f"MONOTONIC_USEC={now}\nRELOADING", "reads the settings again")
        try:
            app = reloaded(self.app, self.load)
            ports = app.ports(self.log, self._ports.epoch)
            configure(app.settings.logging, app.redact)
        except Exception as error:  # noqa: BLE001 - training continues even with invalid new settings
            why = " ".join(str(error).split()) or type(error).__name__
            self.log.error("config.not_reloaded", why=why, next="the previous settings stay; correct the file")
            event, facts = "daemon.reload_refused", {"why": why[:_WHY_CHARACTERS]}
        else:
            self._use(app, ports)
            self._set_intervals(timer)
            self.log.info("config.reloaded", pools=sorted(ports.pools))
            event, facts = "daemon.reloaded", {"pools": ", ".join(sorted(ports.pools))}
        self.manager.report("READY", self._line or "continues")
        self._write_event(event, **facts)

    def _write_event(self, kind: str, **data: Any) -> None:
        """Write an event about the daemon itself."""
        with self._ports.write() as tx:
            events.append(tx, kind, "daemon", self._ports.clock.now(), **data)

    def _guarded(self, work: Callable[[], object], *, counts: bool = True) -> None:
        """Run ``work``. A temporary error is logged, and the work is retried; a permanent one stops the daemon."""
        if self._stop.is_set():
            return
        try:
            work()
        except Fenced as error:
            self._give_up(LostLeadership(str(error)))
        except Exception as error:
            damage = error if isinstance(error, DatabaseCorrupt) else self.app.database.explain(error)
            if damage is not None:
                self._give_up(damage)
            elif isinstance(error, StoreFailure | OSError):
                self.log.error("cycle.failed", why=str(error), next="tried again with the next cycle")
            else:
                # One failed cycle must not end a daemon that watches sessions. But if every cycle fails, no
                # session is watched.
                self.log.exception("cycle.crashed" if counts else "mail.crashed")
                self._crashes += counts
                if self._crashes >= CRASHES_MAX:
                    self._give_up(error)

    def _renew(self) -> None:
        if self._lease is None or self._stop.is_set():
            return
        try:
            self._lease = leases.renew(self.app.database, self._lease, self.app.settings.daemon.lease_seconds)
            if self._cycled_at is not None:  # written with the lease, since cycles may run many times a second
                # Commands and pages show when the next cycle is due.
                at = self._cycled_at + self.app.settings.daemon.cycle_seconds
                with self.app.database.write() as tx:
                    leases.fence(tx, self._lease.epoch)
                    due.set_due(tx, due.CYCLE, at)
            self._renewed = True
        except Fenced as error:
            self._give_up(LostLeadership(str(error)))
        except StoreFailure as error:
            self._renewed = False
            self.log.error("lease.not_renewed", why=str(error))

    def _give_up(self, failure: BaseException) -> None:
        self.log.error("daemon.giving_up", why=str(failure))
        self._failure = failure
        self._ask_to_stop()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        # Without settings to reload it runs in a terminal, and SIGHUP means that the terminal was closed.
        if number == signal.SIGHUP and self.load is not None:
            self._requests.put(_RELOAD)
        else:
            self._ask_to_stop()

    def _ask_to_stop(self) -> None:
        self._stop.set()
        self._requests.put(_STOP)


# Reload of settings: all of them are tried before any is used.
def reloaded(old: App, load: Callable[[], App]) -> App:
    """Return an app of the settings as they are now, with all parts created that may fail.

    A pool that can be opened now, but not with the new settings, is an error; one that waits for a person is not. The
    new app shares the open database of ``old``. Raises ConfigError (also for a change that needs a restart),
    ProblemsFound, PlatformError or StoreError; ``old`` is unchanged then.
    """
    new = load()
    changed = [key for key in _FIXED if getattr(new.settings, key) != getattr(old.settings, key)]
    if changed:
        why, remedy = "cannot change while the daemon runs", "restart the daemon to use it, or change it back"
        raise ConfigError([Problem(new.settings.origin(key), key, "", why, remedy) for key in changed])
    require_one_account(new.settings)
    vars(new)["database"] = old.database  # a cached property: an existing value is not created again
    for part in ("catalogue", "artifacts", "mailing"):
        getattr(new, part)
    for name, platform in new.platforms.items():
        try:
            platform.open()
        except PlatformError:
            # A pool that waits for a person does not prevent a reload.
            if name in old.platforms and _can_open(old.platforms[name]):
                raise
    return new


def _can_open(platform: LatePlatform) -> bool:
    try:
        platform.open()
    except PlatformError:
        return False
    return True


# The status line, for prompts and the service manager.
def status_line(tx: Connection, actions: int = 0) -> str:
    """Return the counts of sessions, jobs and required actions as text, such as ``2 running, 5 waiting``.

    Sessions that wait in their platform's queue are counted separately: ``1 running, 1 in a queue, 5 waiting``.
    """
    jobs = counts.jobs_by_state(tx)
    in_queue = queue_waits.count(tx)
    parts = [f"{counts.live_sessions(tx) - in_queue} running"]
    parts += [f"{in_queue} in a queue"] if in_queue else []
    parts.append(f"{jobs['queued']} waiting")
    parts += [f"{jobs[state]} {state}" for state in ("held", "failed") if jobs[state]]
    if actions:
        parts.append(f"{counted(actions, 'action')} required")
    return ", ".join(parts)
