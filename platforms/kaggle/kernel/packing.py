"""Pack a launch: its code, data and checkpoints as datasets, and a kernel source that names them with their digests.

A kernel's inputs are archives in private datasets. The slug of a dataset contains the digest of its one file, so a
repeated or interrupted upload results in the same dataset. A deleted slug must not be reused (later pushes were seen to
fail), so each digest has a generation number.
"""

import ast
import base64
import hashlib
import json
import os
import re
import tempfile
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from jobs.payload.clock import stopwatch
from jobs.payload.store.manifest import sha256_file
from jobs.payload.store.tree import LIMITS, LISTING, MOUNTED, BadListing, parse_mounted
from jobs.payload.whole_file import write_whole
from platforms.artifacts.base import BlobStore
from platforms.artifacts.directory import DirectoryStore
from platforms.base import LaunchRequest, Misconfigured, Refused
from platforms.bundle import build_bundle
from platforms.kaggle.api.client import KaggleClient
from platforms.kaggle.kernel import bootstrap
from platforms.kaggle.settings import KaggleSettings
from platforms.record_file import DamagedRecord, read_record
from platforms.registry import PlatformContext
from platforms.relay import checkpoint_keys, folder_keys, launch_with_attached, pack_objects
from platforms.remote import payload_of
from platforms.wrap import in_background

_Result = TypeVar("_Result")
_GENERATIONS_MAX = 100
_SLUG_DIGITS = 24
_OVER = {"DELETED", "FAILED"}
_USED_UP = "gone-"  # the record of a used-up name: Kaggle may report a deleted dataset like one that never existed
_SECRETS = "secret"
_UNKNOWN_SECRETS_SECONDS = 86_400  # no session lasts longer
_AGAIN_SECONDS = 120  # scheduled: when to launch again after an unfinished upload


# Slow work that may exceed the caller's timeout; at most one task per name at a time.
class TaskUnfinished(Exception):
    """The task goes on; the text is its progress. Call again later."""


class BackgroundTasks(Generic[_Result]):
    """The background tasks of one adapter, for any thread. Their work must be safe to interrupt and repeat."""

    def __init__(self) -> None:
        self._running: dict[str, tuple[Future[_Result], deque[str]]] = {}
        self._lock = threading.Lock()

    def run(self, name: str, work: Callable[[Callable[[str], None]], _Result], patience_seconds: float) -> _Result:
        """Return the result of ``work``, or raise its error, once it finishes; join a running task of that name.

        ``work`` gets a function to call with progress texts. Raises TaskUnfinished after ``patience_seconds`` (real).
        """
        with self._lock:
            if name not in self._running:
                progress = deque(["just started"], maxlen=1)
                self._running[name] = in_background(f"task {name}", partial(work, progress.append)), progress
            future, progress = self._running[name]
        if wait([future], max(0.0, patience_seconds)).not_done:
            raise TaskUnfinished(progress[0])
        with self._lock:
            if self._running.get(name) == (future, progress):
                del self._running[name]
        return future.result()


@dataclass(frozen=True, slots=True)
class AttachedInput:
    """One attached file: its name and digest, its dataset, and where it is unpacked."""

    dataset: str
    name: str
    sha256: str
    into: str

    def order(self) -> dict[str, str]:
        """Return the input's entry in the order for the bootstrap program."""
        return {"name": self.name, "sha256": self.sha256, "into": self.into}


@dataclass(frozen=True, slots=True)
class _DatasetRecord:
    used_at: int
    sha256: str = ""
    key: str = ""  # of the launch whose secrets it contains


