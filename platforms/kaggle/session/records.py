"""What the adapter must remember of each launch: one file for each key, replaced whole.

A record is written before the kernel is pushed, so that a launch whose answer never came is looked for by its slug and
never pushed a second time: Kaggle would start a second session beside the first.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from jobs.payload.whole_file import write_whole
from platforms.folders import take
from platforms.record_file import read_record

_LOCK_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Record:
    """One launch. Instants are UTC seconds (scheduled).

    ``state``: ``intent`` (perhaps pushed), ``pushed``, ``ended``, ``void`` (never started and never will be).
    ``void_from`` is when an intent that is not on Kaggle is given up, ``missed_at`` when a session was first missed.
    ``queued_at`` is when it was last seen to wait, and ``started`` the earliest that it can have begun after that.
    ``over_at`` is when it was first seen to be over, ``asked_at`` when it was first asked to leave, ``cancelled_at``
    when Kaggle was first asked to cancel it, ``deleted_at`` when its kernel was deleted. ``timeout_seconds`` is how
    long Kaggle was asked to let it run, ``overran_at`` when it was last seen to run for longer. ``told`` is False when
    ``ended`` is the latest that the end can have been, ``taken`` True when it was ended from outside, and not by us.
    ``jobs`` and ``relays`` say what to bring home. ``collected`` is true when no more is wanted.
    ``slug`` is the kernel's name, ``datasets`` those of its inputs.
    """

    key: str
    slug: str
    state: Literal["intent", "pushed", "ended", "void"]
    intended_at: int
    void_from: int
    jobs: tuple[str, ...] = ()
    relays: bool = False
    datasets: tuple[str, ...] = ()
    queued_at: int | None = None
    started: int | None = None
    ended: int | None = None
    detail: str = ""
    asked_at: int | None = None
    cancelled_at: int | None = None
    deleted_at: int | None = None
    over_at: int | None = None
    missed_at: int | None = None
    collected: bool = False
    timeout_seconds: int | None = None
    overran_at: int | None = None
    told: bool = True
    taken: bool = False

    def having(self, **changes: Any) -> Record:
        """Return the record with ``changes``."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class SessionWords:
    """What a session has said of itself: its id, if it can be asked to save, when it began. None: nothing yet."""

    session_id: int | None = None
    hears: bool | None = None
    began: float | None = None


class LaunchRecords:
    """The records below ``root``, which any number of adapters and daemons may share."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True, mode=0o700)

    def all_keys(self) -> list[str]:
        """Return the keys of all records, sorted."""
        return sorted(path.name.removesuffix(".json") for path in self._root.glob("*.json"))

    def read(self, key: str) -> Record | None:
        """Return a record. Raises OSError, DamagedRecord; the root must be there."""
        self._root.stat()  # an unmounted disk must not look like an empty one
        return read_record(self._root, f"{key}.json", Record)

    def write(self, record: Record) -> Record:
        """Write a record so that a crash leaves the old one or the new one."""
        write_whole(self._root / f"{record.key}.json", json.dumps(asdict(record)), sync=True)
        return record

    def drop(self, key: str) -> None:
        """Forget a launch, its log and what it said."""
        for kind in ("log", "live", "said", "tail", "lock", "json"):
            (self._root / f"{key}.{kind}").unlink(missing_ok=True)

    def log_path(self, key: str) -> Path:
        """Return where the output of an ended session is kept."""
        return self._root / f"{key}.log"

    def live_path(self, key: str) -> Path:
        """Return where the output of a running session is kept, as far as streamed."""
        return self._root / f"{key}.live"

    def words(self, key: str) -> SessionWords:
        """Return what a session has said of itself so far. Raises OSError, DamagedRecord."""
        return read_record(self._root, f"{key}.said", SessionWords) or SessionWords()

    def note_words(self, key: str, report: SessionWords) -> None:
        """Write down what a session has said of itself; its log is the only source of that."""
        write_whole(self._root / f"{key}.said", json.dumps(asdict(report)), sync=True)

    @contextmanager
    def tail_held(self, key: str) -> Iterator[bool]:
        """Hold the right to read a session's stream, at once; False: somebody else reads it."""
        with (self._root / f"{key}.tail").open("ab") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def is_held(self, key: str) -> bool:
        """Return whether somebody holds a key just now."""
        try:
            with (self._root / f"{key}.lock").open("rb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def held(self, key: str) -> Iterator[None]:
        """Hold a key against other threads and daemons. Raises TimeoutError when somebody else keeps it."""
        with (self._root / f"{key}.lock").open("ab") as handle:
            take(handle, _LOCK_PATIENCE_SECONDS)
            yield
