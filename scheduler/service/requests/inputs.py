"""Inputs: what a job is given besides its code, taken when it is added, and kept in the artifact store."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.inputs import hub
from jobs.payload.store.hub import KIND as HUB
from jobs.payload.store.listing import LISTING
from jobs.payload.store.tree import tree_prefix
from scheduler.service.launch.inputs import KIND, note
from scheduler.service.launch.trees import put_tree
from scheduler.store import jobs, trees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from jobs.spec import Input, JobSpec
    from platforms.artifacts.base import BlobStore
    from scheduler.store.engine import Database
    from scheduler.store.jobs import JobRecord


def take(database: Database, artifacts: BlobStore, given: Input, delete_at: int, tell: Callable[[str], None]) -> Input:
    """Take an input as it is now and store it, unless the same is there; return it with its digest.

    It goes after ``delete_at`` if no job names it by then. ``tell`` hears how far it is. Raises TreeError, TreeGoes,
    StoreError, OSError.
    """
    if given.is_hub:
        return _pinned(database, artifacts, given, delete_at)

    def told(how_far: str) -> None:
        tell(f"input {given.name}: {how_far}")

    if not given.source.startswith("s3:"):
        packed = put_tree(database, artifacts, Path(given.source), KIND, delete_at, told)
    else:
        from platforms.artifacts.s3.folder import fetch_folder  # it needs the extra for AWS

        with tempfile.TemporaryDirectory(prefix="schedctl-input-") as scratch:
            fetch_folder(given.source, Path(scratch) / "files", told)
            packed = put_tree(database, artifacts, Path(scratch) / "files", KIND, delete_at, told)
    return replace(given, digest=packed.digest, files=len(packed.tree.entries), bytes=packed.tree.bytes)


def kept(
    database: Database,
    artifacts: BlobStore,
    spec: JobSpec,
    delete_at: int,
    tell: Callable[[str], None],
    before: Iterable[Input] = (),
) -> JobSpec:
    """Return a job with its inputs taken and stored; those ``before`` stay that are of the same name and place.

    Raises what :func:`take` raises.
    """
    known = {(given.name, given.source): given for given in before}
    found = (known.get((given.name, given.source)) for given in spec.inputs)
    return replace(
        spec,
        inputs=tuple(
            old or take(database, artifacts, given, delete_at, tell)
            for given, old in zip(spec.inputs, found, strict=True)
        ),
    )


def _pinned(database: Database, artifacts: BlobStore, given: Input, delete_at: int) -> Input:
    """Store the listing of a repository as the Hub has it now; the files are fetched by those who need them."""
    endpoint = os.environ.get("HF_ENDPOINT") or hub.ENDPOINT
    found = hub.pin(given.source, endpoint.rstrip("/"), os.environ.get("HF_TOKEN", ""))
    with database.write() as tx:
        trees.note(tx, HUB, found.digest, delete_at)
    artifacts.create(f"{tree_prefix(HUB, found.digest)}/{LISTING}", found.listing)
    repository = found.repository
    return replace(
        given,
        digest=found.digest,
        revision=repository.commit,
        files=len(repository.entries),
        bytes=repository.bytes,
        at_home=found.at_home,
    )


def change(database: Database, name: str, wanted: Iterable[Input], now: int, by: str) -> JobRecord:
    """Let the next sessions of a job have these inputs, which are stored, in place of those of the same names.

    Raises UnknownJob, TreeGoes.
    """
    with database.write() as tx:
        spec = jobs.get(tx, name).spec
        together = {given.name: given for given in (*spec.inputs, *wanted)}
        changed = replace(spec, inputs=tuple(together[found] for found in sorted(together)))
        note(tx, changed)
        return jobs.change_spec(tx, name, now, by, inputs=changed.inputs)
