"""Share now: what a job shall have of the hours that it shares with others, and what it had so far."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from scheduler.service.facts.snapshot import hour_shares
from scheduler.store import jobs


@dataclass(frozen=True, slots=True)
class ShareNow:
    """``part`` of the device hours that the job has together with ``partners`` is its own; None without any hours.

    Sessions that run count in full.
    """

    partners: tuple[str, ...]
    part: float
    so_far: float | None

    def words(self) -> str:
        """Return it for people."""
        had = "none yet" if self.so_far is None else f"{self.so_far:.0%} so far"
        return f"{self.part:.0%} of its hours with {', '.join(self.partners)}; {had}".replace("%", " %")


def share_now(tx: Connection, name: str) -> ShareNow | None:
    """Return the share of the job ``name``; None when it has none, or its partner is not in the queue any more."""
    shares = hour_shares(tx, jobs.everything(tx))
    mine = shares.get(name)
    if mine is None:
        return None
    partners = tuple(other for other, share in shares.items() if share.group == mine.group and other != name)
    return ShareNow(partners, mine.part, mine.so_far)
