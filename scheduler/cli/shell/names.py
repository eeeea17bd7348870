"""Names: find what a user named, or say which names come close."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from scheduler.cli.shell.exits import NotFound

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from sqlalchemy import Connection

    from scheduler.core.pool import Pool
    from scheduler.core.run import Run

_RUNS_SEARCHED = 500


def find_run(tx: Connection, key: str) -> Run:
    """Return a run by its launch key. Raises NotFound."""
    from scheduler.store import runs

    try:
        return runs.get(tx, key)
    except runs.UnknownRun:
        known = [run.key for run in runs.recent(tx, _RUNS_SEARCHED)]
        raise NotFound("unknown run", f"{key} is no launch key", meant(key, known, "schedctl runs list")) from None


def find_pool(pools: dict[str, Pool], name: str) -> Pool:
    """Return a configured pool. Raises NotFound."""
    if name not in pools:
        raise NotFound("unknown pool", f"{name} is not among the settings", meant(name, pools, "schedctl pools"))
    return pools[name]


def meant(word: str, known: Iterable[str], listing: str) -> str:
    """Return the remedy for an unknown name: those that come close, or the command that lists all."""
    close = get_close_matches(word, list(known))
    return f"Did you mean {' or '.join(close)}?" if close else f"See: {listing}"


def listed(words: Collection[str], most: int = 8) -> str:
    """Return a few names in one line."""
    shown = sorted(words)[:most]
    return ", ".join(shown) + (f" and {len(words) - most} more" if len(words) > most else "")