class Inputs:
    """The datasets of one account. ``folder`` records when each was last used (scheduled UTC seconds).

    ``ready_seconds`` is the time limit for Kaggle's processing, ``call_seconds`` the limit for a silent connection.
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
        """Ensure that a READY dataset contains a small file of ours, which may be deleted after this call.

        ``until`` (real, of the stopwatch) is how long to wait; the upload goes on after that. Raises Refused,
        Unreachable, Denied, OSError.
        """
        data = archive.read_bytes()
        return self._attach(
            kind, "code", hashlib.sha256(data).hexdigest(), lambda path: path.write_bytes(data), now, until
        )

    def give_objects(
        self, store: BlobStore, keys: Sequence[str], kind: str, now: int, until: float, into: str = "store"
    ) -> AttachedInput:
        """Upload immutable objects of a store; the kernel finds them under the same keys in its own store.

        ``into`` is ``store``, or ``trees`` for objects that are only read and may be large.
        """
        identity = hashlib.sha256("\n".join(sorted(keys)).encode()).hexdigest()
        return self._attach(kind, into, identity, lambda path: pack_objects(store, keys, path), now, until)

    def stop_slug(self, key: str) -> str:
        """Return the slug of the stop dataset, whose existence asks the session of a launch to save and exit."""
        return f"{self._prefix}-stop-{hashlib.sha256(key.encode()).hexdigest()[:_SLUG_DIGITS]}-0"

    def create_stop_dataset(self, key: str, now: int) -> None:
        """Create the stop dataset of a launch. Idempotent. Raises Refused, Unreachable, Denied, OSError."""
        slug = self.stop_slug(key)
        self._write_record(slug, {"used_at": now})
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            file = Path(folder) / f"{slug}.bin"
            file.write_bytes(b"stop\n")
            self._send(file, file.name, slug, lambda _progress: None)

    def give_secrets(self, key: str, secrets: Mapping[str, str], now: int, until: float) -> tuple[AttachedInput, bytes]:
        """Create the dataset with the secrets of one launch; return it with the pad that decrypts it.

        The dataset is recorded before it is created, and :meth:`delete_secrets` deletes it after the launch's end. The
        kernel's source gets the pad, so that data which Kaggle keeps of a deleted dataset is useless without the
        source. Raises Refused, Unreachable, Denied, OSError.
        """
        slug = f"{self._prefix}-{_SECRETS}-{hashlib.sha256(key.encode()).hexdigest()[:_SLUG_DIGITS]}-0"
        self._write_record(slug, {"used_at": now, "key": key})
        plain = json.dumps(dict(secrets)).encode()
        pad = os.urandom(len(plain))
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            file = Path(folder) / f"{slug}.bin"
            file.write_bytes(bytes(byte ^ key_byte for byte, key_byte in zip(plain, pad, strict=True)))
            digest = sha256_file(file)
            if not self._send(file, file.name, slug, lambda _progress: None):
                raise Refused("kaggle", "create a dataset", f"{slug} exists already", permanent=True)
            self._wait_ready(slug, None, lambda _progress: None, min(self._ready_seconds, until - stopwatch()))
            return AttachedInput(slug, file.name, digest, "secrets"), pad

    def delete_secrets(self, is_over: Callable[[str], bool]) -> None:
        """Delete the datasets with the secrets of ended launches. Raises Unreachable, Denied, OSError."""
        for path in sorted(self._folder.glob(f"{self._prefix}-{_SECRETS}-*")):
            record = self._read_record(path.name)
            if record is not None and record.key and is_over(record.key):
                self._client.datasets.delete(path.name)
                path.unlink()

    def full_name(self, slug: str) -> str:
        """Return a dataset's full name, with its owner. Raises Misconfigured, Unreachable."""
        return f"{self._client.owner()}/{slug}"

    def record_orphans(self, now: int) -> list[str]:
        """Record datasets with names like ours that have no record; return their slugs. They expire like the others."""
        kinds = f"code|data|ckpt|stop|{_SECRETS}"
        pattern = re.compile(rf"{re.escape(self._prefix)}-({kinds})-[0-9a-f]{{{_SLUG_DIGITS}}}-\d+")
        slugs = filter(pattern.fullmatch, self._client.datasets.own())
        orphans = [slug for slug in slugs if not (self._folder / slug).exists()]
        for slug in orphans:
            self._write_record(slug, {"used_at": now})
        return orphans

    def sweep(self, in_use: Iterable[str], now: int, keep_seconds: int) -> None:
        """Delete datasets that are not in the slugs ``in_use`` and were last used more than ``keep_seconds`` ago.

        Secrets without a record of their session are deleted after a day, because the session has ended by then.
        """
        kept = set(in_use)
        for path in sorted(self._folder.glob(f"{self._prefix}-*")):
            record = self._read_record(path.name)
            if record is None:
                self._write_record(path.name, {"used_at": now})  # its age counts from now on
            elif path.name not in kept and not record.key and now - record.used_at > _max_age(path.name, keep_seconds):
                self._client.datasets.delete(path.name)
                self._write_record(f"{_USED_UP}{path.name}", {"used_at": now})
                path.unlink()
        for path in self._folder.glob("made-*"):
            record = self._read_record(path.name)
            if record is None or now - record.used_at > keep_seconds:
                path.unlink()

    def _attach(
        self, kind: str, into: str, identity: str, make: Callable[[Path], object], now: int, until: float
    ) -> AttachedInput:
        """Upload the file that ``make`` writes, which must be the same each time for the same ``identity``."""
        task = f"{kind}-{identity}"

        def work(report: Callable[[str], None]) -> tuple[str, str, str]:
            return self._prepare(kind, identity, make, now, report)

        try:
            slug, name, sha256 = self._tasks.run(task, work, until - stopwatch())
        except TaskUnfinished as unfinished:
            why = f"its {kind} is still on its way to Kaggle: {unfinished}"
            remedy = "Wait: the upload continues in the background"
            raise Refused("kaggle", "launch", why, remedy, wait_until=now + _AGAIN_SECONDS) from None
        self._write_record(slug, {"used_at": now})
        return AttachedInput(slug, name, sha256, into)

    def _prepare(
        self, kind: str, identity: str, make: Callable[[Path], object], now: int, report: Callable[[str], None]
    ) -> tuple[str, str, str]:
        """Return slug, name and digest of a READY dataset; do not pack or send a file that was uploaded before."""
        target = self._folder / f"made-{kind}-{identity[:_SLUG_DIGITS]}"
        record = self._read_record(target.name)
        sha256 = record.sha256 if record else ""
        with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
            archive = Path(folder) / "archive"
            if not sha256:
                report("being packed")
                sha256 = _pack(make, archive)
            self._write_record(target.name, {"sha256": sha256, "used_at": now})
            name = f"{kind}-{sha256[:_SLUG_DIGITS]}.bin"  # Kaggle would unpack a file that looks like an archive
            stem = f"{self._prefix}-{kind}-{sha256[:_SLUG_DIGITS]}"
            for generation in range(_GENERATIONS_MAX):
                slug = f"{stem}-{generation}"
                status = self._client.datasets.status(slug)
                if status in _OVER or (status is None and (self._folder / f"{_USED_UP}{slug}").exists()):
                    continue
                is_new = True
                if status is None:
                    if not archive.exists() and _pack(make, archive) != sha256:
                        target.unlink()
                        raise Refused("kaggle", "prepare a dataset", f"the {kind} has changed since it was packed")
                    is_new = self._send(archive, name, slug, report)
                try:
                    self._wait_ready(slug, status, report)
                except Refused:
                    if not is_new and self._client.datasets.status(slug) is None:
                        self._write_record(f"{_USED_UP}{slug}", {"used_at": now})
                    raise
                return slug, name, sha256
        raise Refused("kaggle", "create a dataset", f"{stem} was deleted {_GENERATIONS_MAX} times", permanent=True)

    def _send(self, archive: Path, name: str, slug: str, report: Callable[[str], None]) -> bool:
        """Upload a file and create a dataset with it; return False if a dataset of that name exists or existed."""
        size = archive.stat().st_size

        def advanced(sent: int) -> None:
            report(f"{sent / 1e9:.2f} of {size / 1e9:.2f} GB are sent")

        token = self._client.datasets.upload(archive, name, self._call_seconds, advanced)
        error = self._client.datasets.create(slug, slug, [token])
        if error and "already in use" not in error.lower():
            raise Refused("kaggle", "create a dataset", error)
        return not error

    def _wait_ready(
        self, slug: str, status: str | None, report: Callable[[str], None], seconds: float | None = None
    ) -> None:
        """Wait until a dataset can be attached; right after its creation Kaggle reports that it does not exist."""
        seconds_max = self._ready_seconds if seconds is None else seconds
        patience, waited, pause = threading.Event(), 0.0, 0.05
        while status != "READY":
            report(f"{slug} is {status or 'not visible'}")
            if status in _OVER or waited > seconds_max:
                why = f"{slug} is {status or 'not visible'} after {waited:.0f} s"
                raise Refused("kaggle", "prepare a dataset", why)
            patience.wait(pause)
            waited, pause = waited + pause, min(10.0, pause * 1.5)
            status = self._client.datasets.status(slug)

    def _read_record(self, name: str) -> _DatasetRecord | None:
        """Return a record; None if it does not exist or is damaged."""
        with suppress(DamagedRecord):
            return read_record(self._folder, name, _DatasetRecord)
        return None

    def _write_record(self, name: str, document: dict[str, object]) -> None:
        write_whole(self._folder / name, json.dumps(document))


