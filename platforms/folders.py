"""A pool's sessions as folders of this machine: one per launch key, created and removed atomically below one root."""

import fcntl
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from jobs.payload.bounded_file import open_below
from platforms.base import Misconfigured, Observed, SessionState, Unreachable
from platforms.record_file import DamagedRecord, unclear

_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}", re.ASCII)
_LOCK = ".lock"
_NEW = ".new-"  # a folder that is being created
_REMOVED = ".gone-"  # a folder that is being removed
_LOCK_PATIENCE_SECONDS = 5.0
_LOG_CHUNK_BYTES = 1 << 16
_PAUSE_SECONDS = 0.02


def is_folder_name(key: str) -> bool:
    """Return whether a launch key can be a folder's name."""
    return bool(_KEY.fullmatch(key))


def is_live(session: Observed) -> bool:
    """Return whether a session waits or runs, or its state is unclear."""
    return session.state not in {SessionState.ENDED, SessionState.ABSENT}


class Folders:
    """The folders of one pool of ``platform``. Any number of threads and daemons may share them.

    Methods raise OSError; within ``answering`` it becomes Unreachable.
    """

    def __init__(self, platform: str, root: Path) -> None:
        """Raises Misconfigured if ``root`` is not writable."""
        self.root = root
        self._platform = platform
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            (root / _LOCK).touch()
        except OSError as error:
            raise Misconfigured(platform, "load", str(error), "It needs a state folder it may write to") from error

    def keys(self) -> set[str]:
        """Return the launch keys of all sessions with a folder."""
        return {entry.name for entry in os.scandir(self.root) if is_folder_name(entry.name)}

    def files(self, key: str) -> set[str]:
        """Return the names of the entries of a session's folder; none if there is no folder."""
        try:
            return {entry.name for entry in os.scandir(self.root / key)}
        except (FileNotFoundError, NotADirectoryError):
            return set()

    def check_root(self) -> None:
        """Raise OSError if the root is missing: an unmounted disk must not look like an empty one."""
        (self.root / _LOCK).stat()

    def observed(self, keys: Iterable[str], observe: Callable[[str], Observed | None]) -> dict[str, Observed]:
        """Return the sessions that ``observe`` finds, by key; a session with a damaged record is UNCLEAR."""
        self.check_root()
        result = {}
        for key in filter(is_folder_name, keys):
            try:
                session = observe(key)
            except DamagedRecord as error:
                session = unclear(key, error)
            if session is not None:
                result[key] = session
        return result

    def live(self, observe: Callable[[str], Observed | None]) -> dict[str, Observed]:
        """Return the sessions that occupy the pool: those that wait or run, or whose state is unclear."""
        return {key: session for key, session in self.observed(self.keys(), observe).items() if is_live(session)}

    def over(self, keys: Collection[str], observe: Callable[[str], Observed | None]) -> list[str]:
        """Return, sorted, those of ``keys`` that have a folder and whose sessions ended or never started."""
        sessions = self.observed(sorted(self.keys() & set(keys)), observe)
        return [key for key, session in sessions.items() if not is_live(session)]

    def make(self, key: str, fill: Callable[[Path], object]) -> None:
        """Create a session's folder atomically, with the content that ``fill`` writes. The caller holds the lock."""
        unfinished = self.fresh(key)
        shutil.rmtree(unfinished, ignore_errors=True)  # left by a daemon that died during make()
        unfinished.mkdir(mode=0o700)
        try:
            fill(unfinished)
            unfinished.rename(self.root / key)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def fresh(self, name: str) -> Path:
        """Return the path for a folder that is being created; ``remove`` deletes it if its creator died."""
        return self.root / f"{_NEW}{name}"

    def remove(self, keys: Iterable[str]) -> None:
        """Remove folders atomically, by renaming, and all unfinished ones. The caller holds the lock."""
        for name in [*keys, *(path.name for path in self.root.glob(f"{_NEW}*"))]:
            (self.root / name).rename(self.root / f"{_REMOVED}{name.lstrip('.')}.{os.urandom(4).hex()}")

    def clear(self) -> None:
        """Delete removed folders from the disk; this may lock_file a while and needs no lock."""
        for leftover in self.root.glob(f"{_REMOVED}*"):
            shutil.rmtree(leftover, ignore_errors=True)

    def read(self, key: str, name: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
        """Yield a file of a session from byte ``offset`` on, at most ``limit_bytes``; nothing if it does not exist."""
        self.check_root()
        yield from read_part(self.root, f"{key}/{name}", offset, limit_bytes)

    @contextmanager
    def lock(self, patience_seconds: float = _LOCK_PATIENCE_SECONDS) -> Iterator[None]:
        """Lock the pool against other threads and daemons while sessions are counted. Raises TimeoutError."""
        with (self.root / _LOCK).open("rb") as handle:
            lock_file(handle, patience_seconds)
            yield

    @contextmanager
    def answering(self, action: str) -> Iterator[None]:
        """Translate errors of the disk and of damaged records into Unreachable: the state is unknown."""
        try:
            yield
        except (OSError, ValueError) as error:
            raise Unreachable(self._platform, action, str(error), f"Check {self.root}") from error


# A lock between processes on an open file, with a timeout, because its holder may hang.
def lock_file(handle: IO[bytes], patience_seconds: float) -> None:
    """Lock a file exclusively; closing the file releases the lock. Raises TimeoutError."""
    pause = threading.Event()
    for _ in range(max(1, round(patience_seconds / _PAUSE_SECONDS))):
        if try_lock(handle):
            return
        pause.wait(_PAUSE_SECONDS)
    raise TimeoutError(f"another process holds {handle.name}")


def try_lock(handle: IO[bytes]) -> bool:
    """Lock a file exclusively if it is free; return whether this call locked it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def read_part(root: Path, relative: str, offset: int, limit_bytes: int) -> Iterator[bytes]:
    """Yield a file below ``root`` from byte ``offset`` on, at most ``limit_bytes``; nothing if it does not exist."""
    try:
        stream = open_below(root, relative)
    except FileNotFoundError:
        return
    with stream:
        stream.seek(max(offset, 0))
        while limit_bytes > 0 and (piece := stream.read(min(limit_bytes, _LOG_CHUNK_BYTES))):
            limit_bytes -= len(piece)
            yield piece
