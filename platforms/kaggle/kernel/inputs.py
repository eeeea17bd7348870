"""What a kernel is given: archives in private datasets that are named by content, shared by runs and never changed.

A dataset's slug is made of the digest of its one file, so a repeated or interrupted upload ends in the same dataset.
A deleted slug must not come back (later pushes were seen to fail), so each digest counts its generations.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from jobs.payload.clock import stopwatch
from jobs.payload.store.manifest import sha256_file
from jobs.payload.whole_file import write_whole
from platforms.artifacts.base import BlobStore
from platforms.base import Refused
from platforms.kaggle.api.client import KaggleClient
from platforms.record_file import DamagedRecord, read_record
from platforms.relay import pack_objects

_Result = TypeVar("_Result")
_GENERATIONS_MAX = 100
_SLUG_DIGITS = 24
_OVER = {"DELETED", "FAILED"}
_USED_UP = "gone-"  # a note of a name that is used up: Kaggle need not tell a deleted dataset from one that never was
_SECRETS = "secret"
_STRANGE_SECRETS_SECONDS = 86_400
_AGAIN_SECONDS = 120  # scheduled: when to ask again for an upload that goes on


# Slow work that outlasts the patience of the caller; of each name at most one at a time.
class TaskUnfinished(Exception):
    """The task goes on; ``progress`` says how far it has come. Ask again later."""

    def __init__(self, progress: str) -> None:
        super().__init__(progress)
        self.progress = progress


class BackgroundTasks(Generic[_Result]):
    """The tasks of one adapter, which any thread may ask for. What they do must be safe to cut short and repeat."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Future[_Result], deque[str]]] = {}
        self._turn = threading.Lock()

    def run(self, name: str, work: Callable[[Callable[[str], None]], _Result], patience_seconds: float) -> _Result:
        """Return what ``work`` returns, or raise what it raises, once it is over; joins an task of that name.

        ``work`` is handed a function that it tells how far it has come. Raises TaskUnfinished when ``patience_seconds``
        (real) pass before.
        """
        with self._turn:
            if name not in self._running:
                future, progress = self._running[name] = Future(), deque(["just begun"], maxlen=1)
                words = (future, partial(work, progress.append))
                threading.Thread(target=_settle, args=words, name=f"task {name}", daemon=True).start()
            future, progress = self._running[name]
        if wait([future], max(0.0, patience_seconds)).not_done:
            raise TaskUnfinished(progress[0])
        with self._turn:
            if self._running.get(name) == (future, progress):
                del self._running[name]
        return future.result()


