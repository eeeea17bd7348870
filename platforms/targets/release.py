"""A release: a folder of plain files beside their digests, checked before anything of it is sent anywhere."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from jobs.payload.store.manifest import sha256_file
from jobs.payload.whole_file import write_whole
from platforms.artifacts.base import is_key
from platforms.targets.base import BadRelease, Release
from platforms.targets.plain_files import BadTensors, check_file, check_whole

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-f]{64}) [ *](\S+)")
_SUMS_MAX_BYTES = 1 << 20
_FILES_MAX = 2_000
_MODEL = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


def seal(folder: Path) -> None:
    """Write the SHA256SUMS of a folder, in place of one that is there. Raises BadRelease, OSError."""
    sums = "".join(f"{sha256_file(folder / name)}  {name}\n" for name in sorted(_names(folder)) if name != SUMS)
    write_whole(folder / SUMS, sums)


def open_release(model: str, version: int, folder: Path) -> Release:
    """Return the release in a folder after reading every byte of it.

    Raises BadRelease, which names the file, for: a link or a device, a file that SHA256SUMS does not list or that
    differs, and one that plain_files refuses. Raises OSError.
    """
    if not _MODEL.fullmatch(model) or version < 1:
        raise _bad(f"{model!r} version {version} is not a release name", "Use lower case a to z, digits, . _ -")
    names = _names(folder)
    sums = _read(folder / SUMS, _SUMS_MAX_BYTES) if SUMS in names else b""
    listed = _listed(sums)
    if odd := sorted(names - {SUMS} - set(listed)):
        raise _bad(f"{odd[0]} is not in {SUMS}", "Export the version again")
    if missing := sorted(set(listed) - names):
        raise _bad(f"{missing[0]} is in {SUMS} and not there", "Export the version again")
    if not listed:
        raise _bad(f"{folder} has no files, or no {SUMS}", "Export the version again")
    for name, digest in listed.items():
        try:
            check_file(folder / name, name)
        except BadTensors as error:
            raise _bad(f"{name}: {error.why}", error.remedy) from None
        if sha256_file(folder / name) != digest:
            raise _bad(f"{name} is not as {SUMS} says", "Export the version again")
    try:
        check_whole(folder, listed)
    except BadTensors as error:
        raise _bad(error.why, error.remedy) from None
    return Release(model, version, folder, listed, sums, hashlib.sha256(sums).hexdigest())


def _names(folder: Path) -> frozenset[str]:
    """Return the relative names of all files below a folder, all of them plain."""
    names = set()
    for name in _walk(folder):
        if not is_key(name):
            raise _bad(f"{name!r} cannot be a file name", "Use a to z, digits, . _ - and no leading dot")
        names.add(name)
        if len(names) > _FILES_MAX:
            raise _bad(f"{folder} has more than {_FILES_MAX} files", "A release is one model: export it again")
    return frozenset(names)


def _walk(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _bad(f"{path.relative_to(folder)} is no plain file", "Put the file itself there, no link")
        yield from (Path(parent, name).relative_to(folder).as_posix() for name in files)


def _listed(sums: bytes) -> dict[str, str]:
    result = {}
    for line in sums.decode("ascii", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or not is_key(match[2]) or match[2] in result or match[2] == SUMS:
            raise _bad(f"{SUMS} has a line that is none: {line[:80]!r}", "Export the version again")
        result[match[2]] = match[1]
    return result


def _read(path: Path, limit_bytes: int) -> bytes:
    with path.open("rb") as stream:
        data = stream.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise _bad(f"{path.name} is larger than {limit_bytes} bytes", "Export the version again")
    return data


def _bad(why: str, remedy: str) -> BadRelease:
    return BadRelease("(none yet)", "send the release", why, remedy)
