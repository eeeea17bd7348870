"""Inputs and training data of jobs, brought to the artifact store before a session needs them.

Sessions download repositories of the Hub themselves if they can, and sessions on Kaggle get Kaggle's inputs attached;
for other sessions the daemon downloads them once and stores their files.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from jobs.inputs.folder import PackedFolder, pack_folder
from jobs.payload.lane.prepare import PURPOSE
from jobs.payload.store import hub, tree
from jobs.payload.store.manifest import sha256_file
from jobs.secret_scan import require_no_secrets
from jobs.spec import Input, JobSpec, Mixture
from platforms.artifacts.base import BlobStore, Missing
from platforms.base import Capabilities, Published
from scheduler.core.plan import Placement
from scheduler.service.faults.isolation import ready, succeeds
from scheduler.service.outside.calls import tell
from scheduler.service.outside.child_process import ChildFailed, call_in_child
from scheduler.service.outside.ports import Ports
from scheduler.store import events, jobs, trees
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord

KIND = "input"
_ABLE = Capabilities()  # of a platform without special abilities


def trees_of(spec: JobSpec, copies: Mapping[str, str], able: Capabilities = _ABLE) -> dict[str, str] | None:
    """Return the store folders of a job's inputs, by purpose; ``able`` are the capabilities of its platform.

    ``copies`` maps the digest of a repository's listing to its tree of files. Returns None if a copy is missing.
    """
    result = {}
    for one in spec.inputs:
        kind, digest = one.kind, one.digest
        if _is_shipped(one, able):
            if digest not in copies:
                return None
            kind, digest = KIND, copies[digest]
        result[f"{PURPOSE}{one.name}"] = tree.tree_prefix(kind, digest)
    return result


def note(tx: Connection, spec: JobSpec) -> None:
    """Record that a job needs its code, lock file, corpus and inputs, so that they are kept. Raises Refused."""
    if spec.code is not None:
        trees.record(tx, "code", spec.code.digest, None)
    if spec.requirements is not None:
        trees.record(tx, "lock", spec.requirements.digest, None)
    if spec.mixture is not None and spec.mixture.corpus:
        trees.record(tx, trees.CORPUS, spec.mixture.corpus, None)
    evaluation = spec.evaluation
    for one in (*spec.inputs, *([evaluation.test_set] if evaluation and evaluation.test_set.digest else ())):
        trees.record(tx, one.kind, one.digest, None)


def with_inputs(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Return the placements whose inputs are available; the inputs of the others are fetched in the background."""
    with ports.database.read() as tx:  # a job that was removed meanwhile is reported at its reservation
        records = [jobs.find(tx, lane.job) for placement in due for lane in placement.lanes]
    inputs = {record.spec.name: record.spec.inputs for record in records if record is not None}

    def needs(placement: Placement) -> dict[str, Callable[[], bool]]:
        able = ports.platforms[placement.pool].capabilities
        shipped = [one for lane in placement.lanes for one in inputs.get(lane.job, ()) if _is_shipped(one, able)]
        return {
            f"{one.source} {one.digest[:8]}": partial(
                succeeds, ports, "input.unavailable", partial(bring, ports, one), input=one.source
            )
            for one in shipped
        }

    return ready(ports, "inputs", due, needs)


def _is_shipped(wanted: Input, able: Capabilities) -> bool:
    """Return whether sessions get a listed repository from the store, because they cannot download it."""
    if wanted.kind == hub.KIND:
        return wanted.at_home or not able.internet
    return wanted.kind != KIND and wanted.kind not in able.mounts


