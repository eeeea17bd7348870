"""Chains: a lane whose job is over looks for the next one in the artifact store, while its session has time for it.

The daemon puts the order once, under a key that names the lane before it; so it is for one process, and taken once.
"""

from __future__ import annotations

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

_ASK_SECONDS, _ASK_WALL_SECONDS = 10.0, 0.1
_NO_LANE = -1  # what asks all lanes to end is meant here, not what asked the one before
_STOPS = {signal.SIGTERM, signal.SIGINT}
# These say something of the session rather than of its job: no job continues there.
_OF_SESSION: frozenset[ErrorClass | None] = frozenset({"wrong_device", "device", "network", "store"})


def waits_until(launch: Launch, transport: Transport, ending: Ending, now: float) -> int | None:
    """Return until when (scheduled seconds) a lane that ended waits for an order; None when it does not."""
    if launch.chain is None or ending.outcome == "preempted" or ending.error_class in _OF_SESSION:
        return None
    try:
        if read_stop(transport, launch.run, _NO_LANE) is not None:
            return None
    except OSError:
        return None
    latest = launch.closing_at - launch.chain.least_seconds
    return ceil(min(now + launch.chain.wait_seconds, latest)) if now < latest else None


def next_order(launch: Launch, before: LaneOrder, until: float | None, leash: int | None) -> Launch | None:
    """Return the session as the job that continues after ``before`` sees it; None when there is none.

    While other lanes of the session work, waiting costs nothing and goes on beyond ``until``; on devices that no lane
    had it ends when they do.
    """
    if launch.chain is None or until is None:
        return None
    transport, clock = launch.transport(), launch.clock
    key, latest = _key(launch, before), launch.closing_at - launch.chain.least_seconds
    wait = launch.chain.wait_seconds if before.job else 0.0
    pause = max(_ASK_WALL_SECONDS, clock.wall_seconds(min(_ASK_SECONDS, launch.heartbeat_seconds)))
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
                _note(launch, before, data)
                order = following.lanes[0]
                log(before.lane, f"{order.job} continues in this session, as lane {order.lane}")
            return following
        except FileNotFoundError:
            pass
        except OSError as error:
            log(before.lane, f"whether another job continues here cannot be read: {error}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            log(before.lane, f"the order of the next job makes no sense: {error}")
            return None
        with suppress(OSError):
            if read_stop(transport, launch.run, _NO_LANE) is not None:
                return None
        if signal.sigtimedwait(_STOPS, pause) is not None:
            return None
        if leash is not None and select.select([leash], [], [], 0)[0]:
            os._exit(1)  # the supervising agent is gone


def newest(launch: Launch, order: LaneOrder) -> tuple[Launch, LaneOrder]:
    """Return the last job that continued after ``order``, as its lane noted it, and its session as it sees it."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        while (following := read_order(_place(launch, order).read_bytes(), launch, order)) is not None:
            launch, order = following, following.lanes[0]
    return launch, order


def refuse_orders(launch: Launch, order: LaneOrder) -> None:
    """Say that nothing continues after a lane whose process is gone, whatever order was put meanwhile."""
    if launch.chain is not None:
        closed = {"format": FORMAT, "run": launch.run, "after": order.lane, "lane": None}
        try:
            launch.transport().put(_key(launch, order), encode(closed))
        except OSError as error:
            log(order.lane, f"that nothing continues here cannot be stored: {error}")


def _key(launch: Launch, before: LaneOrder) -> str:
    return f"{lane_prefix(launch.run, before.lane)}/next.json"


def _note(launch: Launch, before: LaneOrder, data: bytes) -> None:
    """Make room for the next job, and note it for who writes a result in its place should it be killed."""
    for name in ("checkpoints", "command", "parent", "resume"):
        shutil.rmtree(launch.lane_dir(before) / name, ignore_errors=True)
    _place(launch, before).write_bytes(data)


def _place(launch: Launch, order: LaneOrder) -> Path:
    return launch.work_dir / f"after-{order.lane}.json"


class SessionBusy:
    """Held by a lane's process while its job runs, so that the others can tell."""

    def __init__(self, launch: Launch) -> None:
        self._handle = _lock_file(launch)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def end(self) -> None:
        """Let the others know that this job is over."""
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
