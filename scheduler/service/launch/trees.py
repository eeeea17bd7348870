"""Put folders of any size into the artifact store, from where sessions fetch them with ``fetch_tree``."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from jobs.inputs.folder import PackedFolder, pack_folder
from jobs.payload.store.listing import LISTING
from jobs.payload.store.manifest import sha256_file
from jobs.payload.store.tree import by_gigabytes, tree_prefix
from platforms.artifacts.base import BlobStore, Missing
from scheduler.store import trees
from scheduler.store.engine import Database


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
