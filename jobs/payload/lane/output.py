"""Output: what a command that knows nothing of checkpoints left behind becomes the one checkpoint of its job.

Files with plain names stay what they are, below ``output``. What a checkpoint cannot hold as a file (a link, an odd
name, a folder too deep) goes into ``output.tar`` beside it, so that nothing is lost.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..store.manifest import valid_component_name

OUTPUT = "output"
_ARCHIVE = "output.tar"
_FILES_MAX = 9_000  # of its own in one checkpoint; the rest is archived


class Gathered(NamedTuple):
    """How much was taken, and how much of that into the archive; ``skipped`` is what no archive can hold."""

    files: int
    archived: int
    skipped: int


def gather(command_folder: Path, checkpoints: Path, step: int) -> Gathered:
    """Turn the output of a command that has ended into the finished checkpoint of ``step``. Raises OSError.

    The folder is moved, not copied. A link in its place is not followed: what it leads to is not ours.
    """
    partial = checkpoints / f".partial-{step:08d}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    output, target = command_folder / OUTPUT, partial / OUTPUT
    if output.is_dir() and not output.is_symlink():
        output.rename(target)
    files, odd, skipped = _sorted_out(partial, target)
    if odd:
        with tarfile.open(partial / _ARCHIVE, "w", format=tarfile.PAX_FORMAT) as archive:
            for path in odd:
                archive.add(path, path.relative_to(partial).as_posix(), recursive=False)
        for path in odd:
            path.unlink()
    (partial / "meta.json").write_text(json.dumps({"step": step, "metrics": {}}))
    partial.rename(checkpoints / f"step-{step:08d}")
    return Gathered(files + len(odd), len(odd), skipped)


def _sorted_out(partial: Path, target: Path) -> tuple[int, list[Path], int]:
    """Return how many files can stay, which go into the archive, and how many were removed as neither."""
    files, odd, skipped = 0, [], 0
    for path in _files(target):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            path.chmod(status.st_mode | stat.S_IRUSR)
            if files < _FILES_MAX and valid_component_name(path.relative_to(partial).as_posix()):
                files += 1
            else:
                odd.append(path)
        elif stat.S_ISLNK(status.st_mode):
            odd.append(path)
        else:
            path.unlink()
            skipped += 1
    return files, odd, skipped


def _files(folder: Path) -> Iterator[Path]:
    """Yield all that is no folder, in the order of names; links to folders too."""
    for place, inner, names in os.walk(folder):
        here = folder / place
        inner.sort()
        for name in inner:
            if not (here / name).is_symlink():
                (here / name).chmod(0o700)  # an unreadable folder holds results as well
        links = [name for name in inner if (here / name).is_symlink()]
        yield from (here / name for name in sorted([*names, *links]))
