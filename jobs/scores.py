"""Read the scores of an evaluation, and the votes of users, from untrusted files.

The first line names model, checkpoint, test set and scorer; each other line is one item's value of one metric. A file
with any error gives no scores, because its other lines may be wrong too. docs/gates.md has the format.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NoReturn

from jobs.payload.bounds import Unfit, brief, clean, measure, read_json
from jobs.payload.scorers.items import EXAMPLE_MAX, SCHEMA, Item, is_name
from jobs.problem import InvalidInput

SCORES_MAX = 200_000  # lines
SCORES_BYTES_MAX = 64 << 20
LINE_BYTES_MAX = 16_384
METRICS_MAX = 100
LABELS_KINDS_MAX = 20
_METRIC = re.compile(r"[a-z0-9][a-z0-9_@-]{0,59}(\.[a-z0-9][a-z0-9_-]{0,39})?")
_DIGEST = re.compile(r"[0-9a-f]{12,128}")
_COUNT_MAX = 10**9
_NOTES_MAX = 20


class ScoresError(InvalidInput):
    """A score file is invalid: ``line`` (from 1; 0: the whole file), why, and what to do."""

    def __init__(self, line: int, why: str, remedy: str) -> None:
        super().__init__(f"scores{f', line {line}' if line else ''}", why, remedy)
        self.line = line


@dataclass(frozen=True, slots=True)
class Score:
    """One item's value of one metric; ``example`` is a short text that explains it, or empty."""

    item: str
    cluster: str
    value: float
    example: str = ""


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a checkpoint by metric and item, a judge's tables of counts by metric, and notes on the scoring."""

    model: str
    checkpoint: str
    test_set: str
    scorer: str
    by_metric: Mapping[str, Mapping[str, Score]]
    agreement: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_scores(
    stream: BinaryIO, *, model: str, checkpoint: str, test_set: str, items: Mapping[str, Item] | None = None
) -> Scores:
    """Return the scores in a file, which must be of this model, checkpoint and test set. Raises ScoresError.

    With ``items``, a metric must have a value of each item, ``metric.domain`` of each item of that domain, and clusters
    must be those of the set.
    """
    reading = _Reading(stream)
    header = reading.header()
    for key, own in (("model", model), ("checkpoint", checkpoint), ("set", test_set)):
        if header.get(key) != own:
            why = f"{key} is {brief(header.get(key))} instead of {brief(own)}"
            raise ScoresError(1, why, "these are another evaluation's scores; evaluate this one again")
    if not isinstance(header.get("scorer"), str) or not _DIGEST.fullmatch(header["scorer"]):
        remedy = "write the digest of the scorer's code, in 12 to 128 hexadecimal digits"
        raise ScoresError(1, f"scorer is {brief(header.get('scorer'))}, which is not a digest", remedy)
    scores = reading.scores(items)
    if items is not None:
        _check_whole(scores, items)
    return Scores(model, checkpoint, test_set, header["scorer"], scores, _agreement(header, scores), _notes(header))


