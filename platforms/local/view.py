"""The view: the files of this machine as one session sees them, in a mount namespace of its own.

A session runs as the daemon's user, so file modes hide nothing from it. The agent's process therefore enters a user
namespace and a mount namespace before it becomes the agent. There, hidden paths are covered, and the parts of them that
the session needs are mounted again. In its user namespace a session has no capability, so it can neither undo this nor
inspect processes outside through /proc. The process must become the agent itself, because the keeper's signals and the
claim's pid refer to it. So bubblewrap is not used: it stays as a parent process and forwards no signals.

Only sessions that have a view load this file: ctypes costs milliseconds.
"""

import ctypes
import os
import stat
import sys

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _SLAVE = 0x1, 0x20, 0x1000, 0x4000, 0x80000
_KEPT = 0x2 | 0x4 | 0x8  # nosuid, nodev, noexec: an unprivileged remount must keep these flags of a mount
_DROP_BOUNDING, _NO_NEW_PRIVILEGES = 24, 38
_CAPABILITIES = 64
_LIBC = ctypes.CDLL(None, use_errno=True)


class ViewRefused(OSError):
    """This machine does not allow views: nothing was hidden."""


def enter(text: str) -> None:
    """Give this process and its children the view that ``text`` describes. Raises ViewRefused and OSError.

    ``text`` has entries that end in NUL: ``hide``, ``read`` or ``write``, a space, and an absolute path without links.
    Paths that do not exist or contain a link are skipped. Everything not named stays visible.
    """
    entries = [entry.split(" ", 1) for entry in text.split("\0") if entry]
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_USER | _NEW_MOUNTS)
        for name, words in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - pathlib costs the session more than its work
                file.write(words)
        _mount("none", "/", _RECURSIVE | _SLAVE)
    except PermissionError as error:  # Ubuntu's AppArmor allows the namespace but forbids all mounts in it
        raise ViewRefused(error.errno, error.strerror) from None
    by_path = sorted(entries, key=lambda entry: entry[1])
    visible = [(path, kind, _open(path)) for kind, path in by_path if kind != "hide"]
    covers: list[str] = []
    for kind, path in by_path:
        if kind == "hide" and not any(_is_below(path, cover) for cover in covers) and _cover(path):
            covers.append(path)
    for path, kind, handle in visible:
        if handle is not None and (kind == "read" or any(_is_below(path, cover) for cover in covers)):
            _show(path, handle, writable=kind == "write")
    for cover in covers:
        _call("mount", b"none", os.fsencode(cover), None, _REMOUNT | _BIND | _READ_ONLY | _flags(cover), None)
    for capability in range(_CAPABILITIES):  # root would regain them at the next exec
        _LIBC.prctl(_DROP_BOUNDING, capability, 0, 0, 0)
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _open(path: str) -> int | None:
    """Return a handle on ``path`` itself; None if it does not exist or contains a link."""
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if os.readlink(f"/proc/self/fd/{handle}") == path and not stat.S_ISLNK(os.fstat(handle).st_mode):  # noqa: PTH115
        return handle
    os.close(handle)
    return None


def _cover(path: str) -> bool:
    """Mount an empty folder over a folder, and /dev/null over a file; return whether it was a folder."""
    try:
        is_folder = stat.S_ISDIR(os.stat(path).st_mode)  # noqa: PTH116 - as above
    except (FileNotFoundError, NotADirectoryError):
        return False
    if is_folder:
        _call("mount", b"tmpfs", os.fsencode(path), b"tmpfs", _KEPT, b"mode=0755,size=1m")
    else:
        _mount(os.devnull, path, _BIND)
    return is_folder


def _show(path: str, handle: int, *, writable: bool) -> None:
    """Mount the original file or folder of ``handle`` at ``path`` again, with all mounts below it."""
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 - as above
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - as above
        if not os.path.lexists(path):
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    _mount(f"/proc/self/fd/{handle}", path, _BIND | _RECURSIVE)
    os.close(handle)
    if not writable:
        _call("mount", b"none", os.fsencode(path), None, _REMOUNT | _BIND | _READ_ONLY | _flags(path), None)


def _flags(path: str) -> int:
    return os.statvfs(path).f_flag & _KEPT


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _mount(source: str, target: str, flags: int) -> None:
    _call("mount", os.fsencode(source), os.fsencode(target), None, flags, None)


def _call(name: str, *arguments: object) -> None:
    if getattr(_LIBC, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name} is refused here: {os.strerror(number)}")


if __name__ == "__main__":
    enter(sys.argv[1])  # reports by its exit code whether views work here
