"""Storage of the code, packages and inputs that jobs need from this machine, and the fingerprint of their content."""

import gzip
import hashlib
import json
import os
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Protocol

from jobs.code.pack import pack
from jobs.definition import table_of
from jobs.environment.tool import PythonTarget, RequirementsError, find_tools, make_lock, read_demands, sizes
from jobs.inputs.folder import ENDPOINT, TreeError, pack_folder, pin
from jobs.nouns.keys import is_remote
from jobs.nouns.pool import Pool
from jobs.payload.bounded_file import open_below
from jobs.payload.store import tree
from jobs.payload.store.hub import KIND as HUB
from jobs.payload.store.lock import LOCK, encode_lock, lock_prefix
from jobs.payload.store.manifest import Manifest
from jobs.problem import Refusal
from jobs.secret_scan import require_no_secrets
from jobs.spec import HELD_OUT, TEST_SET, Code, Input, JobSpec, Requirements
from platforms.artifacts.base import BlobStore, Missing
from platforms.base import Published
from platforms.image import Image, has_lock, image_of, options_for
from scheduler.service.launch.inputs import KIND, drop_damaged, note, put_tree
from scheduler.service.outside.ports import no_account
from scheduler.store import jobs, trees
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord

_OF_IMAGE = ("pools", "image", "image_python")
_LOCKED_BY = (*_OF_IMAGE, "environment")  # beside the requirements file


class StoredPlaces(Protocol):
    """The database, the stores, and the pools that packages are locked for."""

    @property
    def database(self) -> Database:
        """The database that records stored items and their expiry."""

    @property
    def artifacts(self) -> BlobStore:
        """The artifact store, which may be opened at the first access."""

    @property
    def pools(self) -> Mapping[str, Pool]:
        """All pools, by name."""

    def published(self) -> Published:
        """Return the inputs of Kaggle that our account can access. Raises PlatformError."""

    def hub_token(self) -> str:
        """Return the token for the Hub, if any. Raises ConfigError."""


def stored(
    places: StoredPlaces, spec: JobSpec, delete_at: int, say: Callable[[str], None], before: JobSpec | None = None
) -> JobSpec:
    """Return a job with its code, lock and inputs stored; unchanged sources keep the content of ``before``.

    Items that no job names are deleted at ``delete_at``. ``say`` is called before long steps. Raises CodeError,
    RequirementsError, TreeError, Refused, StoreError, ConfigError, OSError.
    """

    def take(wanted: Input) -> Input:
        database, artifacts = places.database, places.artifacts
        same = earlier.get((wanted.name, wanted.source))
        return same or take_input(database, artifacts, wanted, delete_at, say, places.hub_token, places.published)

    old = before or replace(spec, code=None, requirements=None, inputs=(), evaluation=None)
    tests = [old.evaluation.test_set] if old.evaluation is not None else []
    earlier = {(one.name, one.source): one for one in (*old.inputs, *tests)}
    if (wanted := spec.code) is not None:  # the artifact store is opened only if needed
        same = old.code is not None and (old.code.source, old.code.revision) == (wanted.source, wanted.revision)
        packed = old.code if same else keep_code(places.database, places.artifacts, wanted, delete_at)
        spec = replace(spec, code=packed)
    if spec.requirements is not None:
        lock = old.requirements if all(getattr(old, name) == getattr(spec, name) for name in _OF_IMAGE) else None
        if lock is None or lock.source != spec.requirements.source:
            lock = keep_lock(places.database, places.artifacts, spec, places.pools, delete_at)
        spec = replace(spec, requirements=lock)
    if (evaluation := spec.evaluation) is not None and evaluation.test_set.source != HELD_OUT:
        evaluation = replace(evaluation, test_set=take(evaluation.test_set))
    return replace(spec, inputs=tuple(map(take, spec.inputs)), evaluation=evaluation)


def measure(specs: Sequence[JobSpec], pools: Mapping[str, Pool]) -> list[JobSpec]:
    """Return jobs with the present digests of code, packages and local inputs. Nothing is stored.

    Raises CodeError, RequirementsError, SecretsFound, TreeError, OSError.
    """
    measure_code, measure_input = cache(_measure_code), cache(_measure_input)  # the jobs of a sweep share them
    measured: list[JobSpec] = []
    for spec in specs:
        evaluation = spec.evaluation
        if evaluation is not None:
            evaluation = replace(evaluation, test_set=measure_input(evaluation.test_set))
        packages = spec.requirements
        if packages is not None:
            alike = [one for one in measured if all(getattr(one, name) == getattr(spec, name) for name in _LOCKED_BY)]
            earlier = (one.requirements for one in alike if one.requirements)
            same = next((one for one in earlier if one.source == packages.source), None)
            packages = same or lock_packages(spec, packages, pools)[0]
        measured.append(
            replace(
                spec,
                code=None if spec.code is None else measure_code(spec.code),
                requirements=packages,
                inputs=tuple(map(measure_input, spec.inputs)),
                evaluation=evaluation,
            )
        )
    return measured


