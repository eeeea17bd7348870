"""Status line: what a prompt and the service manager show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.store import counts, queue_waits

if TYPE_CHECKING:
    from sqlalchemy import Connection


def status_line(tx: Connection, needs: int = 0) -> str:
    """Return counts of what runs and waits, and of what needs a person, without names: ``2 running, 5 waiting``.

    Sessions that wait in their platform's queue do not run: ``1 running, 1 in a queue, 5 waiting``.
    """
    jobs = counts.jobs_by_state(tx)
    in_queue = queue_waits.count(tx)
    parts = [f"{counts.live_sessions(tx) - in_queue} running"]
    parts += [f"{in_queue} in a queue"] if in_queue else []
    parts.append(f"{jobs['queued']} waiting")
    parts += [f"{jobs[state]} {state}" for state in ("held", "failed") if jobs[state]]
    if needs:
        parts.append(f"{needs} {'needs' if needs == 1 else 'need'} a person")
    return ", ".join(parts)
