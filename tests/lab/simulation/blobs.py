"""The artifact store in memory: the real key layout, outages, and faults on the daemon's side."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from platforms.artifacts.base import Missing, StoreError, StoreUnreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from platforms.artifacts.base import Grant
    from tests.lab.simulation.faults import Faults

_Answer = TypeVar("_Answer")


class Shelves:
    """What truly is in the store. Sessions write here directly."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.down = False
        self.unreadable: set[str] = set()  # there, and nobody can read them
        self.met: set[str] = set()  # those that somebody tried to, in a cycle that went through
        self.met_now: set[str] = set()  # and in the one that goes on
        self.watchers: list[Callable[[str], None]] = []
        self._folders: dict[str, set[str]] = defaultdict(set)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace one object."""
        if key not in self.objects:
            for folder in _folders_of(key):
                self._folders[folder].add(key)
        self.objects[key] = data
        for watcher in self.watchers:
            watcher(key)

    def below(self, prefix: str) -> list[str]:
        """Return the keys in a folder, sorted."""
        return sorted(self._folders.get(prefix, ()) if prefix else self.objects)

    def remove(self, key: str) -> bool:
        """Remove one object; return whether there was one."""
        if self.objects.pop(key, None) is None:
            return False
        for folder in _folders_of(key):
            self._folders[folder].discard(key)
        return True


def _folders_of(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:depth]) + "/" for depth in range(1, len(parts))]


class SimulatedBlobs:
    """The daemon's view of the shelves: a BlobStore each call of which is a fault point."""

    def __init__(self, shelves: Shelves, faults: Faults) -> None:
        self._shelves = shelves
        self._faults = faults

    def create(self, key: str, source: Path | bytes) -> bool:
        """Write unless it exists; see BlobStore.create."""

        def effect() -> bool:
            if key in self._shelves.objects:
                return False
            self._shelves.put(key, source.read_bytes() if isinstance(source, Path) else source)
            return True

        return self._call("create", key, effect)

    def put(self, key: str, data: bytes) -> None:
        """Write or replace; see BlobStore.put."""
        self._call("put", key, lambda: self._shelves.put(key, data))

    def read(self, key: str, limit_bytes: int = 1 << 24) -> bytes:
        """Return an object's bytes; see BlobStore.read."""

        def effect() -> bytes:
            data = self._shelves.objects.get(key)
            if data is None:
                raise Missing("read", key, "there is no such key")
            if key in self._shelves.unreadable:
                self._shelves.met_now.add(key)
                self._faults.seen["manifest unreadable"] += 1
                raise StoreError("read", key, "the disk does not give it")
            if len(data) > limit_bytes:
                raise StoreError("read", key, f"larger than {limit_bytes} bytes")
            return data

        return self._call("read", key, effect)

    def fetch(self, key: str, target: Path) -> None:
        """Copy an object into a file; see BlobStore.fetch."""
        target.write_bytes(self.read(key))

    def size(self, key: str) -> int | None:
        """Return an object's size; see BlobStore.size."""

        def effect() -> int | None:
            data = self._shelves.objects.get(key)
            return None if data is None else len(data)

        return self._call("size", key, effect)

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below a prefix; see BlobStore.keys."""
        yield from self._call("keys", prefix, lambda: self._shelves.below(prefix))

    def delete(self, key: str) -> bool:
        """Remove an object; see BlobStore.delete."""
        return self._call("delete", key, lambda: self._shelves.remove(key))

    def sweep(self, older_than: float) -> int:
        """Writers leave nothing here; see BlobStore.sweep."""
        del older_than
        return self._call("sweep", "", lambda: 0)

    def payload_address(self, grant: Grant) -> dict[str, Any]:
        """Return where sessions find the store."""
        del grant
        return {"kind": "directory", "root": "/simulated"}

    def _call(self, action: str, key: str, effect: Callable[[], _Answer]) -> _Answer:
        def reached() -> _Answer:
            if self._shelves.down:
                self._faults.seen["artifact outage met"] += 1
                raise StoreUnreachable(action, key, "the store is down")
            return effect()

        return self._faults.call(f"store.{action} {key}", reached, lambda why: StoreUnreachable(action, key, why))
