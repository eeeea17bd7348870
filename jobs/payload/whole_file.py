"""Write files atomically, below a folder in which links are not followed.

Content is written to a temporary file in the same folder, synced, and then linked or renamed. Linking is atomic and
fails if the name exists, so two writers never mix and readers never see a part. The folder is synced last, so that the
name survives a power failure.
"""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeAlias

from .bounded_file import folder_below

TEMPORARY = ".tmp-"
"""The prefix of unfinished files; leftovers of writers that were killed are removed later."""
Source: TypeAlias = "Path | bytes | BinaryIO | Callable[[BinaryIO], object]"
"""The content of a file: a file to copy, bytes, a stream, or a function that writes to a stream."""
_PIECE_BYTES = 1 << 20


def create_below(root: Path, relative: str, source: Source) -> bool:
    """Write a file below ``root`` unless it exists; return whether this call wrote it. Raises OSError."""
    path = PurePosixPath(relative)
    with folder_below(root, str(path.parent), make=True) as folder:
        if size_in(folder, path.name) is not None:
            os.fsync(folder)  # the writer may have died before it synced the folder
            return False
        with _written(folder, source) as temporary:
            try:
                os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileExistsError:
                if size_in(folder, path.name) is None:
                    raise
                return False
            finally:
                os.fsync(folder)
    return True


def replace_below(root: Path, relative: str, source: Source, *, durable: bool = True) -> None:
    """Write or replace a file below ``root``; without ``durable`` a power failure may undo it. Raises OSError."""
    path = PurePosixPath(relative)
    with folder_below(root, str(path.parent), make=True) as folder, _written(folder, source, durable=durable) as fresh:
        os.replace(fresh, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        if durable:
            os.fsync(folder)


def write_whole(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write a file atomically: a crash leaves the old or the new content. ``sync`` extends this to a power failure."""
    data = content.encode() if isinstance(content, str) else content
    replace_below(path.parent, path.name, data, durable=sync)


def size_in(folder: int, name: str) -> int | None:
    """Return the size of a plain file of an open folder; None for anything else. Raises OSError."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _written(folder: int, source: Source, *, durable: bool = True) -> Iterator[str]:
    """Yield the name of a temporary file of ``folder`` with the content of ``source``, then remove it."""
    # The name is random, since machines that share the folder may have equal process IDs. Without a suffix it is not
    # read as a document.
    name = f"{TEMPORARY}{os.getpid()}-{threading.get_ident()}-{os.urandom(4).hex()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o666, dir_fd=folder), "wb") as stream:
            match source:
                case bytes():
                    stream.write(source)
                case Path():
                    with source.open("rb") as original:
                        shutil.copyfileobj(original, stream, _PIECE_BYTES)
                case _ if callable(source):
                    source(stream)
                case _:
                    shutil.copyfileobj(source, stream, _PIECE_BYTES)
            if durable:
                stream.flush()
                os.fsync(stream.fileno())
        yield name
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
