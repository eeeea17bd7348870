"""Records: what must be remembered of a session on this side, in a folder for each key, as files that appear whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from platforms.base import Observed, SessionState
from platforms.folders import Folders
from platforms.local.records import publish
from platforms.record_file import DamagedRecord, read_record

ORDER, STARTED, END, OUTPUT = "order.json", "started.json", "end.json", "output.log"


@dataclass(frozen=True, slots=True)
class Ordered:
    """What was ordered, in scheduled UTC seconds; ``start_by`` in real ones: a task that starts later leaves."""

    at: int
    deadline: int
    start_by: int


@dataclass(frozen=True, slots=True)
class Started:
    """Since when a cluster is up and billed, in scheduled UTC seconds."""

    at: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, in scheduled UTC seconds; ``started`` is None when it never did.

    ``price`` is what an hour of it cost by the server's estimate, in microdollars; None where it has none. ``taken``:
    its cluster went without our word.
    """

    started: int | None
    ended: int
    detail: str
    told: bool
    price: int | None = None
    taken: bool = False


_Record = TypeVar("_Record", Ordered, Started, Ended)


class Records:
    """The records in the folders of one pool. All raise OSError, reading also DamagedRecord."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders

    def order(self, key: str, order: Ordered) -> None:
        """Make the folder of a session. The caller holds the lock."""
        self._folders.make(key, partial(_write, json.dumps(asdict(order))))

    def ordered(self, key: str) -> Ordered:
        """Return what was ordered."""
        return self._read(key, ORDER, Ordered)

    def start(self, key: str, at: int) -> Started:
        """Write down since when a session runs, unless that is known; return what is."""
        publish(str(self._folders.root / key), STARTED, json.dumps(asdict(Started(at))))
        return self.started(key)

    def started(self, key: str) -> Started:
        """Return since when a session runs."""
        return self._read(key, STARTED, Started)

    def end(self, key: str, end: Ended) -> Observed:
        """Write down how a session ended, unless that is known; return how it was first told."""
        publish(str(self._folders.root / key), END, json.dumps(asdict(end)))
        return self.ended(key)

    def ended(self, key: str) -> Observed:
        """Return how a session ended."""
        end = self._read(key, END, Ended)
        if end.started is None:
            return Observed(key, SessionState.ABSENT, "", detail=end.detail)
        return Observed(
            key, SessionState.ENDED, "", end.started, end.ended, end.detail, told=end.told,
            price_microdollars_per_hour=end.price, taken=end.taken,
        )  # fmt: skip

    def keep_output(self, key: str, said: bytes) -> None:
        """Keep what a session has printed so far; it only grows."""
        kept = self._folders.root / key / OUTPUT
        if said and not (kept.exists() and kept.stat().st_size > len(said)):
            fresh = kept.with_name(f".{OUTPUT}")
            fresh.write_bytes(said)
            fresh.replace(kept)

    def _read(self, key: str, name: str, kind: type[_Record]) -> _Record:
        found = read_record(self._folders.root, f"{key}/{name}", lambda document: kind(**document))
        if found is None:
            raise DamagedRecord(f"{self._folders.root / key / name} is gone")
        return found


def _write(text: str, folder: Path) -> None:
    (folder / ORDER).write_text(text)
