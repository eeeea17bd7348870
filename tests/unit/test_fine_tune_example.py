"""examples/fine-tune: records of one's own become the files of the trainer, and the job can be read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.catalogue import read_catalogue
from tests.lab.patience import PATIENCE_SECONDS

FOLDER = Path(__file__).resolve().parents[2] / "examples/fine-tune"


def split(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(FOLDER / "split.py"), str(source), str(target)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)


def records(file: Path) -> list[object]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_every_record_is_in_exactly_one_of_the_two_files(tmp_path: Path) -> None:
    done = split(FOLDER / "units.jsonl", tmp_path / "data")
    assert done.returncode == 0, done.stderr
    train, held_out = (records(tmp_path / "data" / name) for name in ("train-0.jsonl", "heldout.jsonl"))
    assert held_out
    given = records(FOLDER / "units.jsonl")
    assert sorted(map(json.dumps, [*train, *held_out])) == sorted(map(json.dumps, given))


def test_a_record_stays_in_its_file_when_the_data_grow(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {number}"}) for number in range(200)]
    for count in (100, 200):
        (tmp_path / "mine.jsonl").write_text("\n".join(lines[:count]) + "\n")
        assert split(tmp_path / "mine.jsonl", tmp_path / f"data-{count}").returncode == 0
    before, after = (records(tmp_path / f"data-{count}" / "heldout.jsonl") for count in (100, 200))
    assert before == after[: len(before)]
    assert len(after) > len(before)


@pytest.mark.parametrize("line", ["no json", '["a list"]', '{"answer": 4}'])
def test_a_line_that_the_trainer_cannot_learn_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "mine.jsonl").write_text('{"text": "good"}\n' + line + "\n")
    done = split(tmp_path / "mine.jsonl", tmp_path / "data")
    assert done.returncode == 1
    assert "line 2" in done.stderr


def test_the_job_can_be_read(tmp_path: Path) -> None:
    text = (FOLDER / "job.toml").read_text(encoding="utf-8")
    (tmp_path / "requirements.txt").write_text((FOLDER / "requirements.txt").read_text())
    (tmp_path / "data").mkdir()
    (tmp_path / "models.toml").write_text("[[jobs]]\n" + text)
    [job] = read_catalogue([tmp_path / "models.toml"]).jobs
    assert [given.name for given in job.inputs] == ["base", "data"]
    assert job.command[3:7] == ("input:base", "--data", "input:data", "--lora")