def bring(ports: Ports, wanted: Input) -> None:
    """Store the files of a listed repository; may take hours and resumes after interruptions.

    Raises what the clients of the Hub and Kaggle and ``put_tree`` raise.
    """
    with ports.database.read() as tx:
        copy = trees.copies(tx).get(wanted.digest)
    if copy is not None and ports.artifacts.size(f"{tree.tree_prefix(KIND, copy)}/{tree.LISTING}") is not None:
        return
    listing = ports.artifacts.read(
        f"{tree.tree_prefix(wanted.kind, wanted.digest)}/{tree.LISTING}", tree.LIMITS.listing_bytes
    )
    target = ports.scratch / wanted.digest
    tell(f"fetches {wanted.source}")
    if wanted.kind == hub.KIND:
        repository = hub.parse_repository(listing)
        with tree.staging_folder(target) as staging:
            if not tree.is_whole(target, repository.entries):
                hub.download_files(repository, target, staging, ports.hub_token(), _progress_of(wanted))
    else:
        _fetch(ports.published(), tree.parse_mounted(listing), target, _progress_of(wanted))
    delete_at = ports.clock.now() + ports.policy.retention.grace_seconds
    put_tree(ports.database, ports.artifacts, target, KIND, delete_at, tell, origin=wanted.digest)
    tree.remove_tree(target)
    ports.log.info("input.stored", input=wanted.source, bytes=wanted.bytes)


def _fetch(published: Published, mounted: tree.Mounted, target: Path, progress: hub.Progress) -> None:
    """Download an input of Kaggle to ``target``; files downloaded before a crash are kept."""
    done, total = 0, sum(entry.bytes for entry in mounted.entries)

    def take(entry: tree.Entry, place: Path) -> None:
        nonlocal done
        if not place.exists() or place.stat().st_size != entry.bytes:
            published.fetch(mounted.source, entry, place)
        done += entry.bytes
        progress(done, total)

    with tree.staging_folder(target) as staging:
        if not tree.is_whole(target, mounted.entries):
            tree.build_tree(target, staging, mounted.entries, take)


def _progress_of(wanted: Input) -> hub.Progress:
    return lambda done, total: tell(f"fetches {wanted.source}, {100 * done // max(1, total)} % of it")


# Trees: folders of any size in the artifact store, which sessions download with ``fetch_tree``.
def put_tree(
    database: Database,
    artifacts: BlobStore,
    folder: Path,
    kind: str,
    delete_at: int | None,
    tell: Callable[[str], None] = lambda _progress: None,
    origin: str | None = None,
    *,
    heal: bool = False,
) -> PackedFolder:
    """Store all files of a folder, unless they exist; return its listing and ``digest``.

    Sessions find it at ``tree_prefix(kind, digest)``. It is deleted at ``delete_at`` (UTC seconds) if no job names it
    by then, see :func:`scheduler.store.trees.needed`. May take hours; it may be interrupted and repeated without
    sending anything twice. With ``heal`` existing objects are verified, and damaged ones are sent again. ``tell`` is
    called with the progress; ``origin`` is the listing of the repository of these files. Raises TreeError, Refused,
    StoreError, OSError.
    """
    packed = pack_folder(folder, kind, tree.by_gigabytes(lambda size: tell(f"read {size}")))
    with database.write() as tx:
        trees.record(tx, kind, packed.digest, delete_at, origin)
    prefix = tree.tree_prefix(kind, packed.digest)
    if heal:
        drop_damaged(artifacts, prefix, {tree.LISTING: packed.digest, **{one: one for one in packed.tree.pieces}}, tell)
    elif artifacts.size(f"{prefix}/{tree.LISTING}") is not None:
        return packed
    sent, total, progress = 0, packed.tree.bytes, tree.by_gigabytes(lambda size: tell(f"stored {size}"))
    with tempfile.TemporaryDirectory(prefix="schedctl-tree-") as scratch:
        for number, name in enumerate(packed.tree.pieces):
            key, piece = f"{prefix}/{name}", Path(scratch) / name
            if artifacts.size(key) is None:
                with piece.open("wb") as sink:
                    packed.write_piece(number, sink)
                sent += piece.stat().st_size
                artifacts.create(key, piece)
                piece.unlink()
                progress(sent, total)
        artifacts.create(f"{prefix}/{tree.LISTING}", packed.listing)
    return packed