def fingerprint(specs: Sequence[JobSpec]) -> str:
    """Return the digest of measured or stored jobs: their definitions and the content from this machine."""
    # A speed is an estimate that differs with each measurement.
    tables = [{key: value for key, value in table_of(spec).items() if key != "steps_per_hour"} for spec in specs]
    document = [{"job": table, "digests": dict(_digests(spec))} for table, spec in zip(tables, specs, strict=True)]
    return hashlib.sha256(json.dumps(document, sort_keys=True, default=str).encode()).hexdigest()


def _digests(spec: JobSpec) -> Iterator[tuple[str, str]]:
    yield "code", spec.code.digest if spec.code is not None else ""
    yield "packages", spec.requirements.digest if spec.requirements is not None else ""
    inputs = spec.inputs if spec.evaluation is None else (*spec.inputs, spec.evaluation.test_set)
    for item in inputs:
        if not is_remote(item.source):  # remote sources are named, and pinned when they are stored
            yield f"input {item.name}", item.digest


def _measure_code(code: Code) -> Code:
    with Path(os.devnull).open("wb") as sink:
        return pack(code, sink)[0]


def _measure_input(item: Input) -> Input:
    if is_remote(item.source):
        return item
    with tempfile.TemporaryDirectory(prefix="schedctl-input-") as scratch:
        packed = pack_folder(folder_of(Path(scratch) / "files", item.source, lambda _line: None), KIND)
    return replace(item, digest=packed.digest, files=len(packed.tree.entries), bytes=packed.tree.bytes)


# Code: a job's own files, packed when it is added, and stored so that they can be restored with its checkpoints.
_PIECE_BYTES = 1 << 20


