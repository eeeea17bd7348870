"""Inputs: what a job is given besides its code, taken when it is added, and kept in the artifact store."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from jobs.inputs.folder import ENDPOINT, TreeError, pin
from jobs.payload.store.hub import KIND as HUB
from jobs.payload.store.tree import LIMITS, LISTING, MOUNTED, BadListing, encode_listing, tree_prefix
from jobs.secret_scan import require_no_secrets
from jobs.spec import TEST_SET, Input
from platforms.artifacts.base import BlobStore
from platforms.base import Published
from scheduler.service.launch.inputs import KIND, drop_damaged, note, put_tree
from scheduler.service.outside.ports import no_account
from scheduler.store import jobs, trees
from scheduler.store.engine import Database
from scheduler.store.jobs import JobRecord


def take(
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
    """Take an input as it is now and store it, unless the same is there; return it with its digest.

    It goes after ``delete_at`` if no job names it by then. ``tell`` hears how far it is, ``hub_token`` opens
    repositories of the Hub, ``published`` what Kaggle holds. With ``heal``, what is damaged in the store is stored
    again. Raises TreeError, SecretsFound, Refused, StoreError, PlatformError, ConfigError, OSError.
    """
    if wanted.kind in {HUB, MOUNTED}:  # its listing alone; who needs the files fetches them, or has them attached
        listing, pinned = _pin(wanted, hub_token, published)
        digest = hashlib.sha256(listing).hexdigest()
        with database.write() as tx:
            trees.note(tx, wanted.kind, digest, delete_at)
        if heal:
            drop_damaged(artifacts, tree_prefix(wanted.kind, digest), {LISTING: digest})
        artifacts.create(f"{tree_prefix(wanted.kind, digest)}/{LISTING}", listing)
        return replace(pinned, digest=digest)

    def report(how_far: str) -> None:
        tell(f"input {wanted.name}: {how_far}")

    with tempfile.TemporaryDirectory(prefix="schedctl-input-") as scratch:
        folder = folder_of(Path(scratch) / "files", wanted.source, report)
        packed = put_tree(database, artifacts, folder, KIND, delete_at, report, heal=heal)
    return replace(wanted, digest=packed.digest, files=len(packed.tree.entries), bytes=packed.tree.bytes)


def folder_of(scratch: Path, source: str, progress: Callable[[str], None]) -> Path:
    """Return the folder that holds what ``source`` means; a file is copied, and a bucket's folder fetched.

    What is of this machine is scanned. Raises SecretsFound.
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
    shutil.copy(place, scratch / place.name)
    return scratch


def _pin(wanted: Input, hub_token: Callable[[], str], published: Callable[[], Published]) -> tuple[bytes, Input]:
    """Return the listing of a repository, as the Hub or Kaggle has it now, and the input with what it lists."""
    if wanted.kind == HUB:
        endpoint = os.environ.get("HF_ENDPOINT") or ENDPOINT
        pinned = pin(wanted.source, endpoint.rstrip("/"), hub_token())
        repository, at_home = pinned.repository, pinned.at_home
        files, size = len(repository.entries), repository.bytes
        return pinned.listing, replace(wanted, revision=repository.commit, files=files, bytes=size, at_home=at_home)
    source, entries = published().pin(wanted.source)
    try:
        listing = encode_listing(entries, LIMITS, kind=MOUNTED, source=source)
    except BadListing as error:
        raise TreeError(wanted.source, str(error), "Give another version") from None
    size = sum(entry.bytes for entry in entries)
    return listing, replace(wanted, revision=source.rpartition("/")[2], files=len(entries), bytes=size)


def change(database: Database, name: str, wanted: Iterable[Input], now: int, by: str) -> JobRecord:
    """Let the next sessions of a job have these inputs, which are stored, in place of those of the same names.

    Of a job that is evaluated, ``set`` is the test set of its next evaluation. Raises UnknownJob, Refused.
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
