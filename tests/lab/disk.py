"""A small disk, and a folder that nobody can write to: both are mounted, which only root may do."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """Mount an empty disk of ``size``, such as "24m", on a folder until the body ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with _mounted(folder, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield folder


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """Leave not one free block on the disk of ``folder``."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as stream:
        for piece in (1 << 20, 1 << 12, 1):
            try:
                while stream.write(b"\0" * piece):
                    pass
            except OSError:
                continue
    yield
    ballast.unlink()


@contextmanager
def read_only(folder: Path) -> Iterator[Path]:
    """Let nobody, root included, write to a folder until the body ends."""
    with _mounted(folder, "--bind", str(folder)):
        make_read_only(folder)
        yield folder


def make_read_only(folder: Path) -> None:
    """Let nobody write any more to what is mounted on a folder."""
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


@contextmanager
def _mounted(folder: Path, *words: str) -> Iterator[None]:
    if os.geteuid() != 0:
        pytest.skip("NOT PROVEN: a disk that is full or read-only; only root may mount one")
    made = subprocess.run(["mount", *words, folder], check=False, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"NOT PROVEN: a disk that is full or read-only; this machine mounts none: {made.stderr.strip()}")
    try:
        yield
    finally:
        # Lazily: what still runs there ends a moment later.
        subprocess.run(["umount", "--lazy", folder], check=True)
