"""Code: a job's own files, taken when it is added, kept in the artifact store, and given back with what they made."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from jobs.code.pack import pack
from jobs.payload.store.manifest import Manifest
from jobs.payload.store.tree import CONTENT, LISTING, BadListing, code_prefix, unpack
from jobs.problem import Refusal
from jobs.spec import Code
from platforms.artifacts.base import BlobStore, Missing
from scheduler.store import trees
from scheduler.store.engine import Database

_PIECE_BYTES = 1 << 20


def keep(
    database: Database, artifacts: BlobStore, code: Code, delete_at: int, heal: Callable[[str], None] | None = None
) -> Code:
    """Take a folder or commit as it is now and store it, unless the same is there; return it with its digest.

    With ``heal``, what is there is read; if it is damaged that is reported, and it is sent again. It is deleted after
    ``delete_at`` if no job names it by then. The content is sent before the listing. Raises
    CodeError, Refused, StoreError, OSError.
    """
    with tempfile.TemporaryDirectory(prefix="schedctl-code-") as folder:
        plain = Path(folder) / "plain"
        with plain.open("wb") as sink:
            packed, listing = pack(code, sink)
        with database.write() as tx:
            trees.note(tx, "code", packed.digest, delete_at)
        if heal is not None and (why := _damage(artifacts, packed.digest, Path(folder))):
            heal(f"The code {packed.digest[:12]} was damaged in the artifact store, and is sent again: {why}")
            for name in (LISTING, CONTENT):
                artifacts.delete(f"{code_prefix(packed.digest)}/{name}")
        send(artifacts, packed.digest, plain, listing)
    return packed


def _damage(artifacts: BlobStore, digest: str, scratch: Path) -> str:
    """Return what is wrong with code in the store; empty for none, also when it is not there. Raises StoreError."""
    if artifacts.size(f"{code_prefix(digest)}/{LISTING}") is None:
        return ""
    try:
        _fetch(artifacts, digest, scratch / "fetched", scratch / "fresh")
    except (BadListing, Missing) as error:
        return str(error)
    return ""


def _fetch(artifacts: BlobStore, digest: str, fetched: Path, fresh: Path) -> None:
    """Unpack code of the store into the new folder ``fresh``. Raises BadListing, StoreError, OSError."""
    for name in (LISTING, CONTENT):
        artifacts.fetch(f"{code_prefix(digest)}/{name}", fetched / name)
    fresh.mkdir()
    unpack(fetched, digest, fresh)


def send(artifacts: BlobStore, digest: str, plain: Path, listing: bytes) -> None:
    """Store what :func:`jobs.code.pack.pack` made, unless it is there; the listing comes last. Raises StoreError."""
    prefix = code_prefix(digest)
    if artifacts.size(f"{prefix}/{LISTING}") is None:
        packed = plain.with_name(CONTENT)
        with plain.open("rb") as source, gzip.GzipFile(packed, "wb", compresslevel=6, mtime=0) as target:
            shutil.copyfileobj(source, target, _PIECE_BYTES)
        artifacts.create(f"{prefix}/{CONTENT}", packed)
        artifacts.create(f"{prefix}/{LISTING}", listing)


def default(command: Sequence[str], file: Path | None) -> Code | None:
    """Return the code of a job that names none: the folder of its file, or the current one, if its command needs it.

    That is so when one of its words is a file there; an empty folder, in which it would start else, has no such file.
    """
    folder = (Path() if file is None else file.parent).resolve()
    words = [word for word in command if word and "{" not in word and not Path(word).is_absolute()]
    return Code(str(folder)) if any((folder / word).is_file() for word in words) else None


def pull(database: Database, artifacts: BlobStore, manifest: Manifest, target: Path) -> str | None:
    """Put the code that made a checkpoint into the new folder ``target``; return its digest, None when it had none.

    Raises Refusal, StoreError, OSError.
    """
    with database.read() as tx:
        digest, _ = trees.of_attempt(tx, manifest.job, manifest.attempt)
    if digest is None:
        return None
    if target.exists():
        raise Refusal(f"{target} is there already", remedy="Name another folder, or move it away")
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as folder:
        fetched, fresh = Path(folder) / "fetched", Path(folder) / "fresh"
        try:
            _fetch(artifacts, digest, fetched, fresh)
        except BadListing as error:
            raise Refusal(
                f"the code {digest[:12]} is damaged in the store: {error}", remedy="Take it from git"
            ) from None
        fresh.rename(target)
    return digest
