"""The keeper, the part of the local platform that outlives the daemon: one small process for each session.

It claims the session, starts the agent in a kernel session of its own, keeps its output, ends it at the deadline and
records how it ended. It decides nothing else.

Every millisecond between a launch and the first step is billed, so this file and its imports load in a few
milliseconds: no typing, json, signal or subprocess module, and arguments instead of a file to parse.
"""

import _signal  # type: ignore[import-not-found]  # the built-in part of signal
import errno
import os
import select
import sys
import time

from platforms.local.processes import MARK, SIGKILL, boot_id, kill_members, start_ticks
from platforms.local.records import CLAIM, END, LAUNCH, OUTPUT, VIEW, publish

_CHUNK_BYTES = 1 << 16
_SIGTERM = 15
_LOOK_SECONDS = 60.0
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_ROOM_SECONDS = 0.2  # between two attempts on a full disk


class Terms:
    """The arguments that the adapter passes, in the order of the command line. Times are scheduled UTC seconds."""

    def __init__(self, arguments: list[str]) -> None:
        self.folder = arguments[0]
        self.deadline = int(arguments[1])
        self.cap_seconds = int(arguments[2])  # 0: no limit
        self.epoch, self.origin, self.scale = (float(figure) for figure in arguments[3:6])
        self.log_bytes = int(arguments[6])
        self.nice = int(arguments[7])
        self.python = arguments[8]
        self.agent = arguments[9]

    def now(self) -> float:
        """Return the scheduled time, by the clock that the launch contract defines."""
        return self.epoch + (time.time() - self.origin) * self.scale  # noqa: TID251 - the platform's own clock


def real_seconds() -> float:
    """Return seconds by the monotonic clock."""
    return time.monotonic()  # noqa: TID251 - the platform's own clock


class SessionOutput:
    """The session's output on disk: the first ``limit`` bytes, then one notice."""

    def __init__(self, path: str, limit: int) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._room = limit
        self._notice = b"\n[output beyond %d bytes is dropped]\n" % limit

    def write(self, data: bytes) -> None:
        """Write the bytes that fit. On a full disk the output is lost, but the session goes on."""
        kept, self._room = data[: self._room], self._room - len(data)
        if self._room < 0:
            kept, self._notice, self._room = kept + self._notice, b"", 0
        try:
            while kept:
                kept = kept[os.write(self._descriptor, kept) :]
        except OSError:
            return


def main() -> None:
    """Leave the daemon, then keep one session."""
    if os.fork():
        os._exit(0)  # init adopts the keeper, so the daemon has no child to reap
    keep(sys.argv[1:], in_unit=False)


def keep(arguments: list[str], *, in_unit: bool) -> None:
    """Keep one session until it ends. Writes one byte to stdout once the session is claimed and the agent released.

    systemd stops a unit by SIGTERM to the keeper, which then signals only the agent and waits for its exit. So a
    command gets the signal only once, from its agent; a second signal could interrupt it while it saves.
    """
    terms = Terms(arguments)
    os.chdir(terms.folder)
    started_at = int(terms.now())
    ends_by = min(terms.deadline, started_at + terms.cap_seconds) if terms.cap_seconds else terms.deadline
    if started_at >= ends_by:
        sys.exit("the deadline passed before the session could start")
    log = SessionOutput(OUTPUT, terms.log_bytes)
    output, output_end = os.pipe()
    agent, let_go = _fork_agent(terms, output_end)
    os.close(output_end)
    if in_unit:
        _signal.signal(_SIGTERM, lambda *_: os.kill(agent, _SIGTERM))
    ticks = start_ticks(agent) or 0
    claim = (
        f'{{"keeper": {os.getpid()}, "keeper_ticks": {start_ticks(os.getpid())}, "agent": {agent}, '
        f'"agent_ticks": {ticks}, "boot": "{boot_id()}", "started_at": {started_at}, "ends_by": {ends_by}}}\n'
    )
    if not publish(".", CLAIM, claim):
        sys.exit("the session is claimed or void")  # closing our end of the pipe makes the agent exit
    os.write(let_go, b"1")
    os.close(let_go)
    _acknowledge()
    ends_at = real_seconds() + (ends_by - terms.now()) / terms.scale  # stops in a suspend
    overran = _watch(terms, agent, ticks, ends_at, output, log)
    if in_unit:
        _signal.signal(_SIGTERM, _signal.SIG_IGN)  # from now on the agent's pid may be reused
    _, status = os.waitpid(agent, 0)
    ended_at = max(started_at, min(int(terms.now()), ends_by))
    _record_end(_end(started_at, ended_at, os.waitstatus_to_exitcode(status), overran=overran))


