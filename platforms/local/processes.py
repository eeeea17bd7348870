"""Find and end the processes of a session by the process table of Linux.

A session's processes have the agent's process group, its kernel session, or a mark in the environment that every child
inherits. All three are searched, because a process can leave each of them. A process is identified by pid and start
time, so that a reused pid is never mistaken for it. The keeper imports this file before it starts the agent, so it must
load fast: no typing, signal or subprocess module.
"""

import os
import select

MARK = "SCHED_SESSION"  # environment variable with the session's folder
SIGKILL = 9
_WAIT_MILLISECONDS = 200
_CHUNK_BYTES = 1 << 16


def read_stat(pid: int | str) -> list[bytes] | None:
    """Return the fields of /proc/<pid>/stat from the third (state) on, or None if there is no live process.

    A zombie counts as gone. Raises OSError if the file cannot be read, which does not mean gone.
    """
    data = _read(f"/proc/{pid}/stat")
    if not data:
        return None
    fields = data[data.rindex(b")") + 2 :].split()
    return None if fields[0] in b"ZX" else fields


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None if it is not alive."""
    fields = read_stat(pid)
    return int(fields[19]) if fields else None


def boot_id() -> str:
    """Return the identity of this boot, or an empty text where a sandbox hides it."""
    try:
        return (_read("/proc/sys/kernel/random/boot_id") or b"").decode().strip()
    except OSError:
        return ""


def members(leader: int, leader_ticks: int, folder: str) -> list[int]:
    """Return the live processes of the session that ``leader`` led in ``folder``. Raises OSError without /proc."""
    current_ticks = start_ticks(leader)
    # A new leader lacks the group and the mark, because it sets them itself after its start.
    pids = [leader] if current_ticks == leader_ticks else []
    # While a group has a member its number is not reused: another leader means another group.
    group = None if current_ticks not in {None, leader_ticks} else str(leader).encode()
    mark = f"{MARK}={folder}".encode()
    own_user = os.geteuid()
    excluded = {os.getpid(), *pids}
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib costs the keeper more than its whole work
        if not name.isdigit() or int(name) in excluded:
            continue
        fields = read_stat(name)
        if fields and ((group is not None and group in fields[2:4]) or _is_marked(name, mark, own_user)):
            pids.append(int(name))
    return pids


def kill_members(leader: int, leader_ticks: int, folder: str, rounds: int) -> bool:
    """Send SIGKILL to all members and wait briefly for their end; return whether none is left."""
    for _ in range(rounds):
        pids = members(leader, leader_ticks, folder)
        if not pids:
            return True
        kill(pids)
    return not members(leader, leader_ticks, folder)


def kill(pids: list[int]) -> None:
    """Send SIGKILL to processes and wait briefly for the end of one of them."""
    watch = select.poll()
    watched = []
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
            watched.append(descriptor)
            os.kill(pid, SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
        watch.register(descriptor, select.POLLIN)
    watch.poll(_WAIT_MILLISECONDS)
    for descriptor in watched:
        os.close(descriptor)


def works_for(pid: int, folder: str) -> bool:
    """Return whether a live process of this user carries the mark of the session that works in ``folder``."""
    return read_stat(pid) is not None and _is_marked(str(pid), f"{MARK}={folder}".encode(), os.geteuid())


def _is_marked(pid: str, mark: bytes, own_user: int) -> bool:
    try:
        if os.stat(f"/proc/{pid}").st_uid != own_user:  # noqa: PTH116 - as above
            return False
        return mark in (_read(f"/proc/{pid}/environ") or b"").split(b"\0")
    except (FileNotFoundError, PermissionError):
        return False


def _read(path: str) -> bytes | None:
    """Return a file of /proc, or None if its process is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(descriptor, _CHUNK_BYTES):
                pieces.append(piece)
            return b"".join(pieces)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError):
        return None