def drop_damaged(
    artifacts: BlobStore, prefix: str, wanted: Mapping[str, str], tell: Callable[[str], None] = lambda _progress: None
) -> None:
    """Delete objects of a tree whose SHA-256 is not that in ``wanted``. Raises StoreError, OSError."""
    with tempfile.TemporaryDirectory(prefix="schedctl-tree-") as scratch:
        for name, sha256 in wanted.items():
            place = Path(scratch) / "object"
            try:
                artifacts.fetch(f"{prefix}/{name}", place)
            except Missing:
                continue
            if sha256_file(place) != sha256:
                artifacts.delete(f"{prefix}/{name}")
                tell(f"{name} of {prefix} was damaged in the artifact store, and is sent again")
            place.unlink()


# Training data: the corpus and each job's mixture of it, built at first use and named by content.
#
# A job is pinned to the corpus version of its first session until a person or its next generation changes it, so that
# its held-out texts never change.
_READ_PERCENT, _CLUSTER_FROM_PERCENT, _WRITE_FROM_PERCENT = 70, 75, 80  # approximate share of a build's time
NO_SOURCES = (
    "there is no text to train on; run schedctl corpus add FOLDER, or set corpus.sources (to try things out: "
    "stdlib, the text that comes with Python)"
)

if TYPE_CHECKING:
    from config.settings import CorpusSettings
    from jobs.catalogue import Catalogue
    from jobs.corpus.build.build import BuildProgress
    from jobs.corpus.folder import CorpusFolder
    from jobs.corpus.manifest import CorpusManifest
_STEP_PERCENT = 5
_LEAKS_SECONDS_MAX = 6 * 3_600.0
_WAITS = "waits for a build of the corpus in another process"


