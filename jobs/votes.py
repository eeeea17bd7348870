"""Votes: what those who use a version say of it, read from a file that may be mistaken or hostile.

One vote a line, of any version: the file may hold those of all models and is only ever added to. A file with anything
wrong in it tells nothing: the rest may be wrong too. docs/models.md has the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

from jobs.payload.bounds import brief, read_json
from jobs.payload.scorers.items import is_name
from jobs.problem import InvalidInput

VOTES_MAX = 100_000  # of one version
VOTES_BYTES_MAX = 256 << 20
LINE_BYTES_MAX = 4_096


class VotesError(InvalidInput):
    """A file of votes that tells nothing: ``line`` of it (from 1; 0 for the whole), why, and what to do."""

    def __init__(self, line: int, why: str, remedy: str) -> None:
        super().__init__(f"votes{f', line {line}' if line else ''}", why, remedy)
        self.line = line


@dataclass(frozen=True, slots=True)
class Vote:
    """What one request, or one pair of answers, said: whether the version in use was worse, or failed."""

    cluster: str
    worse: bool


class Votes:
    """The votes of one version, ``ufm@3``, in the order of a file; ``digest`` names what was read so far, in SHA-256.

    A last line without an end is being written and counts next time.
    """

    def __init__(self, stream: BinaryIO, version: str) -> None:
        self._stream = stream
        self._version = version
        self._read = hashlib.sha256()
        self._line = self._bytes = 0

    @property
    def digest(self) -> str:
        """Of all whole lines that were read."""
        return self._read.hexdigest()

    def __iter__(self) -> Iterator[Vote]:
        """Yield the version's votes, never more than a line of them in memory. Raises VotesError, OSError."""
        own = 0
        while (line := self._stream.readline(LINE_BYTES_MAX + 1)).endswith(b"\n"):
            self._count(line)
            vote = self._vote(line)
            if vote is not None:
                own += 1
                if own > VOTES_MAX:
                    self._wrong(f"more than {VOTES_MAX:,} votes of {self._version}", "one vote a cluster is enough")
                yield vote
        if len(line) > LINE_BYTES_MAX:
            self._line += 1
            self._wrong(f"longer than {LINE_BYTES_MAX:,} bytes", "write version, cluster and worse, and nothing else")

    def _count(self, line: bytes) -> None:
        self._line += 1
        self._bytes += len(line)
        self._read.update(line)
        if self._bytes > VOTES_BYTES_MAX:
            self._wrong(f"more than {VOTES_BYTES_MAX >> 20} MiB", "begin a new file with the next version")

    def _vote(self, line: bytes) -> Vote | None:
        try:
            document: Any = read_json(line)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            self._wrong("no JSON object", 'write {"version": "ufm@3", "cluster": "session-17", "worse": false}')
        for key in ("version", "cluster"):
            if not is_name(document.get(key)):
                self._wrong(f"{key} is {brief(document.get(key))}", "write a text of 1 to 200 characters")
        if not isinstance(document.get("worse"), bool):
            self._wrong(f"worse is {brief(document.get('worse'))}", "write true or false")
        return Vote(document["cluster"], document["worse"]) if document["version"] == self._version else None

    def _wrong(self, why: str, remedy: str) -> NoReturn:
        raise VotesError(self._line, why, remedy)