def _settle(future: Future[_Result], work: Callable[[], _Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the caller
        future.set_exception(error)


@dataclass(frozen=True, slots=True)
class AttachedInput:
    """One attached file: its name and digest, the dataset that holds it, and where it is unpacked."""

    dataset: str
    name: str
    sha256: str
    into: str

    def order(self) -> dict[str, str]:
        """Return the settings of the bootstrap program."""
        return {"name": self.name, "sha256": self.sha256, "into": self.into}


@dataclass(frozen=True, slots=True)
class _Note:
    used_at: int
    sha256: str = ""
    key: str = ""  # of the launch whose secrets it holds


class Inputs:
    """The datasets of one account. ``folder`` keeps when each was last used (scheduled UTC seconds).

    ``ready_seconds`` is the patience with Kaggle's processing, ``call_seconds`` with one silent connection.
    """

    def __init__(self, client: KaggleClient, folder: Path, prefix: str, ready_seconds: int, call_seconds: int) -> None:
        self._client = client
        self._folder = folder
        self._prefix = prefix
        self._ready_seconds = ready_seconds
        self._call_seconds = call_seconds
        self._tasks: BackgroundTasks[tuple[str, str, str]] = BackgroundTasks()
        folder.mkdir(parents=True, exist_ok=True)

    def give_archive(self, archive: Path, kind: str, now: int, until: float) -> AttachedInput:
        """Make sure that a READY dataset holds a small file of ours, which may be gone when this returns.

        ``until`` (real, of the stopwatch) is how long to wait; the upload goes on beyond it. Raises Refused,
        Unreachable, Denied, OSError.
        """
        data = archive.read_bytes()

        def make(path: Path) -> None:
            path.write_bytes(data)

        return self._give(kind, "code", hashlib.sha256(data).hexdigest(), make, now, until)

    def give_objects(
        self, store: BlobStore, keys: Sequence[str], kind: str, now: int, until: float, into: str = "store"
    ) -> AttachedInput:
        """Give objects of a store, none of which ever changes; the kernel finds them under the same keys in its own.

        ``into`` is ``store``, or ``trees`` for what is only read and may be large.
        """
        identity = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()
        return self._give(kind, into, identity, lambda path: pack_objects(store, keys, path), now, until)

    def sign(self, key: str) -> str:
        """Return the slug of the dataset whose being there asks the session of a launch to save and leave."""
        return f"{self._prefix}-stop-{hashlib.sha256(key.encode()).hexdigest()[:_SLUG_DIGITS]}-0"

    def give_sign(self, key: str, now: int) -> None:
        """Put up the sign for a session; may be repeated. Raises Refused, Unreachable, Denied, OSError."""
        slug = self.sign(key)
        self._note(slug, {"used_at": now})
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            file = Path(folder) / f"{slug}.bin"
            file.write_bytes(b"stop\n")
            self._send(file, file.name, slug, lambda _progress: None)

    def give_secrets(self, key: str, secrets: Mapping[str, str], now: int, until: float) -> tuple[AttachedInput, bytes]:
        """Make the dataset that holds the secrets of one launch, for :meth:`take_back` to delete when it is over.

        It is noted before it is made. What it holds is worth nothing without the random bytes that are returned, which
        are for the kernel's source: whatever Kaggle keeps of a deleted dataset, one of the two is not enough. Raises
        Refused, Unreachable, Denied, OSError.
        """
        slug = f"{self._prefix}-{_SECRETS}-{hashlib.sha256(key.encode()).hexdigest()[:_SLUG_DIGITS]}-0"
        self._note(slug, {"used_at": now, "key": key})
        plain = json.dumps(dict(secrets)).encode()
        pad = os.urandom(len(plain))
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            file = Path(folder) / f"{slug}.bin"
            file.write_bytes(bytes(one ^ other for one, other in zip(plain, pad, strict=True)))
            digest = sha256_file(file)
            if not self._send(file, file.name, slug, lambda _progress: None):
                raise Refused("kaggle", "create a dataset", f"{slug} is there already", permanent=True)
            self._wait_ready(slug, None, lambda _progress: None, min(self._ready_seconds, until - stopwatch()))
            return AttachedInput(slug, file.name, digest, "secrets"), pad

    def take_back(self, is_over: Callable[[str], bool]) -> None:
        """Delete the datasets with secrets of the launches that are over. Raises Unreachable, Denied, OSError."""
        for path in sorted(self._folder.glob(f"{self._prefix}-{_SECRETS}-*")):
            record = self._note_of(path.name)
            if record is not None and record.key and is_over(record.key):
                self._client.datasets.delete(path.name)
                path.unlink()

    def full_name(self, slug: str) -> str:
        """Return a dataset's name as others must write it. Raises Misconfigured, Unreachable."""
        return f"{self._client.owner()}/{slug}"

    def note_orphans(self, now: int) -> list[str]:
        """Take over datasets of our naming that we have no note of; return their slugs. They age like the others."""
        kinds = f"code|data|ckpt|stop|{_SECRETS}"
        pattern = re.compile(rf"{re.escape(self._prefix)}-({kinds})-[0-9a-f]{{{_SLUG_DIGITS}}}-\d+")
        orphans = [
            slug
            for slug in self._client.datasets.own()
            if pattern.fullmatch(slug) and not (self._folder / slug).exists()
        ]
        for slug in orphans:
            self._note(slug, {"used_at": now})
        return orphans

    def sweep(self, in_use: Iterable[str], now: int, keep_seconds: int) -> None:
        """Delete datasets that no session in ``in_use`` needs and that were last given ``keep_seconds`` ago.

        Secrets without a record of their session go after a day, when that session is over.
        """
        kept = set(in_use)
        for path in sorted(self._folder.glob(f"{self._prefix}-*")):
            record = self._note_of(path.name)
            if record is None:
                self._note(path.name, {"used_at": now})  # it ages from now on
            elif path.name not in kept and not record.key and now - record.used_at > _kept(path.name, keep_seconds):
                self._client.datasets.delete(path.name)
                self._note(f"{_USED_UP}{path.name}", {"used_at": now})
                path.unlink()
        for path in self._folder.glob("made-*"):
            record = self._note_of(path.name)
            if record is None or now - record.used_at > keep_seconds:
                path.unlink()

    def _give(
        self, kind: str, into: str, identity: str, make: Callable[[Path], None], now: int, until: float
    ) -> AttachedInput:
        """Give the file that ``make`` writes; of one ``identity`` it writes the same file each time."""
        task = f"{kind}-{identity}"

        def work(tell: Callable[[str], None]) -> tuple[str, str, str]:
            return self._prepare(kind, identity, make, now, tell)

        try:
            slug, name, sha256 = self._tasks.run(task, work, until - stopwatch())
        except TaskUnfinished as unfinished:
            why = f"its {kind} is still on its way to Kaggle: {unfinished.progress}"
            raise Refused("kaggle", "launch", why, "It goes on meanwhile", wait_until=now + _AGAIN_SECONDS) from None
        self._note(slug, {"used_at": now})
        return AttachedInput(slug, name, sha256, into)

    def _prepare(
        self, kind: str, identity: str, make: Callable[[Path], None], now: int, tell: Callable[[str], None]
    ) -> tuple[str, str, str]:
        """Return slug, name and digest of a READY dataset; what was made before is neither made nor sent again."""
        target = self._folder / f"made-{kind}-{identity[:_SLUG_DIGITS]}"
        record = self._note_of(target.name)
        sha256 = record.sha256 if record else ""
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            archive = Path(folder) / "archive"
            if not sha256:
                tell("being packed")
                sha256 = _pack(make, archive)
            self._note(target.name, {"sha256": sha256, "used_at": now})
            name = f"{kind}-{sha256[:_SLUG_DIGITS]}.bin"  # Kaggle would unpack what it takes for an archive
            stem = f"{self._prefix}-{kind}-{sha256[:_SLUG_DIGITS]}"
            for generation in range(_GENERATIONS_MAX):
                slug = f"{stem}-{generation}"
                status = self._client.datasets.status(slug)
                if status in _OVER or (status is None and (self._folder / f"{_USED_UP}{slug}").exists()):
                    continue
                fresh = True
                if status is None:
                    if not archive.exists() and _pack(make, archive) != sha256:
                        target.unlink()
                        raise Refused("kaggle", "prepare a dataset", f"the {kind} has changed since it was packed")
                    fresh = self._send(archive, name, slug, tell)
                try:
                    self._wait_ready(slug, status, tell)
                except Refused:
                    if not fresh and self._client.datasets.status(slug) is None:
                        self._note(f"{_USED_UP}{slug}", {"used_at": now})
                    raise
                return slug, name, sha256
        raise Refused("kaggle", "create a dataset", f"{stem} was deleted {_GENERATIONS_MAX} times", permanent=True)

    def _send(self, archive: Path, name: str, slug: str, tell: Callable[[str], None]) -> bool:
        """Upload a file and make a dataset of it; False: there is, or was, one of that name."""
        size = archive.stat().st_size

        def advanced(sent: int) -> None:
            tell(f"{sent / 1e9:.2f} of {size / 1e9:.2f} GB are sent")

        token = self._client.datasets.upload(archive, name, self._call_seconds, advanced)
        wrong = self._client.datasets.create(slug, slug, [token])
        if wrong and "already in use" not in wrong.lower():
            raise Refused("kaggle", "create a dataset", wrong)
        return not wrong

    def _wait_ready(
        self, slug: str, status: str | None, tell: Callable[[str], None], seconds: float | None = None
    ) -> None:
        """Wait until a dataset can be attached; right after its creation Kaggle does not even admit to have it."""
        most = self._ready_seconds if seconds is None else seconds
        patience, waited, pause = threading.Event(), 0.0, 0.05
        while status != "READY":
            tell(f"{slug} is {status or 'not visible'}")
            if status in _OVER or waited > most:
                raise Refused(
                    "kaggle", "prepare a dataset", f"{slug} is {status or 'not visible'} after {waited:.0f} s"
                )
            patience.wait(pause)
            waited, pause = waited + pause, min(10.0, pause * 1.5)
            status = self._client.datasets.status(slug)

    def _note_of(self, name: str) -> _Note | None:
        """Return a note; None when there is none, or it is damaged."""
        with suppress(DamagedRecord):
            return read_record(self._folder, name, _Note)
        return None

    def _note(self, name: str, document: dict[str, object]) -> None:
        write_whole(self._folder / name, json.dumps(document))


def _kept(slug: str, keep_seconds: int) -> int:
    return min(keep_seconds, _STRANGE_SECRETS_SECONDS) if f"-{_SECRETS}-" in slug else keep_seconds


def _pack(make: Callable[[Path], None], archive: Path) -> str:
    make(archive)
    return sha256_file(archive)