def _max_age(slug: str, keep_seconds: int) -> int:
    return min(keep_seconds, _UNKNOWN_SECRETS_SECONDS) if f"-{_SECRETS}-" in slug else keep_seconds


def _pack(make: Callable[[Path], object], archive: Path) -> str:
    make(archive)
    return sha256_file(archive)


# The launch: its kernel source and its inputs.
SOURCE_BYTES_MAX = 900_000  # Kaggle accepted 0.93 MB, and failed 1.14 MB without a reason

_CALL, _PACKED_CALL, _CALL_END = "main(json.loads(", "main(unpacked(", "))"


# The source is one text: a first line that proves that it is ours, the bootstrap program, and its order. An order with
# the signed addresses of thousands of objects is compressed, which removes most of its size.
def build_source(key: str, order: Mapping[str, Any]) -> str:
    """Return the source for the launch ``key``. Raises Refused if the launch document is too large."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    document = json.dumps(order, ensure_ascii=True)
    text = f"{_first_line(key)}\n{program}\n\n{_CALL}{document!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        packed = base64.b85encode(zlib.compress(document.encode(), 9)).decode()
        text = f"{_first_line(key)}\n{program}\n\n{_PACKED_CALL}{packed!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        why = f"the kernel's source has {len(text.encode())} bytes; the limit is {SOURCE_BYTES_MAX}"
        raise Refused("kaggle", "launch", why, "Shorten the job's command and environment", permanent=True)
    return text


def is_source_of(key: str, source: str) -> bool:
    """Return whether a kernel with this source was pushed for the launch ``key``."""
    return source.partition("\n")[0].strip() == _first_line(key)


def order_of(source: str) -> Mapping[str, Any]:
    """Return the order in a source of ours. Raises ValueError if it was cut or changed."""
    call = source.rstrip().rpartition("\n")[2]
    opening = next((opening for opening in (_CALL, _PACKED_CALL) if call.startswith(opening)), None)
    if opening is None or not call.endswith(_CALL_END):
        raise ValueError("the last line of the kernel's source is not ours")
    try:
        document = ast.literal_eval(call.removeprefix(opening).removesuffix(_CALL_END))
        order = json.loads(document) if opening == _CALL else bootstrap.unpacked(document)
    except (SyntaxError, TypeError, zlib.error) as error:
        raise ValueError("the last line of the kernel's source is not ours") from error
    if not isinstance(order, dict):
        raise ValueError("the kernel's source has no order")
    return order


def _first_line(key: str) -> str:
    return f"# uff-scheduler launch {key}"


@dataclass(frozen=True, slots=True)
class Packed:
    """The content of a push: the source, the slugs of our datasets, and the datasets and models of others.

    ``relays``: the session cannot reach the artifact store; its inputs are attached, its output is downloaded.
    """

    source: str
    datasets: tuple[str, ...]
    mounted: tuple[str, ...]  # as kaggle-model:... or kaggle-dataset:...
    relays: bool


def pack(
    request: LaunchRequest, context: PlatformContext, inputs: Inputs, settings: KaggleSettings, now: int, until: float
) -> Packed:
    """Ensure that all inputs of the session are on Kaggle, wait for them ``until`` (stopwatch), and return the push.

    Raises Refused, Misconfigured, and the errors of Inputs and of the artifact store.
    """
    payload = payload_of("kaggle", request, context)
    with tempfile.TemporaryDirectory(prefix="uff-kaggle-") as folder:
        mounts = [inputs.give_archive(build_bundle(payload, Path(folder)).path, "code", now, until)]
    launch: dict[str, Any] = dict(request.launch)
    store = launch.get("store") or {}
    ask: dict[str, str] | None = None
    relays = settings.relays(str(store.get("kind", "")))
    if relays:
        objects, attached = _attach_store(_opened(store, context), launch.get("lanes", []), inputs, now, until)
        launch = launch_with_attached(launch, attached)
        launch.pop("store")  # the session stores objects in a folder of its own, and needs no signed addresses
        # The session cannot reach the stop flag in the store, so it polls for a dataset. It tests with an existing
        # dataset whether it can see new ones.
        stop = inputs.stop_slug(request.key)
        ask = {"dataset": inputs.full_name(stop), "proof": inputs.full_name(mounts[0].dataset)}
        mounts += objects
    mounted = _mounted(store, launch.get("lanes", []), context)
    order = {"launch": launch, "inputs": [item.order() for item in mounts], "relays": relays, "ask": ask}
    names = sorted({name for lane in launch.get("lanes", ()) for name in lane.get("secrets") or ()})
    if names and settings.secrets == "account":
        order["secrets"] = {"names": names}
    elif request.secrets:  # last, so that they are on Kaggle for as short a time as possible
        sealed, pad = inputs.give_secrets(request.key, request.secrets, now, until)
        mounts.append(sealed)
        order["secrets"] = {**sealed.order(), "pad": pad.hex()}
    datasets = tuple(sorted({item.dataset for item in mounts}))
    return Packed(build_source(request.key, order), datasets, mounted, relays)


def _attach_store(
    store: BlobStore, lanes: Sequence[dict[str, Any]], inputs: Inputs, now: int, until: float
) -> tuple[list[AttachedInput], set[str]]:
    """Upload each lane's data, code, trees and newest checkpoint; return the inputs and manifests among them."""
    attached: set[str] = set()
    trees = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    mounts = [
        inputs.give_objects(store, keys, "data", now, until, "trees" if prefix in trees else "store")
        for prefix, keys in folder_keys(store, lanes).items()
    ]
    for lane in lanes:
        keys = checkpoint_keys(store, lane)
        if keys:
            mounts.append(inputs.give_objects(store, keys, "ckpt", now, until))
            attached.add(keys[0])
    return mounts, attached


