"""Status line: what a prompt and the service manager show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.store import counts

if TYPE_CHECKING:
    from sqlalchemy import Connection


def status_line(tx: Connection, needs: int = 0) -> str:
    """Return counts of what runs and waits, and of what needs a person, without names: ``2 running, 5 waiting``."""
    jobs = counts.jobs_by_state(tx)
    parts = [f"{counts.live_sessions(tx)} running", f"{jobs['queued']} waiting"]
    parts += [f"{jobs[state]} {state}" for state in ("held", "failed") if jobs[state]]
    if needs:
        parts.append(f"{needs} {'needs' if needs == 1 else 'need'} a person")
    return ", ".join(parts)
