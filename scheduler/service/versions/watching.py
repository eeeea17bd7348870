"""Watching: what users say of the promoted version becomes evidence, and evidence of harm takes it back, once.

Votes are read beside the cycle. Taking back is one transaction that holds what is promoted against what was watched:
a daemon that dies anywhere has done all of it or nothing, and a version that was taken back is no longer promoted.
"""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from jobs.scores import Votes, VotesError
from scheduler.judge.evidence import WatchResult, watch
from scheduler.service.faults.isolation import gather_apart
from scheduler.service.outside.ports import Ports
from scheduler.service.versions.promotion import rollback
from scheduler.store import conditions, events, jobs, versions
from scheduler.store.errors import Stale
from scheduler.store.versions import Version

ALARM, BLIND = "watch.alarm", conditions.BLIND
_EVERY_SECONDS = 60
BY = "daemon"


@dataclass(frozen=True, slots=True)
class Watch:
    """What the votes on a version come to: ``usual`` is the share of worse ones that is no harm.

    ``digest`` is the SHA-256 of the lines that were read of ``source``; the same lines give the same again.
    """

    version: str
    source: str
    usual: float
    watched: WatchResult
    digest: str

    @property
    def alarm(self) -> bool:
        """Return whether harm is shown, now or at any vote before."""
        return self.watched.alarm_at is not None

    @property
    def text(self) -> str:
        """What was seen, in words."""
        watched = self.watched
        return (
            f"{watched.worse:,} of {watched.votes:,} votes say that it is worse, where {self.usual:g} of them is usual"
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """What is to be watched: a version, the file of its votes, and which share of worse ones is no harm."""

    version: Version
    path: str
    usual: float


_Mark = tuple[float, int, int, int]  # the usual share, and what tells one state of a file from another
_NEVER: _Mark = (0.0, 0, 0, 0)


def read_watch(version: Version, path: Path, usual: float) -> Watch:
    """Return what a file of votes says of a version. Raises VotesError, ValueError for a bad ``usual``, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # reading a pipe could block for ever
            raise VotesError(0, f"{path} is no plain file", "name a file that votes are added to")
        votes = Votes(stream, version.name)
        watched = watch(votes, usual)
    return Watch(version.name, str(path), usual, watched, votes.digest)


def take_back(tx: Connection, version: Version, evidence: Watch, now: int, by: str) -> tuple[Version, Version | None]:
    """Take a version back because of its votes, which stay on record. Raises Stale when it is no longer promoted."""
    in_force = versions.in_force(tx, version.model)
    if in_force is None or in_force.number != version.number:
        raise Stale(f"the promoted version of {version.model}", version.name, in_force.name if in_force else "nothing")
    events.append(
        tx,
        ALARM,
        version.name,
        now,
        by,
        why=evidence.text,
        watched=asdict(evidence.watched),
        usual=evidence.usual,
        votes_digest=evidence.digest,
    )
    return rollback(tx, version.model, f"{evidence.text} (votes {evidence.digest[:16]})", now, by)


class Watches:
    """Looks at votes now and then. Keeps only what may be lost: which files it has read, and what was wrong there."""

    def __init__(self, ports: Ports) -> None:
        self._ports = ports
        self._again_at = 0
        self._reading: dict[str, _Case] = {}
        self._read: dict[str, _Mark] = {}  # by version, the file that gave no alarm
        self._blind: dict[str, str] = {}

    def look(self, now: int) -> None:
        """Read the votes on promoted versions, and take back those that are shown to do harm."""
        ports = self._ports
        if not self._reading and now >= self._again_at:
            self._again_at = now + _EVERY_SECONDS
            with ports.database.read() as tx:
                self._reading = {case.version.name: case for case in _cases(tx)}
        work = {name: partial(_look, case, self._read.get(name)) for name, case in self._reading.items()}
        for name, answer in gather_apart(ports, "watch", "watch.unknown", work, None, "version").items():
            case = self._reading.pop(name)
            if answer is None:
                continue
            mark, result = answer
            if isinstance(result, str):
                self._tell(name, result, now)
                continue
            self._blind.pop(name, None)
            self._read[name] = mark
            if result is not None and result.alarm:
                self._take_back(case.version, result, now)

    def _tell(self, name: str, why: str, now: int) -> None:
        """Store once why a version is not watched."""
        if self._blind.get(name) != why:
            with self._ports.write() as tx:
                events.append(tx, BLIND, name, now, why=why)
            self._ports.log.warning(BLIND, version=name, why=why, next=f"schedctl models watch {name}")
        self._blind[name] = why

    def _take_back(self, version: Version, evidence: Watch, now: int) -> None:
        try:
            with self._ports.write() as tx:
                _, back = take_back(tx, version, evidence, now, BY)
        except Stale as error:  # a person was faster
            self._ports.log.info("watch.stale", version=version.name, why=str(error))
            return
        outcome = f"{back.name} is promoted again" if back else f"no version of {version.model} is promoted"
        self._ports.log.error(
            ALARM, version=version.name, why=f"{evidence.text}; {outcome}", next=f"schedctl models show {version.name}"
        )


def _cases(tx: Connection) -> list[_Case]:
    """Return the promoted versions whose definition says where votes come from.

    One that was taken back before and that a person promoted again is that person's: its old votes would take it
    back at once.
    """
    result = []
    for record in jobs.everything(tx):
        wanted = record.spec.evaluation
        in_force = versions.in_force(tx, record.spec.name) if wanted is not None and wanted.votes else None
        if wanted is None or in_force is None:
            continue
        moves = versions.promotions_of(tx, record.spec.name)
        if not any(move.kind == "rollback" and move.was == in_force.number for move in moves):
            result.append(_Case(in_force, wanted.votes, wanted.usual))
    return result


def _look(case: _Case, read: _Mark | None) -> tuple[_Mark, Watch | str | None]:
    """Return the mark of the file with what it says, or why it says nothing; None where it did not change."""
    path = Path(case.path)
    try:
        status = path.stat()
        mark = (case.usual, status.st_ino, status.st_size, status.st_mtime_ns)
        return mark, None if mark == read else read_watch(case.version, path, case.usual)
    except (ValueError, OSError) as error:
        missing = isinstance(error, FileNotFoundError)
        return _NEVER, f"there is no file of votes {path}; make an empty one" if missing else str(error)
