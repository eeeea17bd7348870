"""Archives: pack the payload for a platform, and unpack archives that come back.

The payload archive is reproducible byte for byte, so its digest identifies it. Archives from a platform are
untrusted: only plain files and folders within limits are unpacked, into a new folder that is created atomically.
"""

import errno
import gzip
import hashlib
import io
import os
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from jobs.payload.bounded_file import ODD, open_below
from jobs.payload.whole_file import write_whole
from jobs.problem import Refusal

_PIECE_BYTES = 1 << 20
_PART = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._+=@,()\[\] -]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Bundle:
    """A packed payload. ``sha256`` is the digest of the archive before compression, and its identity."""

    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Limits of an archive. ``ratio`` limits unpacked over packed size, once more than 1 MiB is unpacked."""

    files: int = 10_000
    file_bytes: int = 8 << 30
    total_bytes: int = 16 << 30
    depth: int = 8
    ratio: int = 200


class BadArchive(Refusal):
    """The archive violates a rule or limit; none of its files were kept."""

    def __init__(self, archive: Path, member: str, why: str) -> None:
        super().__init__(f"archive {archive}: {f'{member!r} ' if member else ''}{why}; none of its files were kept")


def build_bundle(payload: Path, folder: Path) -> Bundle:
    """Pack the folder ``payload`` into ``folder``/payload-<sha256>.tar.gz unless that file exists; return it.

    Only Python sources are included, under the name of the payload folder. Raises OSError.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(payload.rglob("*.py"), key=lambda path: path.relative_to(payload).parts):
            member = tarfile.TarInfo(f"{payload.name}/{path.relative_to(payload).as_posix()}")
            content = path.read_bytes()
            member.size, member.mode = len(content), 0o644
            archive.addfile(member, io.BytesIO(content))
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    target = folder / f"payload-{digest}.tar.gz"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(target, gzip.compress(buffer.getvalue(), mtime=0))
    return Bundle(target, digest)


def extract(archive: Path, target: Path, limits: BundleLimits | None = None) -> list[str]:
    """Unpack a zip into the folder ``target``, which must not exist yet; return the files' names.

    Raises BadArchive for anything but plain files and folders within ``limits``, FileExistsError, OSError.
    """
    if target.exists():
        raise FileExistsError(f"{target} exists; archives are unpacked into a fresh folder")
    fresh = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fresh.mkdir(parents=True, mode=0o700)
    try:
        unpacking = _Unpacking(archive, fresh, limits or BundleLimits())
        with _readable(archive):
            unpacking.run()
        fresh.rename(target)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return sorted(unpacking.names)


@contextmanager
def _readable(archive: Path) -> Iterator[None]:
    """Translate errors of zipfile about damaged data into BadArchive; errors of the disk stay OSError."""
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, OverflowError) as error:
        raise BadArchive(archive, "", f"cannot be read: {error}") from error
    except OSError as error:
        # A seek to an invalid offset of the archive, or the path is not a plain file.
        if error.errno in ODD | {None, errno.EINVAL}:
            raise BadArchive(archive, "", f"cannot be read: {error}") from error
        raise


class _Unpacking:
    def __init__(self, archive: Path, folder: Path, limits: BundleLimits) -> None:
        self._archive = archive
        self._folder = folder
        self._limits = limits
        self._packed_bytes = archive.stat().st_size
        self._total_bytes = 0
        self._names: set[str] = set()
        self.names: list[str] = []

    def run(self) -> None:
        archive = self._archive.resolve()  # the caller's path may be a link, which open_below does not follow
        with open_below(archive.parent, archive.name) as stream, zipfile.ZipFile(stream) as opened:
            for member in opened.infolist():
                kind = stat.S_IFMT(member.external_attr >> 16)
                if member.orig_filename != member.filename or member.flag_bits & 1:
                    self._refuse(member.orig_filename, "is encrypted or has an odd name")
                if member.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                    self._refuse(member.filename, f"is packed by method {member.compress_type}")
                if member.is_dir() and kind in {0, stat.S_IFDIR}:
                    if (folder := member.filename.rstrip("/")) not in {"", "."}:
                        self._path(folder).mkdir(parents=True, exist_ok=True)
                elif not member.is_dir() and kind in {0, stat.S_IFREG}:
                    with opened.open(member) as content:
                        self._unpack_file(member.filename, member.file_size, content)
                else:
                    self._refuse(member.filename, "is not a plain file or folder")

    def _unpack_file(self, name: str, size: int, content: IO[bytes]) -> None:
        path = self._path(name)
        if size > self._limits.file_bytes:
            self._refuse(name, f"is larger than {self._limits.file_bytes} bytes")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as output:
            while piece := content.read(_PIECE_BYTES):
                self._count_bytes(name, len(piece))
                output.write(piece)
            if output.tell() != size:
                self._refuse(name, f"does not have its declared size of {size} bytes")
        self.names.append(path.relative_to(self._folder).as_posix())

    def _count_bytes(self, name: str, size: int) -> None:
        self._total_bytes += size
        if self._total_bytes > self._limits.total_bytes:
            self._refuse(name, f"makes the archive unpack to more than {self._limits.total_bytes} bytes")
        if self._total_bytes > max(1 << 20, self._packed_bytes * self._limits.ratio):
            self._refuse(name, f"makes the archive unpack to more than {self._limits.ratio} times its packed size")

    def _path(self, name: str) -> Path:
        """Return the target path. Raises BadArchive for invalid names and repeated ones (ignoring case)."""
        if len(self._names) >= self._limits.files:
            self._refuse(name, f"exceeds the limit of {self._limits.files} files and folders")
        parts = name.removeprefix("./").split("/")
        if len(parts) > self._limits.depth:
            self._refuse(name, f"lies deeper than {self._limits.depth} folders")
        if not all(_PART.fullmatch(part) for part in parts):
            self._refuse(name, "has a name that is not allowed")
        folded = "/".join(parts).casefold()
        if folded in self._names:
            self._refuse(name, "appears twice")
        self._names.add(folded)
        path = self._folder / PurePosixPath(*parts)
        if any(parent.is_file() for parent in path.parents if parent.is_relative_to(self._folder)):
            self._refuse(name, "has a file as its folder")
        return path

    def _refuse(self, member: str, why: str) -> NoReturn:
        raise BadArchive(self._archive, member, why)