def keep_code(
    database: Database | None,
    artifacts: BlobStore,
    code: Code,
    delete_at: int,
    heal: Callable[[str], None] | None = None,
) -> Code:
    """Store the present content of a folder or commit, unless it exists; return it with its digest.

    With ``heal`` existing objects are verified, and damaged ones are reported and sent again. It is deleted at
    ``delete_at`` if no job names it by then, which only a database records. The content is sent before the listing.
    Raises CodeError, Refused, StoreError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="schedctl-code-") as folder:
        plain = Path(folder) / "plain"
        with plain.open("wb") as sink:
            packed, listing = pack(code, sink)
        if database is not None:
            with database.write() as tx:
                trees.record(tx, "code", packed.digest, delete_at)
        if heal is not None and (why := _damage(artifacts, packed.digest, Path(folder))):
            heal(f"The code {packed.digest[:12]} was damaged in the artifact store, and is sent again: {why}")
            for name in (tree.LISTING, tree.CONTENT):
                artifacts.delete(f"{tree.code_prefix(packed.digest)}/{name}")
        prefix = tree.code_prefix(packed.digest)
        if artifacts.size(f"{prefix}/{tree.LISTING}") is None:
            compressed = Path(folder) / tree.CONTENT
            with plain.open("rb") as source, gzip.GzipFile(compressed, "wb", compresslevel=6, mtime=0) as target:
                shutil.copyfileobj(source, target, _PIECE_BYTES)
            artifacts.create(f"{prefix}/{tree.CONTENT}", compressed)
            artifacts.create(f"{prefix}/{tree.LISTING}", listing)
    return packed


def _damage(artifacts: BlobStore, digest: str, scratch: Path) -> str:
    """Return the damage of code in the store; empty if there is none or the code is missing. Raises StoreError."""
    if artifacts.size(f"{tree.code_prefix(digest)}/{tree.LISTING}") is None:
        return ""
    try:
        _fetch_code(artifacts, digest, scratch / "fetched", scratch / "fresh")
    except (tree.BadListing, Missing) as error:
        return str(error)
    return ""


def _fetch_code(artifacts: BlobStore, digest: str, fetched: Path, fresh: Path) -> None:
    """Unpack code of the store into the new folder ``fresh``. Raises BadListing, StoreError, OSError."""
    for name in (tree.LISTING, tree.CONTENT):
        artifacts.fetch(f"{tree.code_prefix(digest)}/{name}", fetched / name)
    fresh.mkdir()
    tree.unpack(fetched, digest, fresh)


def default_code(command: Sequence[str], file: Path | None) -> Code | None:
    """Return the code of a job that names none: the folder of its file, or the current one, if its command needs it.

    A command needs it if one of its words is a file there; otherwise the command starts in an empty folder.
    """
    folder = (Path() if file is None else file.parent).resolve()
    words = [word for word in command if word and "{" not in word and not Path(word).is_absolute()]
    return Code(str(folder)) if any((folder / word).is_file() for word in words) else None


def pull_code(database: Database, artifacts: BlobStore, manifest: Manifest, target: Path) -> str | None:
    """Restore the code of a checkpoint to the new folder ``target``; return its digest, None if it had no code.

    Raises Refusal, StoreError, OSError.
    """
    with database.read() as tx:
        digest, _ = trees.of_attempt(tx, manifest.job, manifest.attempt)
    if digest is None:
        return None
    if target.exists():
        raise Refusal(f"{target} exists already", remedy="Name another folder, or move it away")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        fetched, fresh = Path(folder) / "fetched", Path(folder) / "fresh"
        try:
            _fetch_code(artifacts, digest, fetched, fresh)
        except tree.BadListing as error:
            raise Refusal(f"code {digest[:12]} is damaged in the store: {error}", remedy="Get it from git") from None
        fresh.rename(target)
    return digest


# Environment: the required packages of a job, locked for every pool that it may use, and stored.
def keep_lock(
    database: Database, artifacts: BlobStore, spec: JobSpec, pools: Mapping[str, Pool], delete_at: int
) -> Requirements | None:
    """Lock the packages of a job for each of its pools and store the lock; return it with its digest.

    It is deleted at ``delete_at`` if no job names it by then. Raises Refused, StoreError and what :func:`lock_packages`
    raises.
    """
    if spec.requirements is None:
        return None
    requirements, data = lock_packages(spec, spec.requirements, pools)
    digest = requirements.digest
    with database.write() as tx:
        trees.record(tx, "lock", digest, delete_at)
    drop_damaged(artifacts, lock_prefix(digest), {LOCK: digest})
    artifacts.create(f"{lock_prefix(digest)}/{LOCK}", data)
    return requirements


def lock_packages(spec: JobSpec, wanted: Requirements, pools: Mapping[str, Pool]) -> tuple[Requirements, bytes]:
    """Lock the packages of a job for each of its pools; return them with their digest, and the lock. Nothing is stored.

    Raises RequirementsError, OSError, and Misconfigured for a pool with an invalid image.
    """
    source = wanted.source
    demands = read_demands(Path(source))
    targets: defaultdict[PythonTarget, list[str]] = defaultdict(list)
    images: dict[PythonTarget, list[Image]] = defaultdict(list)
    for pool in pools.values():
        image = image_of(pool.platform, options_for(spec, pool.platform, pool.options))
        if image.target is not None and (not spec.pools or pool.name in spec.pools):
            targets[image.target].append(pool.name)
            images[image.target].append(image)
    if not targets:
        raise RequirementsError(
            source,
            "the Python version of the job's pools is not known",
            'Name it in the options of the pool: image_python = "3.12"',
        )
    lock = make_lock(Path(source), demands, targets, spec.environment)
    data = encode_lock(lock)
    digest = hashlib.sha256(data).hexdigest()
    requirements = Requirements(source, digest, tuple(sorted(lock.targets)), max(map(len, lock.targets.values())))
    tools = find_tools()
    for target, there in images.items():
        package_sizes = sizes(tools, lock.targets[target.name], target, spec.environment)
        for image in there:
            own = {name: size for name, size in package_sizes.items() if image.has(name)}
            fetched, more = sum(package_sizes.values()) - sum(own.values()), sum(own.values())
            before = requirements.fetched_bytes
            if (fetched + more, fetched) > (before + requirements.image_bytes, before):
                largest = max(own, key=lambda name: own[name], default="")
                requirements = replace(requirements, fetched_bytes=fetched, image_bytes=more, image_largest=largest)
    return requirements, data


def without_lock(spec: JobSpec, pools: Mapping[str, Pool]) -> list[str]:
    """Return the pools that the job could use if its lock had an entry for their Python."""
    if spec.requirements is None:
        return []
    locked = spec.requirements.targets
    return [
        name
        for name, pool in pools.items()
        if (not spec.pools or name in spec.pools)
        and not has_lock(pool.platform, options_for(spec, pool.platform, pool.options), locked)
    ]


# Inputs: data of a job besides its code, stored when it is added.
def take_input(
    database: Database,
    artifacts: BlobStore,
    wanted: Input,
    delete_at: int,
    tell: Callable[[str], None],
    hub_token: Callable[[], str] = str,
    published: Callable[[], Published] = no_account,
    *,
    heal: bool = False,
) -> Input:
    """Store the present content of an input, unless it is stored already; return the input with its digest.

    The content is deleted at ``delete_at`` if no job names it by then. ``tell`` gets the progress, ``hub_token`` is
    for the Hub, ``published`` for inputs of Kaggle. With ``heal`` damaged objects are stored again. Raises TreeError,
    SecretsFound, Refused, StoreError, PlatformError, ConfigError, OSError.
    """
    if wanted.kind in {HUB, tree.MOUNTED}:  # only the listing; sessions download the files or have them attached
        listing, pinned = _pin(wanted, hub_token, published)
        digest = hashlib.sha256(listing).hexdigest()
        with database.write() as tx:
            trees.record(tx, wanted.kind, digest, delete_at)
        if heal:
            drop_damaged(artifacts, tree.tree_prefix(wanted.kind, digest), {tree.LISTING: digest})
        artifacts.create(f"{tree.tree_prefix(wanted.kind, digest)}/{tree.LISTING}", listing)
        return replace(pinned, digest=digest)

    def report(progress: str) -> None:
        tell(f"input {wanted.name}: {progress}")

    with tempfile.TemporaryDirectory(prefix="schedctl-input-") as scratch:
        folder = folder_of(Path(scratch) / "files", wanted.source, report)
        packed = put_tree(database, artifacts, folder, KIND, delete_at, report, heal=heal)
    return replace(wanted, digest=packed.digest, files=len(packed.tree.entries), bytes=packed.tree.bytes)


def folder_of(scratch: Path, source: str, progress: Callable[[str], None]) -> Path:
    """Return a folder with the content of ``source``; a file is copied, and a bucket is downloaded.

    Local content is scanned for secrets. Raises SecretsFound.
    """
    if source.startswith("s3:"):
        from platforms.artifacts.s3.store import fetch_folder  # it needs the extra for AWS

        fetch_folder(source, scratch, progress)
        return scratch
    place = Path(source)
    real = place.resolve()
    require_no_secrets(real, sorted(real.rglob("*")) if real.is_dir() else [real])
    if not place.is_file():
        return place
    scratch.mkdir()
    # Opened without waiting: some regular files of /proc never end.
    with open_below(real.parent, real.name) as stream, (scratch / place.name).open("xb") as sink:
        shutil.copyfileobj(stream, sink)
    shutil.copymode(real, scratch / place.name)
    return scratch


def _pin(wanted: Input, hub_token: Callable[[], str], published: Callable[[], Published]) -> tuple[bytes, Input]:
    """Return the present listing of a repository of the Hub or Kaggle, and the input pinned to it."""
    if wanted.kind == HUB:
        endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
        pinned = pin(wanted.source, endpoint.rstrip("/"), hub_token())
        repository, at_home = pinned.repository, pinned.at_home
        files, size = len(repository.entries), repository.bytes
        return pinned.listing, replace(wanted, revision=repository.commit, files=files, bytes=size, at_home=at_home)
    source, entries = published().pin(wanted.source)
    try:
        listing = tree.encode_listing(entries, tree.LIMITS, kind=tree.MOUNTED, source=source)
    except tree.BadListing as error:
        raise TreeError(wanted.source, str(error), "Give another version") from None
    size = sum(entry.bytes for entry in entries)
    return listing, replace(wanted, revision=source.rpartition("/")[2], files=len(entries), bytes=size)


def change_inputs(database: Database, name: str, wanted: Iterable[Input], now: int, by: str) -> JobRecord:
    """Replace inputs of a job by these stored inputs of the same names, for its next sessions.

    For a job with gates, ``set`` is the test set of its next evaluation. Raises UnknownJob, Refused.
    """
    with database.write() as tx:
        spec = jobs.get(tx, name).spec
        together = {ordered.name: ordered for ordered in (*spec.inputs, *wanted)}
        evaluation = spec.evaluation
        if evaluation is not None and TEST_SET in together:
            evaluation = replace(evaluation, test_set=together.pop(TEST_SET))
        ordered = tuple(together[key] for key in sorted(together))
        note(tx, replace(spec, inputs=ordered, evaluation=evaluation))
        return jobs.change_spec(tx, name, now, by, inputs=ordered, evaluation=evaluation)
