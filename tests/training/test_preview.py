"""`data check` with a tokenizer reports what a training then does."""

import random
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")
from jobs.payload.trainers.tuning.data.documents import load_tokenizer, stop_tokens
from jobs.payload.trainers.tuning.data.preview import preview
from jobs.payload.trainers.tuning.data.reader import files
from jobs.payload.trainers.tuning.data.rows import pack, samples
from tests.lab.records import odd_file


@pytest.mark.parametrize("seed", range(8))
def test_what_is_reported_is_what_is_trained_on(seed: int, tmp_path: Path, model: Path) -> None:
    lines = odd_file(random.Random(seed), 120).splitlines(keepends=True)
    # Preferences and images are counted as read: this stage and this model learn none.
    read_otherwise = (b"chosen", b"label", b"image")
    kept = [one for one in lines if not any(word in one for word in read_otherwise)]
    (tmp_path / "train-0.jsonl").write_bytes(b"".join(kept))
    tokenizer, paths = load_tokenizer(str(model)), files(tmp_path, "train-*")
    stops = stop_tokens(str(model), tokenizer)
    data = pack(paths, tokenizer, 64, tmp_path / "cache", alone=True, stops=stops).facts["data"]
    report, facts = preview(paths, tokenizer, stops, 64)
    assert (report["records"], facts["left_out"]) == (data["records"], data["left_out"])
    assert (report["unit"], report["longer"]) == ("tokens", data["cut"])


def test_the_first_records_are_written_by_the_template(tmp_path: Path, model: Path) -> None:
    (tmp_path / "train-0.jsonl").write_text('{"prompt": "a", "completion": "b"}\n')
    tokenizer, paths = load_tokenizer(str(model)), files(tmp_path, "train-*")
    rows = pack(paths, tokenizer, 64, tmp_path / "cache")
    assert preview(paths, tokenizer, None, None)[0]["samples"] == samples(rows, tokenizer)