class _Reading:
    """Reads a score file line by line, and enforces the limits."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._bytes = 0
        self.line = 0

    def header(self) -> Mapping[str, Any]:
        """Return the object of the first line."""
        document = self._next()
        if document is None:
            raise ScoresError(0, "the file is empty", "look into the evaluation's log: the scorer wrote nothing")
        if document.get("schema") != SCHEMA or isinstance(document.get("schema"), bool):
            remedy = f'begin with {{"schema": {SCHEMA}, "model": ..., "checkpoint": ..., "set": ..., "scorer": ...}}'
            raise ScoresError(1, f"schema is {brief(document.get('schema'))} instead of {SCHEMA}", remedy)
        return document

    def scores(self, items: Mapping[str, Item] | None) -> dict[str, dict[str, Score]]:
        """Return the scores of all other lines, by metric and item."""
        result: dict[str, dict[str, Score]] = {}
        clusters: dict[str, str] = {}
        while (document := self._next()) is not None:
            metric, score = self._score(document)
            of_metric = result.setdefault(metric, {})
            if len(result) > METRICS_MAX:
                self._wrong(f"more than {METRICS_MAX} metrics", "let a scorer report fewer")
            if score.item in of_metric:
                self._wrong(f"{metric} of {brief(score.item)} stands twice", "write one line for each item and metric")
            own = self._cluster_of(score, items, clusters)
            if score.cluster != own:
                why = f"{brief(score.item)} is of cluster {brief(own)}, not {brief(score.cluster)}"
                self._wrong(why, "write the cluster that the test set says")
            of_metric[score.item] = score
        if not result:
            raise ScoresError(0, "there is a header and no score", "look into the evaluation's log: it may have failed")
        return result

    def _cluster_of(self, score: Score, items: Mapping[str, Item] | None, clusters: dict[str, str]) -> str:
        if items is None:
            return clusters.setdefault(score.item, score.cluster)
        if score.item not in items:
            self._wrong(f"{brief(score.item)} is no item of the test set", "score the items of the set, and no others")
        return items[score.item].cluster

    def _score(self, document: Mapping[str, Any]) -> tuple[str, Score]:
        for key in ("item", "cluster"):
            if not is_name(document.get(key)):
                self._wrong(f"{key} is {brief(document.get(key))}", "write the text that the test set has")
        metric, example = document.get("metric"), document.get("example", "")
        if not isinstance(metric, str) or not _METRIC.fullmatch(metric):
            remedy = "use a-z, 0-9, _, @ and -, and perhaps a dot and a domain: loss.python"
            self._wrong(f"metric is {brief(metric)}", remedy)
        if not isinstance(example, str):
            self._wrong(f"example is {brief(example)}", "write a short text, or leave it out")
        try:
            value = measure(document.get("value"))
        except Unfit as error:
            remedy = "write a finite number: 1 or 0 for passed or failed; an item that gave none is worth 0"
            self._wrong(f"value is {brief(document.get('value'))}, {error}", remedy)
        return metric, Score(document["item"], document["cluster"], value, clean(example, EXAMPLE_MAX))

    def _next(self) -> Mapping[str, Any] | None:
        line = self._stream.readline(LINE_BYTES_MAX + 1)
        if not line:
            return None
        self.line += 1
        self._bytes += len(line)
        if len(line) > LINE_BYTES_MAX:
            self._wrong(f"longer than {LINE_BYTES_MAX:,} bytes", "shorten the example")
        if self.line > SCORES_MAX + 1 or self._bytes > SCORES_BYTES_MAX:
            why = f"more than {SCORES_MAX:,} scores or {SCORES_BYTES_MAX >> 20} MiB"
            self._wrong(why, "score a smaller set, with fewer metrics or shorter examples")
        try:
            document = read_json(line)
        except ValueError as error:
            self._wrong(f"no JSON ({clean(str(error), 100)})", "write one object a line, without empty lines")
        if not isinstance(document, dict):
            self._wrong(f"{brief(document)} is no object", "write one object a line")
        return document

    def _wrong(self, why: str, remedy: str) -> NoReturn:
        raise ScoresError(self.line, why, remedy)


def _check_whole(by_metric: Mapping[str, Mapping[str, Score]], items: Mapping[str, Item]) -> None:
    """Raise ScoresError for a metric without a value of some items, which may be the items that failed."""
    domains: dict[str, set[str]] = {}
    for item in items.values():
        domains.setdefault(item.domain, set()).add(item.id)
    for metric, scores in by_metric.items():
        _, dot, domain = metric.partition(".")
        wanted = domains.get(domain, set()) if dot else items.keys()
        if missing := sorted(wanted - scores.keys()):
            why = f"{metric} has no value of {len(missing):,} of {len(wanted):,} items, of {brief(missing[0])} for one"
            raise ScoresError(0, why, "score every item: one that gave no answer is worth 0")
        if foreign := sorted(scores.keys() - wanted):
            why = f"{metric} has a value of {brief(foreign[0])}, which is not of domain {brief(domain)}"
            raise ScoresError(0, why, "write metric.domain for items of that domain only")


def _agreement(
    header: Mapping[str, Any], scores: Mapping[str, Mapping[str, Score]]
) -> dict[str, tuple[tuple[int, ...], ...]]:
    value = header.get("agreement", {})
    remedy = 'write it like {"judge": [[80, 5], [7, 108]]}: rows what people said, columns what the judge said'
    if not isinstance(value, dict) or not value.keys() <= scores.keys():
        raise ScoresError(1, f"agreement is {brief(value)}, which is not a table of metrics of this file", remedy)
    tables = {}
    for metric, table in value.items():
        size = len(table) if isinstance(table, list) else 0
        square = 0 < size <= LABELS_KINDS_MAX and all(isinstance(row, list) and len(row) == size for row in table)
        if not square or not all(type(count) is int and 0 <= count <= _COUNT_MAX for row in table for count in row):
            raise ScoresError(1, f"agreement of {metric} is {brief(table)}, which is not a square of counts", remedy)
        tables[metric] = tuple(map(tuple, table))
    return tables


def _notes(header: Mapping[str, Any]) -> tuple[str, ...]:
    value = header.get("notes", [])
    if not isinstance(value, list) or len(value) > _NOTES_MAX or not all(isinstance(note, str) for note in value):
        raise ScoresError(
            1, f"notes are {brief(value)}", f"write a list of at most {_NOTES_MAX} texts, or leave it out"
        )
    return tuple(clean(note, EXAMPLE_MAX) for note in value)


VOTES_MAX = 100_000  # votes of one version
VOTES_BYTES_MAX = 256 << 20
VOTE_BYTES_MAX = 4_096


class VotesError(InvalidInput):
    """A file of votes is invalid: ``line`` (from 1; 0: the whole file), why, and what to do."""

    def __init__(self, line: int, why: str, remedy: str) -> None:
        super().__init__(f"votes{f', line {line}' if line else ''}", why, remedy)
        self.line = line


@dataclass(frozen=True, slots=True)
class Vote:
    """One vote on a request or a pair of answers; ``worse``: the promoted version was worse, or failed."""

    cluster: str
    worse: bool


class Votes:
    """The votes of one version (``ufm@3``) in a file; ``digest`` is the SHA-256 of all complete lines read so far."""

    def __init__(self, stream: BinaryIO, version: str) -> None:
        self._stream = stream
        self._version = version
        self._read = hashlib.sha256()
        self._line = self._bytes = 0

    @property
    def digest(self) -> str:
        """SHA-256 of all complete lines read so far."""
        return self._read.hexdigest()

    def __iter__(self) -> Iterator[Vote]:
        """Yield the version's votes, one line in memory at a time. Raises VotesError, OSError."""
        own = 0
        while (line := self._stream.readline(VOTE_BYTES_MAX + 1)).endswith(b"\n"):
            self._count(line)
            vote = self._vote(line)
            if vote is not None:
                own += 1
                if own > VOTES_MAX:
                    self._wrong(f"more than {VOTES_MAX:,} votes of {self._version}", "one vote a cluster is enough")
                yield vote
        if len(line) > VOTE_BYTES_MAX:
            self._line += 1
            self._wrong(f"longer than {VOTE_BYTES_MAX:,} bytes", "write version, cluster and worse, and nothing else")

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
