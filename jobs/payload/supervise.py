"""The supervisor: run each lane of a session in its own process, so that lanes do not affect each other."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from .lane.chain import SessionBusy, newest, next_order, refuse_orders
from .lane.ending import Ending
from .lane.lane import LaneProcess
from .lane.launch import BadLaunch, LaneOrder, Launch, read_launch
from .lane.secret_values import pop_secrets
from .lane.status import encode, lane_prefix, leave_result, result
from .log import log

EXIT_OK, EXIT_NO_RESULT, EXIT_BAD_LAUNCH = 0, 1, 2
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}
# Share of the stop margin, at its end, in which the supervisor kills a lane that hangs and writes its result.
_KILL_FRACTION = 0.1


def main(arguments: list[str]) -> int:
    """Run the lanes of ``LAUNCH.JSON [--lane INDEX]``; return the exit status, 0 if every lane has a result."""
    match arguments:
        case [path]:
            only = None
        case [path, "--lane", text] if text.isdecimal():
            only = int(text)
        case _:
            log(None, "usage: agent.py LAUNCH.JSON [--lane INDEX]")
            return EXIT_BAD_LAUNCH
    try:
        values = pop_secrets()
        launch = read_launch(Path(path))._replace(secrets=values)
    except (BadLaunch, ValueError) as error:
        log(None, str(error))
        return EXIT_BAD_LAUNCH
    orders = [order for order in launch.lanes if only in (None, order.lane)]
    orders += launch.free_lanes if only is None else ()
    if len(orders) == 1:
        return EXIT_OK if _run_chain(launch, orders[0]) else EXIT_NO_RESULT
    if not orders:
        log(None, f"{path} has no lane {only}")
        return EXIT_BAD_LAUNCH
    return _run_lanes(launch, orders)


def _run_lanes(launch: Launch, orders: list[LaneOrder]) -> int:
    """Run each lane in a forked process; return the exit status. The processes exit when the pipe ``leash`` closes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    leash, hold = os.pipe()  # only the supervisor keeps ``hold`` open
    alive: dict[int, LaneOrder] = {}
    for order in orders:
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run_forked(launch, order, leash, hold)
        alive[pid] = order
    os.close(leash)
    give_up_at = launch.deadline - _KILL_FRACTION * launch.stop_margin_seconds
    complete = True
    while alive:
        event = signal.sigtimedwait(_WATCHED, max(0.0, launch.clock.wall_seconds_until(give_up_at)))
        if event is None:
            for pid in alive:
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        elif event.si_signo != signal.SIGCHLD:
            for pid in alive:
                os.kill(pid, signal.SIGTERM)
        for pid in list(alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                complete &= _has_result(launch, alive.pop(pid))
    return EXIT_OK if complete else EXIT_NO_RESULT


def _run_forked(launch: Launch, order: LaneOrder, leash: int, hold: int) -> None:
    """Run one lane in the forked process, and end this process."""
    code = EXIT_NO_RESULT
    try:
        os.setpgid(0, 0)
        os.close(hold)
        code = EXIT_OK if _run_chain(launch, order, leash) else EXIT_NO_RESULT
    except BaseException:  # noqa: BLE001 - the process ends here in any case
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _run_chain(launch: Launch, order: LaneOrder, leash: int | None = None) -> bool:
    """Run one lane, then each lane that continues after it; return whether all have a result."""
    complete = True
    until: float | None = launch.clock.now() + (launch.chain.wait_seconds if launch.chain else 0.0)
    while True:
        if order.job:
            busy, lane = SessionBusy(launch), LaneProcess(launch, order, leash)
            complete &= lane.run()
            busy.end()
            until = lane.waits_until
        following = next_order(launch, order, until, leash)
        if following is None:
            return complete
        launch, order = following, following.lanes[0]


def _has_result(launch: Launch, order: LaneOrder) -> bool:
    """Return whether a lane whose process has ended has a result. Close its chain, and write a missing result."""
    launch, order = newest(launch, order)
    refuse_orders(launch, order)
    if not order.job:
        return True
    transport, prefix = launch.transport(), lane_prefix(launch.run, order.lane)
    folder = launch.lane_dir(order)
    with suppress(OSError):
        if transport.exists(f"{prefix}/result.json") or (folder / "result.json").exists():
            return True
    heartbeat = {"format": 1, "run": launch.run, "lane": order.lane, "job": order.job}
    with suppress(OSError, ValueError):
        heartbeat = json.loads(transport.read(f"{prefix}/heartbeat.json"))
    ending = Ending("failed", "the lane's process was killed", "killed", "see the log for its last lines")
    document = encode(result(heartbeat, ending, launch.started_at, 0.0, launch.clock.now()))
    return leave_result(transport, prefix, folder, document, order.lane)
