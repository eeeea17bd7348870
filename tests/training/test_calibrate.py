"""Calibration runs real steps of every kind of set-up, tells what it saw as it goes, and no failure ends the others."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.trainers.calibrate import main
from tests.lab.desk import REPOSITORY

pytest.importorskip("torch", reason="torch is not installed: `make test-train` tests fine-tuning")

SHAPE = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 512,
}
SETUPS: list[dict[str, Any]] = [
    {"name": "own", "method": "lora", "checkpointing": True},
    {"name": "theirs", "trainer": "transformers", "method": "full", "weights": "fp32"},
    {"name": "impossible", "method": "full", "optimizer": "no such"},
    {"name": "bare", "trainer": "transformers", "method": "full", "autocast": False, "optimizer": "adafactor"},
]


def test_every_set_up_is_tried_and_what_fails_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, asked = tmp_path / "new/out.json", tmp_path / "setups.json"
    rows = [{"shape": SHAPE, "points": [[1, 32], [2, 16]], **row} for row in SETUPS]
    asked.write_text(json.dumps(rows), encoding="utf-8")
    assert main([str(out), str(asked), "--seconds", "300"]) == 0
    document = json.loads(out.read_bytes())
    by_name = {row["name"]: row for row in document["setups"]}
    assert {name: len(row["points"]) for name, row in by_name.items()} == {
        "own": 2, "theirs": 2, "impossible": 0, "bare": 2,
    }  # fmt: skip
    assert "no optimizer" in by_name["impossible"]["error"]
    assert all(point["seconds"] > 0 for row in by_name.values() for point in row["points"])
    assert "impossible" in capsys.readouterr().out


def test_the_script_measures_as_the_module_does(tmp_path: Path) -> None:
    """It runs as a program on a platform, where a function below the call of main would be missing."""
    out, script = tmp_path / "out.json", REPOSITORY / "jobs/payload/trainers/calibrate.py"
    rows = json.dumps([{"shape": SHAPE, "points": [[1, 16]], **SETUPS[0]}])
    subprocess.run([sys.executable, str(script), str(out), rows], check=True, timeout=300)
    assert len(json.loads(out.read_bytes())["setups"][0]["points"]) == 1


def test_when_time_is_over_the_rest_is_told_as_not_tried(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    rows = json.dumps([{"shape": SHAPE, "points": [[1, 16]], **SETUPS[0]}])
    assert main([str(out), rows, "--seconds", "0"]) == 1
    assert json.loads(out.read_bytes())["setups"][0]["error"].startswith("not tried")
