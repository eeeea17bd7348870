"""Records: what this side remembers of a session, as files of its folder in the pool's state folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from platforms.base import Observed, SessionState

if TYPE_CHECKING:
    from pathlib import Path

ORDER, STARTED, END = "order.json", "started.json", "end.json"


@dataclass(frozen=True, slots=True)
class Ordered:
    """What was ordered, in scheduled UTC seconds.

    ``length`` is how long it may run at most; 0 in orders of older versions, whose script keeps to ``deadline``.
    """

    at: int
    deadline: int
    length: int = 0


@dataclass(frozen=True, slots=True)
class Started:
    """When a session was first seen to run, in real UTC seconds as Slurm tells it."""

    job: int
    at: int


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended, in scheduled UTC seconds; ``started`` is None when it never did.

    ``taken``: Slurm took it away, by a failed node or a preemption.
    """

    started: int | None
    ended: int
    detail: str
    told: bool
    taken: bool = False


def write(text: str, folder: Path) -> None:
    """Write an order into a session's folder."""
    (folder / ORDER).write_text(text)


def told(key: str, end: Ended) -> Observed:
    """Return an end as it was first told."""
    if end.started is None:
        return Observed(key, SessionState.ABSENT, "", detail=end.detail)
    return Observed(key, SessionState.ENDED, "", end.started, end.ended, end.detail, told=end.told, taken=end.taken)
