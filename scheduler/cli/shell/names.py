"""Find runs and pools by name; the error for an unknown name suggests similar ones."""

from collections.abc import Collection, Iterable
from difflib import get_close_matches

from sqlalchemy import Connection

from jobs.nouns.pool import Pool
from jobs.problem import NotFound
from scheduler.core.run import Run

_RUNS_SEARCHED = 500  # the newest runs, among which similar names are searched


def find_run(tx: Connection, key: str, *, or_job: bool = False) -> Run:
    """Return a run by its ID; with ``or_job`` also the newest run of a job, by the job's name. Raises NotFound."""
    from scheduler.store import runs

    try:
        return runs.get(tx, key)
    except runs.UnknownRun:
        newest = runs.recent(tx, 1, job=key)
        if newest and or_job:
            return newest[0]
        recent = newest or runs.recent(tx, _RUNS_SEARCHED)
        names = [*(run.key for run in recent), *(lane.job for run in recent for lane in run.lanes if or_job)]
        similar = suggest(key, dict.fromkeys(names), "schedctl runs list")
        remedy = f"Did you mean {newest[0].key}?" if newest else similar
        why = f"{key} is {'neither a job that has run nor' if or_job else 'not'} the ID of a run"
        raise NotFound("unknown run", why, remedy) from None


def find_pool(pools: dict[str, Pool], name: str) -> Pool:
    """Return the configured pool of this name. Raises NotFound."""
    if name not in pools:
        raise NotFound("unknown pool", f"{name} is not among the settings", suggest(name, pools, "schedctl pools"))
    return pools[name]


def suggest(word: str, names: Iterable[str], listing: str) -> str:
    """Return the remedy for an unknown name: similar names, or ``listing``, the command that lists all."""
    close = get_close_matches(word, list(names))
    return f"Did you mean {' or '.join(close)}?" if close else f"See: {listing}"


def free_name(wanted: str, used: Collection[str]) -> str:
    """Return ``wanted`` if it is free, otherwise its first 36 characters with the lowest number that makes it free."""
    numbered = (f"{wanted[:36]}-{number}" for number in range(2, len(used) + 3))
    return next(name for name in (wanted, *numbered) if name not in used)


def listed(words: Collection[str], most: int = 8) -> str:
    """Return the first ``most`` names, sorted and joined by commas, and how many more there are."""
    first = sorted(words)[:most]
    return ", ".join(first) + (f" and {len(words) - most} more" if len(words) > most else "")
