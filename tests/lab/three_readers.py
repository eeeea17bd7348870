"""One file as its three users read it: a training, a corpus, and item sets with outputs of models."""

from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from jobs.corpus.errors import Findings, Kind
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read import records as corpus_records
from jobs.corpus.read.sources import Files, Loader
from jobs.payload.scorers import items
from jobs.payload.trainers.tuning.data import reader
from jobs.payload.trainers.tuning.data.parts import JSON_KINDS, RecordFault, RecordReader, kind_of
from jobs.payload.trainers.tuning.data.tally import Tally

_NO_OBJECT = "it is not a JSON object"
_DAMAGE = {*RecordFault, Kind.BROKEN_ENCODING}
# A whole file in UTF-16 is no damage, and a broken character in it is replaced by all three.
_OF_WIDE = ("read as utf-16", "broken characters replaced")


class Reading(NamedTuple):
    """How many records one user got whole, and the lines, elements or rows of damage."""

    records: int
    damage: set[int]


class _Places(Tally):
    def __init__(self) -> None:
        super().__init__()
        self.places: list[tuple[int, str]] = []

    def leave(self, place: str, cause: str, form: str | None = None) -> None:
        super().leave(place, cause, form)
        self.places.append((int(place.replace(":", " ").rpartition(" ")[2]), cause))


def by_trainer(path: Path) -> Reading:
    """Read as a training does."""
    tally = _Places()
    count = sum(1 for _ in reader.records([path], tally))
    return Reading(count, {number for number, cause in tally.places if cause != _NO_OBJECT})


def by_items(path: Path) -> Reading:
    """Read as item sets and outputs are; what is not an object is counted as damage."""
    lines = list(items.records(path))
    return Reading(
        sum(record is not None for _, record in lines), {number for number, record in lines if record is None}
    )


def by_corpus(path: Path) -> Reading | None:
    """Read as a corpus does; None if it holds the file for text or for binary data."""
    findings = Findings(listed_per_kind=1 << 30)
    values: list[tuple[int, Any]] = []

    def keep(value: Any, _source: str, line: int, _findings: Findings) -> None:
        values.append((line, value))

    with patch.object(corpus_records, "document_of", keep):
        texts = list(Loader(findings, CorpusOptions(), path.parent / "corpora").load(Files(path)))
    guessed = findings.counts[Kind.NOT_UTF8] + findings.counts[Kind.BROKEN_ENCODING]
    if guessed and not _has_plain_lines(path):  # it guesses by lines, which elements and rows are not
        return None
    as_text = any(finding.detail.endswith("as text") for finding in findings.listed)
    if texts or as_text or findings.counts[Kind.BINARY] or findings.counts[Kind.EMPTY_TEXT]:
        return None
    damage = {
        finding.line for finding in findings.listed if finding.kind in _DAMAGE and not finding.detail.endswith(_OF_WIDE)
    }
    whole = sum(isinstance(value, dict) and line not in damage for line, value in values)
    return Reading(whole, damage)


def _has_plain_lines(path: Path) -> bool:
    with path.open("rb") as file:
        whole = RecordReader(file, path.name)
        next(whole.parts(), None)
    return whole.unit == "line" and kind_of(path.name) in JSON_KINDS


def agree(path: Path) -> bool:
    """Assert that all three give the same records and places; return whether a corpus reads the file as records."""
    trainer, of_items, corpus = by_trainer(path), by_items(path), by_corpus(path)
    assert of_items.records == trainer.records
    assert of_items.damage >= trainer.damage
    assert corpus is None or corpus == trainer
    return corpus is not None
