"""`schedctl advise` as people type it: what it writes, takes in and refuses, and a page with the same figures."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from jobs.advice.seen import Measurement
from scheduler.cli.commands import advise
from scheduler.store.engine import Database
from tests.lab.typed import Typed

Schedctl = Callable[..., Typed]
MODEL = "deepseek-coder-6.7b"


def test_one_line_answers_with_reasons(schedctl: Schedctl) -> None:
    done = schedctl("advise", MODEL, "--on", "5060ti x2", "--tokens", "20e6", "--deadline", "12h", "--explain")
    assert done.code == 0
    for words in ("QLoRA r16", "in time", "0.516 x", "Source:", "does not fit", "kWh"):
        assert words in done.out, words


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["nonsense"], 5, "no model of this name"),
        (["../../no/such/model"], 5, "no model of this name"),
        (["/etc/passwd"], 5, "cannot be read"),
        ([MODEL, "--on", "rtx 5091"], 5, "did you mean 5090"),
        ([MODEL, "--on", "desk"], 5, "no card that is known"),
        ([MODEL, "--method", "x"], 2, "full, lora, qlora"),
        ([MODEL, "--image", "0x10"], 2, "1008x1008"),
        ([MODEL, "--deadline", "soon"], 2, "12h"),
        ([], 2, "no model was named"),
        (["--read", "/nowhere"], 5, "cannot be used"),
        ([MODEL, "--calibrate", "--python", "/nowhere"], 6, "nothing was measured"),
        ([MODEL, "--probe", "--python", "/nowhere"], 6, "nothing was probed"),
    ],
)
def test_what_cannot_be_is_refused_with_the_way_out(schedctl: Schedctl, words: list[str], code: int, told: str) -> None:
    done = schedctl("advise", *words)
    assert done.code == code, done.err
    assert told in done.err
    assert "Traceback" not in done.err


def test_what_runs_the_choice_is_written_once_and_understood_by_the_queue(
    world: Database, schedctl: Schedctl, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    assert schedctl("advise", MODEL, "--on", "4090", "--tokens", "1e8", "--write", str(folder)).code == 0
    again = schedctl("advise", MODEL, "--on", "4090", "--write", str(folder))
    assert again.code == 6
    assert "nothing is overwritten" in again.err
    tried = schedctl("plan", "what-if", "--add-job", str(folder / "job.toml"))
    assert tried.code == 0, tried.err


def test_what_others_measured_is_taken_in_and_counts(schedctl: Schedctl, tmp_path: Path) -> None:
    before = json.loads(schedctl("advise", MODEL, "--on", "4090", "--method", "qlora", "--json").out)["taken"]
    row = Measurement(
        "4090", MODEL, "qlora", "finetune-compiled", before["checkpointing"], before["batch"], 2048,
        3 * before["step_seconds"] / before["accumulate"], 200,
    )  # fmt: skip
    path = tmp_path / "theirs.json"
    path.write_text(json.dumps({"format": 1, "seen": [asdict(row)]}), encoding="utf-8")
    assert schedctl("advise", "--read", str(path)).code == 0
    after = json.loads(schedctl("advise", MODEL, "--on", "4090", "--method", "qlora", "--json").out)
    same = next(one for one in after["rungs"] if one["rung"] == "QLoRA")
    assert same["seen_steps"] in {0, 200}  # another micro-batch may now be the quicker
    assert same["step_seconds"] != before["step_seconds"]


def test_machines_side_by_side_and_their_picture(schedctl: Schedctl, tmp_path: Path) -> None:
    path = tmp_path / "out.svg"
    done = schedctl("advise", MODEL, "--compare", "4090", "4070", "--tokens", "1e7", "--picture", str(path))
    assert done.code == 0
    assert "4090 x1" in done.out
    assert path.read_text(encoding="utf-8").startswith("<svg")


def test_machines_without_a_comparison_are_a_mistake(schedctl: Schedctl) -> None:
    done = schedctl("advise", MODEL, "4090", "4070")
    assert done.code == 2
    assert "--compare" in done.err


@pytest.mark.parametrize(("typed", "tokens"), [("20M", 2e7), ("2e7", 2e7), ("1.5b", 1.5e9), ("500k", 5e5)])
def test_tokens_are_taken_as_people_write_them(schedctl: Schedctl, typed: str, tokens: float) -> None:
    assert json.loads(schedctl("advise", MODEL, "--tokens", typed, "--json").out)["tokens"] == tokens


@pytest.mark.parametrize("typed", ["nan", "inf", "0", "-5", "5q", "M", "1e400"])
def test_tokens_that_are_no_number_are_refused(schedctl: Schedctl, typed: str) -> None:
    done = schedctl("advise", MODEL, f"--tokens={typed}")
    assert done.code == 2
    assert "no number of tokens" in done.err


def test_calibration_takes_what_the_program_wrote(
    schedctl: Schedctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    """The program itself is tried with torch (tests/training); here its part is a script that writes what it would."""
    measured = json.loads((repository / "benchmarks/advice_h100.json").read_bytes())
    row = {**measured["setups"][2], "model": MODEL}
    program = tmp_path / "stand_in.py"
    document = json.dumps({**measured, "setups": [row]})
    program.write_text(f"import sys\nopen(sys.argv[1], 'w').write({document!r})\n", encoding="utf-8")
    monkeypatch.setattr(advise, "PROGRAM", program)
    done = schedctl("advise", MODEL, "--on", "h100", "--calibrate", "--python", "python3", "--json")
    assert done.code == 0, done.err
    known = json.loads(schedctl("advise", MODEL, "--on", "h100", "--stack", "transformers", "--json").out)
    assert any(rung["seen_steps"] for rung in known["rungs"])


def test_a_listing_loads_nothing_of_it(home: Path, world: Database, repository: Path) -> None:
    words = [sys.executable, "-X", "importtime", "-m", "scheduler", "queue", "list"]
    done = subprocess.run(words, cwd=repository, capture_output=True, text=True, check=True)
    assert "uff-main" in done.stdout
    assert "jobs.advice" not in done.stderr
