"""`schedctl data check`: what a training reads of its data, before it is submitted."""

import gzip
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.integration.cli.conftest import Schedctl


def write(folder: Path, good: int, odd: int) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"text": f"text {number}"}) for number in range(good)] + ["nonsense"] * odd
    (folder / "train-0.jsonl").write_text("\n".join(lines))


def test_data_is_checked_before_it_is_submitted(schedctl: Schedctl, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    write(folder, 500, 4)
    (folder / "train-1.csv.gz").write_bytes(gzip.compress(b"prompt,completion\n2+2=,4\n")[:-4])
    (folder / "train_2.json").write_text("[]")
    checked = schedctl("data", "check", str(folder), "--length", "2")
    assert checked.code == 3, checked.err
    assert "records       1 of prompt, 500 of text\nleft out      6 of 507 records (1.18 %)\n" in checked.out
    assert "characters    median 8, 90 % up to 8, largest 8\n" in checked.out
    assert "cut           0 have more than 2 tokens, at 4 characters a token\n" in checked.out
    places = ", ".join(f"train-0.jsonl:{line}" for line in (501, 502, 503))
    assert f"4 left out: it is not JSON (first: {places})\n" in checked.out
    assert "is damaged or cut off, and is not read from here on (first: train-1.csv.gz:3)\n" in checked.out
    assert "its records are not read: files of records are train-*.jsonl" in checked.out
    assert "record 1, what is learned in white brackets:\n  ⟦text 0⟧\n" in checked.out
    assert "an unknown number of records follows train-1.csv.gz:3. " in checked.err
    allowed = schedctl("--json", "data", "check", str(folder), "--skip-at-most", "100")
    assert allowed.code == 0, allowed.err
    assert allowed.document["records"] == {"prompt": 1, "text": 500}
    assert allowed.document["left_out"][-1]["places"] == ["train_2.json"]
    assert allowed.document["longer"] is None


def test_too_many_lines_that_are_left_out_end_it(schedctl: Schedctl, tmp_path: Path) -> None:
    write(tmp_path, 500, 6)
    checked = schedctl("data", "check", str(tmp_path))
    assert (checked.code, "6 of 506 records of" in checked.err) == (3, True)
    assert schedctl("data", "check", str(tmp_path), "--skip-at-most", "2").code == 0


def test_one_file_and_nothing(schedctl: Schedctl, tmp_path: Path) -> None:
    write(tmp_path, 3, 0)
    (tmp_path / "train-0.jsonl").rename(tmp_path / "mine.jsonl")
    checked = schedctl("data", "check", str(tmp_path / "mine.jsonl"))
    assert checked.code == 0, checked.err
    assert "a training does not read mine.jsonl under this name" in checked.err
    nothing = schedctl("data", "check", str(tmp_path))
    assert (nothing.code, "has nothing to learn: it has no records" in nothing.err) == (3, True)
    absent = schedctl("data", "check", str(tmp_path / "absent"))
    assert (absent.code, "there is no such file or folder" in absent.err) == (3, True)


@pytest.mark.parametrize(("name", "library"), [("train-0.parquet", "pyarrow"), ("train-0.jsonl.zst", "zstandard")])
def test_a_missing_library_is_named(
    schedctl: Schedctl, tmp_path: Path, name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, library, None)
    (tmp_path / name).write_bytes(b"")
    checked = schedctl("data", "check", str(tmp_path))
    assert checked.code == 3
    assert f"{name} cannot be read without {library}" in checked.err
    assert f"pip install {library}" in checked.err


def test_a_tokenizer_needs_its_library(schedctl: Schedctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.cli.commands.data.find_spec", lambda name: find_spec(f"absent_{name}"))
    write(tmp_path, 1, 0)
    checked = schedctl("data", "check", str(tmp_path), "--tokenizer", str(tmp_path))
    assert checked.code == 3
    assert "transformers is not installed. pip install transformers" in checked.err
