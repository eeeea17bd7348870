"""One session folder: what its records say, and what the process table says about it."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from platforms.base import Observed, SessionState
from platforms.local.processes import boot_id, kill_members, members, start_ticks, works_for
from platforms.local.records import CLAIM, END, ORDER, publish
from platforms.record_file import read_record

if TYPE_CHECKING:
    from collections.abc import Callable

_Record = TypeVar("_Record")
_KILL_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Order:
    """What the adapter wrote at launch. ``claim_by`` (UTC seconds) is when it gives up on the keeper."""

    launched_at: int
    claim_by: int
    deadline: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """Who runs the session: pids with their start times in ticks, valid within one boot."""

    keeper: int
    keeper_ticks: int
    agent: int
    agent_ticks: int
    boot: str
    started_at: int
    ends_by: int


@dataclass(frozen=True, slots=True)
class Void:
    """The session was proved never to start: its claim was taken before any keeper took it."""

    at: int
    why: str


@dataclass(frozen=True, slots=True)
class End:
    """How a session ended, as its keeper wrote it, or as was found when there was no keeper left to write."""

    started_at: int
    ended_at: int
    exit_code: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Session:
    """The folder of one launch key. Reads raise OSError or DamagedRecord: that is no answer, not an absence."""

    key: str
    folder: Path

    def order(self) -> Order | None:
        """Return what was ordered, or None when there is no such session."""
        return self._read(ORDER, lambda document: Order(**{**document, "devices": tuple(document["devices"])}))

    def claim(self) -> Claim | Void | None:
        """Return who runs the session, or the proof that nobody ever will, or None when it is still open."""
        return self._read(CLAIM, lambda document: Void(**document["void"]) if "void" in document else Claim(**document))

    def end(self) -> End | None:
        """Return how the session ended, or None while it has not."""
        return self._read(END, lambda document: End(**document))

    def void(self, now: int, why: str) -> bool:
        """Take the claim, so that no keeper can; return False when somebody had it already."""
        return publish(str(self.folder), CLAIM, json.dumps({"void": {"at": now, "why": why}}) + "\n")

    def observe(self, now: int) -> Observed | None:
        """Return the session as it stands at ``now``, or None when there is no such session.

        Closes what is over: an unclaimed session past its time becomes void, and one whose processes are all
        gone without a last word gets its end written down, so that later looks give the same answer.
        """
        end = self.end()
        if end is not None:
            return self._ended(end)
        claim = self.claim()
        if claim is None:
            order = self.order()
            if order is None:
                return None
            if now <= order.claim_by:
                return Observed(self.key, SessionState.QUEUED, "", detail="starting")
            try:
                self.void(now, "no keeper claimed the session in time")
            except OSError as error:
                return Observed(self.key, SessionState.QUEUED, "", detail=f"overdue, and cannot be voided: {error}")
            claim = self.claim()
        match claim:
            case Void(why=why):
                return Observed(self.key, SessionState.ABSENT, "", detail=why)
            case Claim():
                return self._observe_claimed(claim, now)
            case None:
                return None  # swept in this moment

    def agent(self) -> int | None:
        """Return the pid of the live agent, which is the one to be asked politely, or None."""
        claim = self.claim()
        if not isinstance(claim, Claim) or self._rebooted(claim):
            return None
        return claim.agent if start_ticks(claim.agent) == claim.agent_ticks else None

    def kill(self) -> None:
        """End every process of the session except the keeper, who is left to write down the end."""
        claim = self.claim()
        if isinstance(claim, Claim) and not self._rebooted(claim):
            kill_members(claim.agent, claim.agent_ticks, str(self.folder), rounds=_KILL_ROUNDS)
            if start_ticks(claim.keeper) == claim.keeper_ticks:
                os.kill(claim.keeper, signal.SIGCONT)  # a keeper that somebody stopped cannot write

    def _observe_claimed(self, claim: Claim, now: int) -> Observed:
        running = Observed(self.key, SessionState.RUNNING, f"pid {claim.agent}", claim.started_at, detail="running")
        if not self._rebooted(claim):
            Path("/proc/self/stat").stat()  # without a process table "gone" would be a guess
            if start_ticks(claim.keeper) == claim.keeper_ticks:
                return running
            if members(claim.agent, claim.agent_ticks, str(self.folder)):
                return Observed(
                    self.key, SessionState.RUNNING, running.remote_id, claim.started_at, detail="keeper lost"
                )
        end = self.end()  # a keeper that ended in good order wrote it before it went
        if end is None:
            ended_at = max(claim.started_at, min(now, claim.ends_by))
            end = self._record(End(claim.started_at, ended_at, None, "all processes gone without a word"))
        return self._ended(end)

    def _record(self, end: End) -> End:
        document = {
            "started_at": end.started_at,
            "ended_at": end.ended_at,
            "exit_code": end.exit_code,
            "why": end.why,
        }
        try:
            publish(str(self.folder), END, json.dumps(document) + "\n")
        except OSError:
            return end  # a full disk does not make it less over; the next look writes it
        return self.end() or end

    def _ended(self, end: End) -> Observed:
        return Observed(self.key, SessionState.ENDED, "", end.started_at, end.ended_at, end.why)

    def _rebooted(self, claim: Claim) -> bool:
        """Return whether the claim is of an earlier boot, so that its pids say nothing.

        Sandboxes and containers may show a boot identity of their own: an agent that works for this very folder is
        believed more.
        """
        current = boot_id()
        if not (claim.boot and current) or claim.boot == current:
            return False
        return not works_for(claim.agent, str(self.folder))

    def _read(self, name: str, build: Callable[[dict[str, Any]], _Record]) -> _Record | None:
        return read_record(self.folder.parent, f"{self.key}/{name}", build)