def _fork_agent(terms: Terms, output_end: int) -> tuple[int, int]:
    """Start the agent's process, which waits to be released; return its pid and the pipe that releases it."""
    permission, let_go = os.pipe()
    agent = os.fork()
    if agent:
        os.close(permission)
        return agent, let_go
    os.close(let_go)
    os.setsid()
    os.nice(terms.nice)
    os.dup2(output_end, 1)
    os.dup2(output_end, 2)
    if os.read(permission, 1):
        try:
            _hide_files(terms.folder)
            os.execve(  # noqa: S606 - no shell is wanted
                terms.python,
                [terms.python, terms.agent, f"{terms.folder}/{LAUNCH}"],
                {**os.environ, MARK: terms.folder},
            )
        except OSError as error:
            os.write(2, f"cannot start {terms.python}: {error}\n".encode())
    os._exit(127)


def _hide_files(folder: str) -> None:
    """Enter the session's view, if it has one. Raises OSError: no session starts with an incomplete view.

    On machines that forbid views, the session runs without one and logs that.
    """
    try:
        with open(VIEW, encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123 - as in records.publish
            text = file.read()
    except FileNotFoundError:
        return
    from platforms.local.view import ViewRefused, enter

    try:
        enter(text)
    except ViewRefused as error:
        os.write(2, f"this session can read the files of the daemon ({error.strerror}): schedctl doctor\n".encode())
        return
    os.chdir(folder)  # the old one leads to hidden files through its parent folders


def _acknowledge() -> None:
    os.write(1, b"1")
    discard = os.open(os.devnull, os.O_WRONLY)
    os.dup2(discard, 1)
    os.close(discard)


def _watch(terms: Terms, agent: int, ticks: int, ends_at: float, output: int, log: SessionOutput) -> bool:
    """Write the output to disk until the agent and all its processes are gone; return whether the deadline ended it.

    The agent is not reaped here: its pid must stay valid as the group's number until all processes are killed.
    """
    agent_gone = os.pidfd_open(agent)
    waiting_for = [agent_gone, output]
    ready: list[int] = []
    overran = False
    while agent_gone not in ready:
        left = ends_at - real_seconds()
        if not overran and left <= 0:
            overran = True
            os.kill(agent, SIGKILL)
        ready, _, _ = select.select(
            waiting_for, [], [], _LOOK_SECONDS if overran else min(max(left, 0.0), _LOOK_SECONDS)
        )
        if output in ready and not _pump(output, log):
            waiting_for.remove(output)
    while not kill_members(agent, ticks, terms.folder, rounds=1):
        _drain(output, log)
    _drain(output, log)
    return overran


def _pump(output: int, log: SessionOutput) -> bool:
    data = os.read(output, _CHUNK_BYTES)
    log.write(data)
    return bool(data)


def _drain(output: int, log: SessionOutput) -> None:
    """Keep the output left in the pipe; do not wait for its close, because another process may hold it open."""
    os.set_blocking(output, False)
    try:
        while _pump(output, log):
            continue
    except BlockingIOError:
        return


def _record_end(end: str) -> None:
    """Record how the session ended. Waits for room on a full disk, because no other process knows the result."""
    while True:
        try:
            publish(".", END, end)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            select.select([], [], [], _ROOM_SECONDS)
        else:
            return


def _end(started_at: int, ended_at: int, exit_code: int, *, overran: bool) -> str:
    if overran:
        why = "killed at the deadline"
    elif exit_code < 0:
        why = f"killed by signal {-exit_code}"
    else:
        why = f"exit code {exit_code}"
    return f'{{"started_at": {started_at}, "ended_at": {ended_at}, "exit_code": {exit_code}, "why": "{why}"}}\n'
