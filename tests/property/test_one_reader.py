"""Trainers, the corpus and test sets read any file alike: the same count of records, and damage at the same places."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.corpus.errors import Findings, Kind
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read import sources
from jobs.corpus.read.records import document_of
from jobs.corpus.read.sources import Files, Loader
from jobs.payload.scorers.items import BadItems, objects, read_items
from jobs.payload.trainers.tuning.data.reader import records
from jobs.payload.trainers.tuning.data.tally import Tally
from tests.lab.records import odd_file

PACKING: dict[str, Callable[[bytes], bytes]] = {
    "": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress
}  # fmt: skip
LIMIT = 4 << 20
NO_OBJECT = "it is no JSON object"
OF_RECORDS = {Kind.NULL_FIELD, Kind.WRONG_TYPE, Kind.MISSING_TEXT, Kind.EMPTY_TEXT, Kind.UNKNOWN_STAGE}


class Places(Tally):
    """Keeps the place of all that is left out, but for whole values that are no objects."""

    def __init__(self) -> None:
        super().__init__()
        self.damage: list[int] = []

    def leave(self, place: str, cause: str, form: str | None = None) -> None:
        """Keep the last number of a place: line, element or row."""
        super().leave(place, cause, form)
        if cause != NO_OBJECT:
            self.damage.append(int(re.findall(r"\d+", place)[-1]))


def damaged(data: bytes, draw: random.Random) -> bytes:
    """Return data, in half of the cases cut off, or with a byte changed or put in."""
    at = draw.randrange(len(data) + 1)
    odd = bytes([draw.choice([*range(256), 10, 13, 34, 91, 92, 93, 123, 125])])
    return draw.choice([data, data, data, data[:at], data[:at] + odd + data[at + 1 :], data[:at] + odd + data[at:]])


def content(kind: str, draw: random.Random) -> bytes:
    """Return a file of so many records, whole or not."""
    rows = [
        {"id": f"{number}", "text": draw.choice(["a", "ä\n", '"b",', "漢", ""])} for number in range(draw.randrange(9))
    ]
    match kind:
        case ".csv" | ".tsv":
            file = io.StringIO()
            table = csv.writer(
                file, delimiter="," if kind == ".csv" else "\t", lineterminator=draw.choice(["\n", "\r\n"])
            )
            table.writerows([["id", "text"], *([row["id"], row["text"]] for row in rows)])
            data = file.getvalue().encode()
        case ".json":
            data = json.dumps(rows, ensure_ascii=draw.random() < 0.5, indent=draw.choice([None, 1])).encode()
        case _ if draw.random() < 0.3:
            data = odd_file(draw, 9)
        case _:
            lines = [json.dumps(row, ensure_ascii=draw.random() < 0.5) for row in rows]
            data = (
                draw.choice(["\n", "\r\n", "\r"]).join(lines).encode(draw.choice(["utf-8"] * 4 + ["cp1252"]), "replace")
            )
    data = damaged(data, draw)
    return data.decode(errors="replace").encode("utf-16") if draw.random() < 0.1 else data


def trained(path: Path) -> tuple[int, list[int]]:
    tally = Places()
    return sum(1 for _ in records([path], tally)), tally.damage


def built(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, list[int]]:
    """Count what the corpus reads, at other places than those of damage."""
    lines: list[int] = []

    def counted(value: Any, source: str, line: int, findings: Findings) -> Any:
        lines.extend([line] * isinstance(value, dict))
        return document_of(value, source, line, findings)

    monkeypatch.setattr("jobs.corpus.read.sources.records.document_of", counted)
    monkeypatch.setattr(sources, "_holds_records", lambda _file: True)
    findings = Findings(listed_per_kind=10_000)
    list(Loader(findings, CorpusOptions(max_record_bytes=LIMIT), path.parent / "out").load(Files(path)))
    odd = [one for one in findings.listed if one.kind not in OF_RECORDS and "utf-16" not in one.detail]
    damage = [one.line for one in odd if "broken characters" not in one.detail]
    return sum(line not in damage for line in lines), sorted(set(damage))


@given(st.sampled_from([".jsonl", ".ndjson", ".json", ".csv", ".tsv"]), st.sampled_from(list(PACKING)), st.randoms())
def test_all_users_of_the_reader_count_the_same(
    tmp_path_factory: pytest.TempPathFactory, kind: str, packing: str, draw: random.Random
) -> None:
    path = tmp_path_factory.mktemp("odd") / f"odd{kind}{packing}"
    packed = PACKING[packing](content(kind, draw))
    path.write_bytes(damaged(packed, draw) if packing else packed)
    count, damage = trained(path)
    assert len(list(objects(path, LIMIT))) == count
    with pytest.MonkeyPatch.context() as monkeypatch:
        assert built(path, monkeypatch) == (count, damage)
    try:
        assert len(read_items(path).items) == count
        assert damage == []
    except BadItems as error:
        first = re.search(r"(?:line|element|row) (\d+): (no (?:JSON|row|end|UTF-8))?", str(error))
        assert first is None or not damage or int(first[1]) <= damage[0]
        assert first is None or not first[2] or int(first[1]) == damage[0]
