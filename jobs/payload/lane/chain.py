"""Chains: a lane whose job has ended polls the artifact store for the order of the next job while time is left.

The daemon writes an order once, under a key that names the previous lane, so exactly one process runs the job.
"""

import fcntl
import os
import select
import shutil
import signal
from contextlib import suppress
from math import ceil
from pathlib import Path

from ..log import log
from ..store.transport import Transport
from .ending import Ending, read_stop
from .failure import ErrorClass
from .launch import FORMAT, LaneOrder, Launch, read_order
from .status import encode, lane_prefix

_POLL_SECONDS, _POLL_WALL_SECONDS_MIN = 10.0, 0.1
_NO_LANE = -1  # only a stop of all lanes applies here, not a stop of the previous job
_STOPS = {signal.SIGTERM, signal.SIGINT}
# Errors of the session rather than of the job: no other job may continue in this session.
_SESSION_ERRORS: frozenset[ErrorClass | None] = frozenset({"wrong_device", "device", "network", "store"})


def waits_until(launch: Launch, transport: Transport, ending: Ending, now: float) -> int | None:
    """Return the scheduled second until which an ended lane waits for an order; None if it does not wait."""
    if launch.chain is None or ending.outcome == "preempted" or ending.error_class in _SESSION_ERRORS:
        return None
    try:
        if read_stop(transport, launch.run, _NO_LANE) is not None:
            return None
    except OSError:
        return None
    latest = launch.closing_at - launch.chain.least_seconds
    return ceil(min(now + launch.chain.wait_seconds, latest)) if now < latest else None


def next_order(launch: Launch, before: LaneOrder, until: float | None, leash: int | None) -> Launch | None:
    """Wait for the order after ``before``; return its launch document, or None if no other job continues here.

    Waiting ends at ``until``, but goes on while other lanes run, because it then costs nothing. A lane that has had no
    job waits only while other lanes run. The process exits if the supervisor has closed its end of ``leash``, a pipe.
    """
    if launch.chain is None or until is None:
        return None
    transport, clock = launch.transport(), launch.clock
    key, latest = _key(launch, before), launch.closing_at - launch.chain.least_seconds
    wait = launch.chain.wait_seconds if before.job else 0.0
    pause = max(_POLL_WALL_SECONDS_MIN, clock.wall_seconds(min(_POLL_SECONDS, launch.heartbeat_seconds)))
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    log(before.lane, "waits for another job to continue here")
    while True:
        now, others_work = clock.now(), SessionBusy.in_session(launch)
        if others_work:
            until = now + wait
        if now >= latest or (now >= until and not others_work):
            return None
        try:
            data = transport.read(key)
            following = read_order(data, launch, before)
            if following is not None:
                _store_order(launch, before, data)
                order = following.lanes[0]
                log(before.lane, f"{order.job} continues in this session, as lane {order.lane}")
            return following
        except FileNotFoundError:
            pass
        except OSError as error:
            log(before.lane, f"the order of the next job cannot be read: {error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log(before.lane, f"the order of the next job is invalid: {error}")
            return None
        with suppress(OSError):
            if read_stop(transport, launch.run, _NO_LANE) is not None:
                return None
        if signal.sigtimedwait(_STOPS, pause) is not None:
            return None
        if leash is not None and select.select([leash], [], [], 0)[0]:
            os._exit(1)  # the supervising agent has ended


def newest(launch: Launch, order: LaneOrder) -> tuple[Launch, LaneOrder]:
    """Return launch document and order of the last job that continued after ``order``, or those given if none did."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        while (following := read_order(_order_file(launch, order).read_bytes(), launch, order)) is not None:
            launch, order = following, following.lanes[0]
    return launch, order


def refuse_orders(launch: Launch, order: LaneOrder) -> None:
    """Replace any order for a lane whose process has ended by a document that says that no job continues."""
    if launch.chain is not None:
        closed = {"format": FORMAT, "run": launch.run, "after": order.lane, "lane": None}
        try:
            launch.transport().put(_key(launch, order), encode(closed))
        except OSError as error:
            log(order.lane, f"the end of this chain of jobs cannot be stored: {error}")


def _key(launch: Launch, before: LaneOrder) -> str:
    return f"{lane_prefix(launch.run, before.lane)}/next.json"


def _store_order(launch: Launch, before: LaneOrder, data: bytes) -> None:
    """Clear the folders for the next job. Write its order to a file, which the supervisor reads after a kill."""
    for name in ("checkpoints", "command", "parent", "resume"):
        shutil.rmtree(launch.lane_dir(before) / name, ignore_errors=True)
    _order_file(launch, before).write_bytes(data)


def _order_file(launch: Launch, order: LaneOrder) -> Path:
    return launch.work_dir / f"after-{order.lane}.json"


class SessionBusy:
    """A shared file lock that a lane's process holds while its job runs, so that other lanes can check for it."""

    def __init__(self, launch: Launch) -> None:
        self._handle = _lock_file(launch)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def end(self) -> None:
        """Release the lock: this job has ended."""
        os.close(self._handle)

    @staticmethod
    def in_session(launch: Launch) -> bool:
        """Return whether a job of another lane runs."""
        handle = _lock_file(launch)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False


def _lock_file(launch: Launch) -> int:
    launch.work_dir.mkdir(parents=True, exist_ok=True)
    return os.open(launch.work_dir / "busy", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
