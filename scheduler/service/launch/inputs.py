"""Inputs of a launch: which folders of the artifact store a lane is given, on the pool where it runs.

A repository of the Hub is fetched by the session where it can, and what Kaggle holds is attached to its sessions; for
the others the daemon fetches it once and stores its files.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from jobs.inputs.folder import PackedFolder, pack_folder
from jobs.payload.lane.prepare import PURPOSE
from jobs.payload.store import hub
from jobs.payload.store.manifest import sha256_file
from jobs.payload.store.tree import (
    LIMITS,
    LISTING,
    Entry,
    Mounted,
    by_gigabytes,
    is_whole,
    make,
    making_of,
    parse_mounted,
    remove_tree,
    tree_prefix,
)
from jobs.spec import Input, JobSpec
from platforms.artifacts.base import BlobStore, Missing
from platforms.base import Capabilities, Published
from scheduler.core.plan import Placement
from scheduler.service.faults.isolation import ready, why
from scheduler.service.outside.calls import fail, tell
from scheduler.service.outside.ports import Ports
from scheduler.store import jobs, trees
from scheduler.store.engine import Database
from scheduler.store.errors import StoreFailure

KIND = "input"
_ABLE = Capabilities()


def trees_of(spec: JobSpec, copies: Mapping[str, str], able: Capabilities = _ABLE) -> dict[str, str] | None:
    """Return the folders of the artifact store that a job's lane is given, by purpose, where sessions are so ``able``.

    ``copies`` are the trees that hold the files of what is only listed; None: one is needed that is not there yet.
    """
    result = {}
    for one in spec.inputs:
        kind, digest = one.kind, one.digest
        if _is_shipped(one, able):
            if digest not in copies:
                return None
            kind, digest = KIND, copies[digest]
        result[f"{PURPOSE}{one.name}"] = tree_prefix(kind, digest)
    return result


def note(tx: Connection, spec: JobSpec) -> None:
    """Write down that a job needs the code, the corpus and the inputs that it names. Raises Refused."""
    if spec.code is not None:
        trees.note(tx, "code", spec.code.digest, None)
    if spec.requirements is not None:
        trees.note(tx, "lock", spec.requirements.digest, None)
    if spec.mixture is not None and spec.mixture.corpus:
        trees.note(tx, trees.CORPUS, spec.mixture.corpus, None)
    evaluation = spec.evaluation
    for one in (*spec.inputs, *([evaluation.test_set] if evaluation and evaluation.test_set.digest else ())):
        trees.note(tx, one.kind, one.digest, None)


def with_inputs(ports: Ports, due: Sequence[Placement]) -> list[Placement]:
    """Return what has its inputs where its sessions can get them; those of the others are brought there meanwhile."""
    with ports.database.read() as tx:  # a job that was removed since is reported when it is reserved
        records = [jobs.find(tx, lane.job) for placement in due for lane in placement.lanes]
    inputs = {record.spec.name: record.spec.inputs for record in records if record is not None}

    def needs(placement: Placement) -> dict[str, Callable[[], bool]]:
        able = ports.platforms[placement.pool].capabilities
        shipped = [one for lane in placement.lanes for one in inputs.get(lane.job, ()) if _is_shipped(one, able)]
        return {f"{one.source} {one.digest[:8]}": partial(_bring_alone, ports, one) for one in shipped}

    return ready(ports, "inputs", due, needs)


def _is_shipped(wanted: Input, able: Capabilities) -> bool:
    """Return whether sessions get what is only listed from the store, because they cannot get it themselves."""
    if wanted.kind == hub.KIND:
        return wanted.at_home or not able.internet
    return wanted.kind != KIND and wanted.kind not in able.mounts


def _bring_alone(ports: Ports, wanted: Input) -> bool:
    try:
        bring(ports, wanted)
    except StoreFailure:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with an input, sessions without it are launched
        ports.log.error("input.unavailable", input=wanted.source, why=str(error))
        fail(why(error))
        return False
    return True


def bring(ports: Ports, wanted: Input) -> None:
    """Make sure that the store holds the files of what is only listed; may take hours, goes on where it was cut off.

    Raises what the clients of the Hub and Kaggle and put_tree raise.
    """
    with ports.database.read() as tx:
        copy = trees.copies(tx).get(wanted.digest)
    if copy is not None and ports.artifacts.size(f"{tree_prefix(KIND, copy)}/{LISTING}") is not None:
        return
    listing = ports.artifacts.read(f"{tree_prefix(wanted.kind, wanted.digest)}/{LISTING}", LIMITS.listing_bytes)
    target = ports.scratch / wanted.digest
    tell(f"fetches {wanted.source}")
    if wanted.kind == hub.KIND:
        repository = hub.parse_repository(listing)
        with making_of(target) as making:
            if not is_whole(target, repository.entries):
                hub.download_files(repository, target, making, ports.hub_token(), _telling(wanted))
    else:
        _fetch(ports.published(), parse_mounted(listing), target, _telling(wanted))
    delete_at = ports.clock.now() + ports.policy.retention.grace_seconds
    put_tree(ports.database, ports.artifacts, target, KIND, delete_at, tell, origin=wanted.digest)
    remove_tree(target)
    ports.log.info("input.stored", input=wanted.source, bytes=wanted.bytes)


def _fetch(published: Published, mounted: Mounted, target: Path, progress: hub.Tell) -> None:
    """Make ``target`` of what Kaggle hands out; files that a killed daemon had fetched stay."""
    done, total = 0, sum(entry.bytes for entry in mounted.entries)

    def take(entry: Entry, place: Path) -> None:
        nonlocal done
        if not place.exists() or place.stat().st_size != entry.bytes:
            published.fetch(mounted.source, entry, place)
        done += entry.bytes
        progress(done, total)

    with making_of(target) as making:
        if not is_whole(target, mounted.entries):
            make(target, making, mounted.entries, take)


def _telling(wanted: Input) -> hub.Tell:
    return lambda done, total: tell(f"fetches {wanted.source}, {100 * done // max(1, total)} % of it")


# Folders of any size in the artifact store, from where sessions fetch them with ``fetch_tree``.
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
    """Store all files of a folder, unless they are there; return its listing and ``digest``.

    Sessions find it at ``tree_prefix(kind, digest)``; it goes after ``delete_at`` (UTC seconds) if by then no job names
    it, see :func:`scheduler.store.trees.needed`. May take hours; it may be cut off at any point and repeated, and what
    was sent is not sent again. With ``heal``, what is there is read, and sent again where it is damaged. ``tell`` hears
    how far it is; ``origin`` is the listing of a repository whose files these are. Raises TreeError, Refused,
    StoreError, OSError.
    """
    packed = pack_folder(folder, kind, by_gigabytes(lambda size: tell(f"read {size}")))
    with database.write() as tx:
        trees.note(tx, kind, packed.digest, delete_at, origin)
    prefix = tree_prefix(kind, packed.digest)
    if heal:
        drop_damaged(
            artifacts, prefix, {LISTING: packed.digest, **{piece: piece for piece in packed.tree.pieces}}, tell
        )
    elif artifacts.size(f"{prefix}/{LISTING}") is not None:
        return packed
    sent, total, progress = 0, packed.tree.bytes, by_gigabytes(lambda size: tell(f"stored {size}"))
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
        artifacts.create(f"{prefix}/{LISTING}", packed.listing)
    return packed


def drop_damaged(
    artifacts: BlobStore, prefix: str, wanted: Mapping[str, str], tell: Callable[[str], None] = lambda _progress: None
) -> None:
    """Delete objects of a tree whose bytes do not have the sha256 that ``wanted`` names. Raises StoreError, OSError."""
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
