"""Corpora and test sets of every kind of file that the one reader knows: tables, compressed files, arrays."""

import csv
import gzip
import hashlib
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.corpus.build.build import build
from jobs.corpus.manifest import CorpusManifest, rows_of
from jobs.corpus.read.sources import Files
from jobs.payload.scorers.items import BadItems, only_file, read_items
from jobs.payload.trainers.tuning.data.reader import records
from jobs.payload.trainers.tuning.data.tally import Tally

NEEDED = "is not installed: only machines that read such files need it"
ROWS = [{"id": f"n{number}", "text": f'row {number}, "quoted" ü'} for number in range(40)]


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def table(rows: list[dict[str, Any]], delimiter: str = ",") -> bytes:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter).writerows([list(rows[0]), *(list(row.values()) for row in rows)])
    return file.getvalue().encode()


def zstandard(data: bytes) -> bytes:
    return bytes(pytest.importorskip("zstandard", reason=f"zstandard {NEEDED}").compress(data))


def parquet(rows: list[dict[str, Any]]) -> bytes:
    arrow = pytest.importorskip("pyarrow", reason=f"pyarrow {NEEDED}")
    from pyarrow import parquet as files

    file = io.BytesIO()
    files.write_table(arrow.Table.from_pylist(rows), file)
    return file.getvalue()


KINDS: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: lines(ROWS),
    "a.ndjson": lambda: lines(ROWS),
    "a.json": lambda: json.dumps(ROWS, indent=1).encode(),
    "a.csv": lambda: table(ROWS),
    "a.tsv.gz": lambda: gzip.compress(table(ROWS, "\t")),
    "a.jsonl.xz": lambda: lzma.compress(lines(ROWS)),
    "a.jsonl.zst": lambda: zstandard(lines(ROWS)),
    "a.parquet": lambda: parquet(ROWS),
}


def built(path: Path) -> CorpusManifest:
    """Build a corpus beside the folder ``source``, in which ``path`` is."""
    folder = next(folder for folder in (path, *path.parents) if folder.name == "source")
    return build([Files(path)], folder.parent / "out", {})


def texts(manifest: CorpusManifest) -> list[str]:
    return sorted(
        row["text"] for shard in (*manifest.train, manifest.held_out) for row in rows_of(manifest.folder, shard)
    )


@pytest.mark.parametrize("name", KINDS)
def test_corpora_test_sets_and_trainers_read_every_kind(tmp_path: Path, name: str) -> None:
    path = tmp_path / "source" / name
    path.parent.mkdir()
    path.write_bytes(KINDS[name]())
    manifest, tally = built(path), Tally()
    assert texts(manifest) == sorted(row["text"] for row in ROWS)
    assert not manifest.findings
    found = read_items(only_file(path.parent))
    assert [dict(item.task) for item in found.items.values()] == ROWS
    assert found.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert [record for record, _ in records([path], tally)] == ROWS
    assert not tally.left_out


def test_a_table_without_texts_is_a_text_itself(tmp_path: Path) -> None:
    path = tmp_path / "source" / "sums.csv"
    path.parent.mkdir()
    path.write_bytes(b"a,b\n1,2\n")
    assert texts(built(path)) == ["a,b\n1,2\n"]


def test_a_compressed_text_is_read_up_to_its_damage(tmp_path: Path) -> None:
    path = tmp_path / "source" / "notes.txt.gz"
    path.parent.mkdir()
    words = " ".join(f"word{number}" for number in range(9_000))
    path.write_bytes(gzip.compress(words.encode()))
    assert "".join(sorted(texts(built(path)), key=words.index)) == words
    path.write_bytes(gzip.compress(b"x = 1\n" * 9_000)[:-60])
    with pytest.raises(ValueError, match=r"no usable text in notes.txt.gz \(found: unreadable 1"):
        built(path)


@pytest.mark.parametrize(("name", "package"), [("a.parquet", "pyarrow"), ("a.jsonl.zst", "zstandard")])
def test_without_a_library_the_rest_is_built_and_a_test_set_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    """Such files were left out as binary data before any was read, so versions stay the same where they still are."""
    monkeypatch.setitem(sys.modules, package, None)
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / name).write_bytes(b"PAR1")
    (folder / "b.txt").write_text("a text")
    manifest = built(folder)
    assert (texts(manifest), manifest.findings) == (["a text"], {"binary": 1})
    assert f"pip install {package}" in manifest.findings_path.read_text()
    with pytest.raises(BadItems, match=f"pip install {package}"):
        read_items(folder / name)


def test_a_test_set_is_the_only_file_of_records_in_a_folder(tmp_path: Path) -> None:
    for name in ("LICENCE", "info.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "set.jsonl").write_bytes(lines(ROWS))
    assert only_file(tmp_path).name == "set.jsonl"
    (tmp_path / "set.jsonl").rename(tmp_path / "set.csv")
    with pytest.raises(BadItems, match=r"it must have one file of records .*, and has: info.json, set.csv"):
        only_file(tmp_path)


def test_a_packed_test_set_is_bounded_by_its_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.payload.scorers.items.SET_BYTES_MAX", 1_000)
    path = tmp_path / "set.jsonl.gz"
    path.write_bytes(gzip.compress(lines([{"id": f"n{number}", "text": "a" * 90} for number in range(40)])))
    assert path.stat().st_size < 1_000
    with pytest.raises(BadItems, match="line 9: the set is larger"):
        read_items(path)
