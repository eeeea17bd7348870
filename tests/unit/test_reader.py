"""The trainer's reader: what each kind of file gives, and what is left out of a damaged one, with its place."""

import bz2
import gzip
import json
import lzma
import random
import sys
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from jobs.corpus.errors import CorpusError, Findings, Kind
from jobs.corpus.options import CorpusOptions
from jobs.corpus.read.sources import Files, Loader
from jobs.payload.trainers.tuning.data import reader
from jobs.payload.trainers.tuning.data.reader import files, unread
from jobs.payload.trainers.tuning.data.tally import Tally, check
from jobs.payload.trainers.tuning.errors import UnreadableData
from tests.lab.three_readers import agree

COMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
NEEDED = "is not installed: only the sessions that read such files need it"


def read(folder: Path) -> tuple[list[dict[str, Any]], list[list[Any]]]:
    """The records of a folder, and what is left out: reason, count, place of the first."""
    tally = Tally()
    paths = files(folder, "train-*")
    records = [record for record, _ in reader.records(paths, tally)]
    return records, tally.facts()["left_out"] + unread(folder, paths)


def lines(count: int) -> bytes:
    return b"".join(json.dumps({"text": f"text {number} {number**9}"}).encode() + b"\n" for number in range(count))


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_lines_are_read_up_to_the_damage(suffix: str, tmp_path: Path) -> None:
    damage = f"the {suffix} file is damaged or cut off, and is not read from here on"
    path, whole = tmp_path / f"train-0.jsonl{suffix}", COMPRESS[suffix](lines(20_000))
    path.write_bytes(whole)
    records, left_out = read(tmp_path)
    assert (len(records), left_out) == (20_000, [])
    for damaged in (whole[: len(whole) // 2], whole[:-3]):
        path.write_bytes(damaged)
        records, left_out = read(tmp_path)
        ((why, count, place),) = left_out
        assert (count, place) == (1, f"{path.name}:{len(records) + 1}")
        assert why == damage
        assert records == [json.loads(line) for line in lines(len(records)).splitlines()]
    path.write_bytes(whole[: len(whole) // 2] + bytes(100) + whole[len(whole) // 2 :])
    records, left_out = read(tmp_path)
    assert [damage, 1] in [[*reason[:2]] for reason in left_out]
    assert len(records) < 20_000
    path.write_bytes(lines(3))
    assert read(tmp_path) == ([], [[damage, 1, f"{path.name}:1"]]), "text with the name of a compressed file"


def test_a_file_that_is_cut_off_is_refused_however_little_counts_as_lost(tmp_path: Path) -> None:
    whole = gzip.compress(lines(20_000))
    (tmp_path / "train-0.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    tally = Tally()
    for _ in reader.records(files(tmp_path, "train-*"), tally):
        tally.take("text")
    facts = tally.facts()
    assert sum(facts["records"].values()) > 1_000, "one of so many is less than 1 %"
    with pytest.raises(UnreadableData, match=r"an unknown number of records follows train-0\.jsonl\.gz:\d+"):
        check(facts, 1.0, "the data")
    check(facts, 100.0, "the data")


def test_frames_of_zstandard_are_read_up_to_the_damage(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason=f"zstandard {NEEDED}")
    path, frame = tmp_path / "train-0.jsonl.zst", zstandard.ZstdCompressor().compress
    whole = frame(lines(9_000)) + frame(lines(9_000))
    path.write_bytes(whole)
    assert len(read(tmp_path)[0]) == 18_000
    for damaged in (whole[:-5], whole[: len(whole) * 2 // 3], whole + b"more"):
        path.write_bytes(damaged)
        records, ((_, count, place),) = read(tmp_path)
        assert (count, place) == (1, f"{path.name}:{len(records) + 1}")
        assert len(records) >= 9_000


def test_an_endless_line_is_never_held_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LINE_MAX", 1_000)
    data = b'{"text": "' + b"a" * 100_000 + b'"}\n{"text": "b"}\n'
    (tmp_path / "train-0.jsonl.gz").write_bytes(gzip.compress(data))
    left_out: list[list[Any]] = [["it is longer than 1,000 bytes", 1, "train-0.jsonl.gz:1"]]
    assert read(tmp_path) == ([{"text": "b"}], left_out)
    (tmp_path / "train-0.jsonl.gz").rename(tmp_path / "train-0.csv.gz")
    (tmp_path / "train-0.csv.gz").write_bytes(gzip.compress(b'text,n\n"' + b"a\n" * 10_000 + b'",1\nb,2\n'))
    records, left_out = read(tmp_path)
    assert (records, left_out[0][0]) == ([], "it is not a row of a table: field larger than field limit (1000)")
    assert sum(int(count) for _, count, _ in left_out) == 1 + 10_003 - 502, "the head, and what the odd row consumed"
    (tmp_path / "train-0.csv.gz").write_bytes(gzip.compress(b'text,n\na,1\n"b\n' + b"b" * 2_000 + b'\nb",2\nc,3\n'))
    records, left_out = read(tmp_path)
    assert records == [{"text": "a", "n": "1"}]
    assert left_out[0] == ["it is longer than 1,000 bytes", 1, "train-0.csv.gz:4"]


@pytest.mark.parametrize(("name", "package"), [("a.jsonl.zst", "zstandard"), ("a.parquet", "pyarrow")])
def test_a_missing_library_is_named(name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / f"train-{name}").write_bytes(b"")
    with pytest.raises(UnreadableData, match=f"train-{name} cannot be read without {package}.*pip install {package}"):
        read(tmp_path)


def test_compressed_arrays_and_wide_characters_are_read(tmp_path: Path) -> None:
    array = json.dumps([{"text": "ä"}, 3, {"text": "b"}], indent=1)
    (tmp_path / "train-0.jsonl.gz").write_bytes(gzip.compress(array.encode("utf-16")))
    records, left_out = read(tmp_path)
    assert records == [{"text": "ä"}, {"text": "b"}]
    assert left_out == [["it is not a JSON object", 1, "train-0.jsonl.gz, element 2"]]


def test_columns_are_fields(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "a,\r\nb"}, {"role": "assistant", "content": "c"}]
    cell = json.dumps(turns).replace('"', '""')
    table = f'\ufeffprompt,completion,messages,label\r\n"1\r\n2",x,"{cell}",True\r\n\r\n007,"say ""y""",,\r\n'
    (tmp_path / "train-0.csv").write_bytes(table.encode())
    (tmp_path / "train-1.tsv.gz").write_bytes(gzip.compress(table.replace(",", "\t").encode("utf-16")))
    records, left_out = read(tmp_path)
    assert left_out == []
    assert records[0] == {"prompt": "1\r\n2", "completion": "x", "messages": turns, "label": True}
    assert records[1] == {"prompt": "007", "completion": 'say "y"', "messages": None, "label": None}
    assert len(records) == 4


def test_odd_rows_lose_only_themselves(tmp_path: Path) -> None:
    rows = [b"text,n", b"a,1", b"b", b"\xff,3", b"d,4", b'"e,5']
    (tmp_path / "train-0.csv").write_bytes(b"\n".join(rows))
    records, left_out = read(tmp_path)
    assert records == [{"text": "a", "n": "1"}, {"text": "d", "n": "4"}]
    assert [place for _, _, place in left_out] == [f"train-0.csv:{line}" for line in (3, 4, 6)]
    assert left_out[0][0] == "it has more or fewer columns than the first line"
    assert left_out[2][0] == "it is not a row of a table: unexpected end of data"
    (tmp_path / "train-0.csv").write_bytes(b'text,n\na,1\n"b"c\nd,4",5\ne,6\n')
    records, left_out = read(tmp_path)
    assert records == [{"text": "a", "n": "1"}]
    assert left_out[1] == ["it follows a line that is not a row, so where rows begin is not known", 2, "train-0.csv:4"]


def test_tables_give_what_json_would(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason=f"pyarrow {NEEDED}")
    from pyarrow import parquet

    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]
    rows = [{"messages": turns, "at": date(2026, 1, 2), "price": Decimal("1.50"), "image": b"\x00"}, {"text": "ä"}]
    table = arrow.Table.from_pylist(rows, schema=arrow.schema(
        [("messages", arrow.list_(arrow.struct([("role", "string"), ("content", "string"), ("weight", "int64")]))),
         ("at", "date32"), ("price", arrow.decimal128(9, 2)), ("image", "binary"), ("text", "string")]
    ))  # fmt: skip
    parquet.write_table(table, tmp_path / "train-0.parquet")
    with arrow.ipc.new_stream(tmp_path / "train-1.arrow", table.schema) as stream:
        stream.write_table(table)
    with arrow.ipc.new_file(tmp_path / "train-2.arrow", table.schema) as file:
        file.write_table(table)
    records, left_out = read(tmp_path)
    first = {"messages": turns, "at": "2026-01-02", "price": "1.50", "image": {"bytes": 1}}
    assert (records, left_out) == ([first, {"text": "ä"}] * 3, [])
    assert json.loads(json.dumps(records)) == records


def test_tables_are_read_up_to_the_damage(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason=f"pyarrow {NEEDED}")
    table = arrow.Table.from_pylist([{"text": f"text {number}"} for number in range(1_000)])
    path = tmp_path / "train-0.arrow"
    with arrow.ipc.new_file(path, table.schema) as file:
        file.write_table(table, max_chunksize=100)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    records, ((why, count, place),) = read(tmp_path)
    assert records == table.to_pylist()[: len(records)]
    assert 300 <= len(records) <= 700
    assert (count, place) == (1, f"train-0.arrow, row {len(records) + 1}")
    assert why == "the .arrow file is damaged or cut off, and is not read from here on"
    (tmp_path / "train-1.parquet").write_bytes(b"PAR1")
    assert read(tmp_path)[1][1] == [why.replace(".arrow", ".parquet"), 1, "train-1.parquet, row 1"]
    words = arrow.array([b"good", b"\xff"], "binary").view("string")
    with arrow.ipc.new_stream(path, arrow.schema([("text", "string")])) as stream:
        stream.write_batch(arrow.record_batch({"text": words}))
    assert len(read(tmp_path)[1]) == 2, "bytes that are not UTF-8 end no process"


def test_files_that_are_not_read_say_why(tmp_path: Path) -> None:
    for name in (
        "train-0.jsonl",
        "train-0.jsonl.gz",
        "train-1.parquet.gz",
        "train-2.json",
        "train-3.txt",
        "train.csv",
        "train.log",
    ):
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in files(tmp_path, "train-*")] == ["train-0.jsonl", "train-2.json"]
    reasons = {name: why for why, _, name in unread(tmp_path, files(tmp_path, "train-*"))}
    assert list(reasons) == ["train-0.jsonl.gz", "train-1.parquet.gz", "train-3.txt", "train.csv"]
    assert reasons["train-0.jsonl.gz"].endswith("the same file lies beside it uncompressed")
    assert "files of records are train-*.jsonl, .ndjson, .json, .csv, .tsv (also .gz" in reasons["train.csv"]


def test_a_damaged_element_is_left_out_alone(tmp_path: Path) -> None:
    (tmp_path / "train-0.json").write_text('[{"text": "a"},\n{"text": nonsense},\n{"text": "b"}]')
    (tmp_path / "train-1.json").write_text('{\n "text": "one record on many lines"\n}\n')
    (tmp_path / "train-2.ndjson").write_text('{"text": "c"}\r{"text": "of old line ends"}\r')
    records, left_out = read(tmp_path)
    assert [record["text"] for record in records] == ["a", "b", "one record on many lines", "c", "of old line ends"]
    assert left_out == [["it is not JSON", 1, "train-0.json, element 2"]]
    (tmp_path / "train-3.json").write_text('[{"text": "d"}, {"text": "cut')
    tally = Tally()
    assert len(list(reader.records(files(tmp_path, "train-*"), tally))) == 6
    assert tally.lost == ["train-3.json, element 2"]
    assert tally.newer == 4, "earlier versions would have read no element of these"


def test_all_users_read_frames_of_zstandard_alike(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason=f"zstandard {NEEDED}")
    draw, path = random.Random(7), tmp_path / "train-0.jsonl.zst"
    whole = zstandard.ZstdCompressor().compress(lines(2_000))
    for cut in [len(whole), *(draw.randrange(len(whole)) for _ in range(20))]:
        path.write_bytes(whole[:cut])
        assert agree(path)


@pytest.mark.parametrize("kind", [".parquet", ".arrow"])
def test_all_users_read_tables_alike(kind: str, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason=f"pyarrow {NEEDED}")
    from pyarrow import parquet

    draw, path = random.Random(7), tmp_path / f"train-0{kind}"
    table = arrow.Table.from_pylist([{"text": f"text {number}", "n": [number]} for number in range(1_000)])
    if kind == ".parquet":
        parquet.write_table(table, path, row_group_size=100)
    else:
        with arrow.ipc.new_stream(path, table.schema) as stream:
            stream.write_table(table, max_chunksize=100)
    whole = path.read_bytes()
    assert agree(path)
    for _ in range(20):
        at = draw.randrange(len(whole))
        path.write_bytes(draw.choice([whole[:at], whole[:at] + bytes([draw.randrange(256)]) + whole[at + 1 :]]))
        assert agree(path)


def test_a_corpus_says_which_library_its_file_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file among others is left out with a finding, as before it could be read."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.parquet").write_bytes(b"PAR1")
    findings = Findings()
    loader = Loader(findings, CorpusOptions(), tmp_path)
    assert not list(loader.load(Files(tmp_path / "texts")))
    assert findings.counts == {Kind.UNREADABLE: 1}
    with pytest.raises(CorpusError, match=r"a\.parquet cannot be read without pyarrow.*its extra parquet"):
        list(loader.load(Files(tmp_path / "texts" / "a.parquet")))


def test_a_corpus_reads_tables_in_text_that_name_a_field_of_records(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,text\n1,first\n2,second\n")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"prompt,completion\nask,answer\n"))
    (tmp_path / "c.csv").write_text("name,height\nTiki,3\n")
    found = list(Loader(Findings(), CorpusOptions(), tmp_path / "out").load(Files(tmp_path)))
    assert [document.text for document in found] == ["first", "second", "askanswer", "name,height\nTiki,3\n"]
