"""A corpus as Parquet: the same rows, and what its Croissant file says of them."""

import hashlib
import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: `make test-train` tests exports to Parquet")
import pyarrow.parquet

from jobs.corpus.build.build import build
from jobs.corpus.export import export_corpus
from jobs.corpus.read.sources import Files


def test_every_row_is_in_the_tables(tmp_path: Path) -> None:
    texts = [{"text": f"The GPU {n} of Fürth has {n * 7} cores.", "licence": "MIT", "n": n} for n in range(40)]
    pairs = [{"prompt": f"What is {n}²?", "completion": f"{n * n}"} for n in range(20)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in [*texts, *pairs]))
    corpus = build([Files(tmp_path / "in.jsonl")], tmp_path / "out", {"urm": ["gpu"]}, shard_bytes=2_000)
    (tmp_path / "tables").mkdir()
    names = export_corpus(corpus, tmp_path / "tables", parquet=True)
    assert [Path(name).stem for name in names[:-2]] == [Path(one.name).stem for one in (*corpus.train, corpus.held_out)]
    for shard in (*corpus.train, corpus.held_out):
        rows = [json.loads(line) for line in (corpus.folder / shard.name).read_text().splitlines()]
        table = pyarrow.parquet.read_table(tmp_path / "tables" / shard.name.replace("jsonl", "parquet")).to_pylist()
        for row, found in zip(rows, table, strict=True):
            metadata = found.pop("metadata")
            assert {name: value for name, value in found.items() if value is not None} == {
                name: value for name, value in row.items() if name != "metadata" and value is not None
            }
            assert row.get("metadata") == (metadata and json.loads(metadata))
    described = json.loads((tmp_path / "tables" / "croissant.json").read_text())
    assert described["license"] == ["MIT"]
    for one in described["distribution"][:-1]:
        assert one["encodingFormat"] == "application/x-parquet"
        assert one["sha256"] == hashlib.sha256((tmp_path / "tables" / one["name"]).read_bytes()).hexdigest()
    assert described["distribution"][-1]["includes"] == "train-*.parquet"
