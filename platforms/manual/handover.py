"""One hand-over: the folder in which a session waits for a person, and what its records say.

Whoever writes the claim first decides: a person who takes the session, or the adapter that withdraws it. So a
session that was withdrawn, or that nobody took in time, is proven never to have started.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from platforms.base import Observed, PlatformError, SessionState, StopChannel
from platforms.local.records import publish
from platforms.record_file import read_record

OFFER = "offer.json"
CLAIM = "claim.json"
END = "ended.json"
STOP = "stop.json"
LOG = "output.log"
GIVEN = "given"  # what a person handed in, until it is collected

_Record = TypeVar("_Record")


class HandOverRefused(PlatformError):
    """What a person asked for is not possible as things stand; nothing was changed."""

    def __init__(self, action: str, why: str, remedy: str = "") -> None:
        super().__init__("manual", action, why, remedy)


@dataclass(frozen=True, slots=True)
class Offer:
    """What waits. UTC seconds; ``files`` are what a person must bring to the runtime, the notebook first.

    ``reaches_store``: the session looks for the stop flag itself; otherwise its person is asked to interrupt it.
    """

    offered_at: int
    lapses_at: int
    deadline: int
    jobs: tuple[str, ...]
    files: tuple[str, ...]
    reaches_store: bool


@dataclass(frozen=True, slots=True)
class Taken:
    """A person has it, since ``at``: from then on its quota counts."""

    at: int
    by: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Nobody can take it any more, and nobody did."""

    at: int
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """How it ended. ``started`` .. ``ended`` is what its quota counts."""

    started: int
    ended: int
    why: str


@dataclass(frozen=True, slots=True)
class HandOver:
    """The hand-over of one launch key. Reads raise OSError or DamagedRecord: that is no answer, not an absence."""

    key: str
    folder: Path

    def offer(self) -> Offer | None:
        """Return what was offered, or None when there is no such hand-over."""
        return self._read(
            OFFER,
            lambda found: Offer(**{**found, "jobs": tuple(found["jobs"]), "files": tuple(found["files"])}),
        )

    def claim(self) -> Taken | Withdrawn | None:
        """Return who decided its fate, or None while it is open."""
        return self._read(CLAIM, lambda found: Taken(**found) if "by" in found else Withdrawn(**found))

    def end(self) -> End | None:
        """Return how it ended, or None while it has not."""
        return self._read(END, lambda found: End(**found))

    def decide(self, claim: Taken | Withdrawn) -> bool:
        """Take or withdraw it; return False when somebody was faster."""
        return publish(str(self.folder), CLAIM, json.dumps(asdict(claim)))

    def close(self, end: End) -> bool:
        """Write down its end; return False when it had one."""
        return publish(str(self.folder), END, json.dumps(asdict(end)))

    def observe(self, now: int, result_seconds: int) -> Observed | None:
        """Return it as it stands at ``now``, closing what is over; None when there is no such hand-over.

        A taken session counts as running until its result is handed in, at most ``result_seconds`` past its deadline.
        """
        offer = self.offer()
        if offer is None:
            return None
        claim = self.claim()
        if claim is None:
            if now < offer.lapses_at:
                waits = "waits for a person to take it"
                return Observed(self.key, SessionState.QUEUED, "", detail=waits, stop_channel=StopChannel.PLATFORM)
            self.decide(Withdrawn(now, f"nobody took it within {offer.lapses_at - offer.offered_at} s"))
            claim = self.claim()
        if not isinstance(claim, Taken):
            return Observed(self.key, SessionState.ABSENT, "", detail=claim.why if claim else "withdrawn")
        end = self.end()
        if end is None and now > offer.deadline + result_seconds:
            self.close(End(claim.at, max(claim.at, offer.deadline), "nobody handed in a result"))
            end = self.end()
        remote_id = f"taken by {claim.by}"
        if end is None:
            stop_channel = StopChannel.STORE if offer.reaches_store else StopChannel.PLATFORM
            return Observed(
                self.key, SessionState.RUNNING, remote_id, claim.at, detail="a person has it", stop_channel=stop_channel
            )
        return Observed(self.key, SessionState.ENDED, remote_id, end.started, end.ended, end.why)

    def _read(self, name: str, build: Callable[[dict[str, Any]], _Record]) -> _Record | None:
        return read_record(self.folder.parent, f"{self.key}/{name}", build)
