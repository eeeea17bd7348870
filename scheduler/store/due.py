"""Next due times of recurring tasks. They are stored, so that down time neither skips nor repeats one."""

from sqlalchemy import Connection, delete, insert, select, update

from scheduler.store.schema import due

CYCLE = "cycle"
"""The daemon's cycle. If its due time is long past, no cycle has finished since then."""

RESTORED = "look-back"
"""This task exists after a backup was restored, until the daemon has found the sessions that the backup lacks."""

_ALL = select(due.c.name, due.c.at)


def next_due(tx: Connection) -> dict[str, int]:
    """Return the next due time of every task by name."""
    return {row.name: row.at for row in tx.execute(_ALL)}


def set_due(tx: Connection, name: str, at: int) -> None:
    """Set the next due time of a task."""
    if not tx.execute(update(due).where(due.c.name == name).values(at=at)).rowcount:
        tx.execute(insert(due).values(name=name, at=at))


def forget(tx: Connection, name: str) -> None:
    """Remove a task that does not recur."""
    tx.execute(delete(due).where(due.c.name == name))
