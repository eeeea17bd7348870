"""Databases of the current schema, made once in a process and copied: that takes no twentieth of making one."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.store.engine import open_database, upgrade

if TYPE_CHECKING:
    from scheduler.store.engine import Database


def new_database(path: Path) -> Database:
    """Return an empty SQLite database, as `schedctl init` leaves it: readable by its owner alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(_empty())
    return open_database(f"sqlite:///{path}")


@cache
def _empty() -> bytes:
    with tempfile.TemporaryDirectory(prefix="empty-") as folder:
        path = Path(folder) / "scheduler.db"
        upgrade(f"sqlite:///{path}")
        return path.read_bytes()