def _mounted(address: dict[str, str], lanes: Sequence[dict[str, Any]], context: PlatformContext) -> tuple[str, ...]:
    """Return the lanes' inputs that Kaggle itself stores; the listings in the artifact store name them.

    Raises Refused for a damaged listing, and the errors of the artifact store.
    """
    prefixes = {prefix for lane in lanes for prefix in (lane.get("trees") or {}).values()}
    names = sorted(prefix for prefix in prefixes if prefix.startswith(f"{MOUNTED}/"))
    store = _opened(address, context) if names else None
    listings = [store.read(f"{prefix}/{LISTING}", LIMITS.listing_bytes) for prefix in names] if store else []
    try:
        return tuple(sorted({parse_mounted(listing).source for listing in listings}))
    except BadListing as error:
        remedy = "Fetch the input again: schedctl queue update JOB --input NAME"
        raise Refused("kaggle", "launch", f"the list of an input is damaged: {error}", remedy, permanent=True) from None


def _opened(address: dict[str, str], context: PlatformContext) -> BlobStore:
    if address.get("kind") == "directory":
        return DirectoryStore(Path(address["root"]))
    if context.open_store is None:
        why = f"a store of the kind {address.get('kind')} cannot be read from here"
        raise Misconfigured("kaggle", "launch", why, "Set checkpoints = direct, so that sessions access it themselves")
    return context.open_store()
