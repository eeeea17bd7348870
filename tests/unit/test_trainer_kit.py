"""The kit takes the numbers that libraries compute, loses no save for what is none, and ends with the right status."""

import json
import os
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jobs.payload.trainers.trainer_kit import Training


class Scalar:
    """A number as torch, JAX and others give it."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def item(self) -> Any:
        """Return Python's own number."""
        return self._value

    def __int__(self) -> int:
        """Return it as a step."""
        return int(self._value)


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Training:
    """A training in a session whose progress lies in a file."""
    (tmp_path / "progress").touch()
    for name, path in (("CHECKPOINT_DIR", "checkpoints"), ("PROGRESS", "progress")):
        monkeypatch.setenv(f"SCHED_{name}", str(tmp_path / path))
    monkeypatch.setattr(Training, "_listen", lambda _: None)
    return Training()


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.float64(1.5), np.array(1.5), np.array([1.5]), Scalar(1.5), Decimal("1.5"), 1.5]
)
def test_numbers_of_libraries_are_numbers(value: Any, training: Training, tmp_path: Path) -> None:
    for step in (np.int64(3), Scalar(4), 5):
        training.progress(step, loss=value)  # type: ignore[arg-type] # what users write
        assert training.checkpoint(step, lambda folder: (folder / "weights").touch(), {"loss": value})  # type: ignore[arg-type]
    lines = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [3, 4, 5]
    assert {line["loss"] for line in lines if "loss" in line} == {1.5}
    meta = json.loads((tmp_path / "checkpoints/step-00000003/meta.json").read_bytes())
    assert meta == {"step": 3, "metrics": {"loss": 1.5}}


@pytest.mark.parametrize("value", [np.ones(3), "high", None, [1], object(), Scalar([1])])
def test_what_is_no_number_costs_no_save(
    value: Any, training: Training, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert training.checkpoint(1, lambda folder: (folder / "weights").touch(), {"odd": value, "loss": 2})
    assert (tmp_path / "checkpoints/step-00000001/weights").exists()
    assert json.loads((tmp_path / "checkpoints/step-00000001/meta.json").read_bytes())["metrics"] == {"loss": 2}
    assert "trainer_kit: odd is not a number and is not reported" in capsys.readouterr().err


ENDS = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from trainer_kit import Training
training = Training()
training.checkpoint(1, lambda folder: (folder / "weights").touch(), {})
class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGUSR1):
        kill(process, number)  # after Python has given its signals back
late = Late()
"""


def test_a_signal_after_the_last_save_does_not_change_the_status(tmp_path: Path, repository: Path) -> None:
    words = [sys.executable, "-c", ENDS, str(repository / "jobs/payload/trainers")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ})
    assert (done.returncode, done.stderr) == (0, "")