def _share(done: int, total: int) -> int:
    return min(99, 100 * done // max(1, total)) // _STEP_PERCENT * _STEP_PERCENT


def _bytes_of(source: str, max_bytes: int) -> int:
    path = Path(source).expanduser()
    if source == "stdlib" or path.is_file():
        return max_bytes if source == "stdlib" else path.stat().st_size
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


class TrainingData:
    """Corpora and mixtures below ``root/corpus``, by the ``settings`` and the models of the ``catalogue``.

    Sessions read them in place if ``root`` is the folder of a directory store; otherwise they are copied to ``store``.
    ``now`` returns scheduled UTC seconds.
    """

    def __init__(
        self,
        root: Path,
        settings: CorpusSettings,
        catalogue: Catalogue,
        database: Database,
        now: Callable[[], int],
        store: BlobStore | None = None,
    ) -> None:
        self._root = root
        self._store = store
        self._settings = settings
        self._catalogue = catalogue
        self._database = database
        self._now = now
        self._prefixes: dict[tuple[str, Mixture, int], str] = {}
        self._lock = threading.Lock()

    @cached_property
    def folder(self) -> CorpusFolder:
        """The folder of all versions on this machine."""
        from jobs.corpus.folder import CorpusFolder  # imported here, since it slows the start of the daemon

        return CorpusFolder(self._root / trees.CORPUS)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources of a new corpus: ``stdlib``, files and folders of the settings, and those added by command."""
        named = self._settings.sources
        return (*named, *(source for source in self.folder.added() if source not in named))

    def fingerprint(self) -> str:
        """Return the recipe of a new corpus as text; equal recipes give equal texts."""
        domains = {name: sorted(words) for name, words in self._catalogue.domains.items()}
        settings = self._settings.model_dump(exclude={"refuse_personal", "weights", "decontaminate"})
        # Empty values are omitted, so that corpora of older versions still match their settings.
        later = {"weights": self._settings.model_dump(include={"weights"})["weights"], "test_sets": self._test_sets}
        recipe = {**settings, "sources": sorted(self.sources), "domains": domains}
        return json.dumps({**recipe, **{key: value for key, value in later.items() if value}}, sort_keys=True)

    @property
    def _test_sets(self) -> tuple[str, ...]:
        return self._catalogue.test_sets if self._settings.decontaminate else ()

    def prefix(self, job: str) -> str:
        """Return the store prefix of a job's data, building corpus and mixture if they are missing.

        It is empty for a job without a mixture. A job without a version is pinned to one.

        May take hours, and reports progress. After a crash missing parts are built again. Raises CorpusError for
        unusable sources, OSError for a full disk, StoreError, UnknownJob.
        """
        with self._database.read() as tx:
            record = jobs.get(tx, job)
        spec, wanted = record.spec, record.spec.mixture
        if wanted is None:
            return ""
        key = (job, wanted, spec.seed)
        cached = self._prefixes.get(key)  # without the lock: the data of another job may be in construction
        if cached is not None and (self._root / cached).is_dir():
            return cached
        from jobs.corpus.mixture import mixture

        tell("waits for data of another job")
        with self._lock:
            manifest = self._pinned(wanted.corpus) if wanted.corpus else self._version_for(record)
            mixed = mixture(manifest, job, wanted.domain, wanted.extra_share, seed=spec.seed)
            self._copy(mixed.folder)
            if not wanted.corpus:
                with self._database.write() as tx:
                    _pin(tx, job, wanted, manifest.version, self._now())
            prefix = mixed.folder.relative_to(self._root).as_posix()
            self._prefixes[job, replace(wanted, corpus=manifest.version), spec.seed] = prefix
            return prefix

    def build(self, by: str, say: Callable[[str], None] = tell) -> CorpusManifest:
        """Build the corpus from its sources, even if one exists, and make it the current one.

        Jobs that train keep their version. ``say`` is called with the progress. Raises CorpusError, OSError, Refused,
        and SecretsFound if texts must not be uploaded.
        """
        with self.folder.locked("build", lambda: say(_WAITS)):
            built = self._build(by, say)
        if self._store is not None:
            require_no_secrets(self.folder.root, sorted(built.folder.glob("*.jsonl")), self._settings.refuse_personal)
        return built

    def _build(self, by: str, say: Callable[[str], None]) -> CorpusManifest:
        from jobs.corpus.build.build import build
        from jobs.corpus.errors import CorpusError
        from jobs.corpus.options import CorpusOptions
        from jobs.corpus.read.sources import Stdlib, parse_source

        # Computed before the build, so that sources which are added during the build change it.
        settings, fingerprint, sources = self._settings, self.fingerprint(), self.sources
        if not sources:
            raise CorpusError(NO_SOURCES)
        built = build(
            [Stdlib(settings.max_bytes) if source == "stdlib" else parse_source(source) for source in sources],
            self.folder.root,
            self._catalogue.domains,
            held_out_fraction=settings.held_out_fraction,
            held_out_wanted=settings.held_out_clusters,
            options=CorpusOptions(rules=settings.rules, weights=settings.weights),
            test_sets=[Path(place) for place in self._test_sets],
            find_leaks=_find_leaks,
            progress=_build_progress(sources, settings.max_bytes, say),
        )
        old, now = self.folder.current(), self._now()
        with self._database.write() as tx:
            for record in jobs.everything(tx):
                # Jobs from before pins existed were trained on the current version.
                if old.version and record.spec.mixture and not record.spec.mixture.corpus and _has_begun(record):
                    _pin(tx, record.spec.name, record.spec.mixture, old.version, now)
            stored_digests = {stored.digest for stored in trees.everything(tx)}
            for version in {*self.folder.versions(), built.version} - (stored_digests - {built.version}):
                trees.record(tx, trees.CORPUS, version, None)
            events.append(tx, "corpus.built", built.version, now, by, texts=built.rows, bytes=built.train_text_bytes)
        self.folder.make_current(built.version, fingerprint)
        return built

    def _copy(self, folder: Path) -> None:
        """Copy a mixture to the store if the store is elsewhere, once: it is named by its content."""
        if self._store is not None:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            absent = [path for path in files if self._store.size(path.relative_to(self._root).as_posix()) is None]
            require_no_secrets(self.folder.root, absent, self._settings.refuse_personal)
            for index, path in enumerate(files):
                tell(f"copies files to the store, {_share(index, len(files))} % of them")
                self._store.create(path.relative_to(self._root).as_posix(), path)

    def _version_for(self, record: JobRecord) -> CorpusManifest:
        """Return the corpus version for a job without one: that of its earlier training, or else the current one."""
        current = self.folder.current()
        if current.version and _has_begun(record):
            return self.folder.open(current.version)
        return self._current()

    def _pinned(self, version: str) -> CorpusManifest:
        """Return a pinned version; if its folder is lost, the corpus is built again."""
        if version not in self.folder.versions():
            self._current()
        return self.folder.open(version)

    def _current(self) -> CorpusManifest:
        """Return the current version; it is built if it does not match the settings."""
        current = self.folder.current()
        if current.version and current.recipe == self.fingerprint():
            return self.folder.open(current.version)
        with self.folder.locked("build", lambda: tell(_WAITS)):
            current = self.folder.current()
            if current.version and current.recipe == self.fingerprint():
                return self.folder.open(current.version)
            return self._build("daemon", tell)


def _find_leaks(file: Path, items: Mapping[str, str]) -> Mapping[str, str]:
    """Call ``texts_with_items`` in a process of its own: an index of many items takes hundreds of megabytes."""
    from jobs.corpus.errors import CorpusError
    from jobs.corpus.leaks import texts_with_items

    try:
        leaks: Mapping[str, str] = call_in_child("leak check", _LEAKS_SECONDS_MAX, texts_with_items, file, items)
    except ChildFailed as error:
        remedy = "Build it again, or switch the comparison off: corpus.decontaminate = false"
        raise CorpusError("the texts could not be compared with the test sets", str(error), remedy) from error
    return leaks


def _has_begun(record: JobRecord) -> bool:
    """Return whether a session of the job's present generation was launched."""
    return record.attempts > record.fenced_attempt


def _pin(tx: Connection, job: str, wanted: Mixture, version: str, now: int) -> None:
    """Pin a job to a version, unless it is pinned or its data have been changed meanwhile. Raises Refused."""
    record = jobs.find(tx, job)
    if record is not None and record.removed_at is None and record.spec.mixture == wanted:
        trees.record(tx, trees.CORPUS, version, None)
        jobs.change_spec(tx, job, now, "daemon", mixture=replace(wanted, corpus=version))


def _build_progress(
    sources: Sequence[str], max_bytes: int, say: Callable[[str], None]
) -> Callable[[BuildProgress], None]:
    """Return a callback that reports the progress of a build by the bytes read of the sources."""
    say("measures the sources")
    total = sum(_bytes_of(source, max_bytes) for source in sources)
    parts = {
        "reading": (0, _READ_PERCENT, total),
        "tagging": (_READ_PERCENT, _CLUSTER_FROM_PERCENT, 0),
        "clustering": (_CLUSTER_FROM_PERCENT, _WRITE_FROM_PERCENT, 0),
        "writing": (_WRITE_FROM_PERCENT, 100, 0),
    }

    def progress(state: BuildProgress) -> None:
        begin, end, whole = parts[state.phase]
        done = state.bytes_read if state.phase == "reading" else state.documents
        percent = begin + (end - begin) * _share(done, whole or state.total or 0) // 100
        say(f"{state.phase} the corpus, {percent // _STEP_PERCENT * _STEP_PERCENT} % done")

    return progress


def with_data(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Return the placements whose training data exist; missing training data are built in the background."""
    return ready(
        ports,
        "data",
        due,
        lambda placement: {
            lane.job: partial(succeeds, ports, "corpus.unavailable", partial(ports.data_prefix, lane.job), job=lane.job)
            for lane in placement.lanes
        },
    )
