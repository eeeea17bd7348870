"""examples/trackers: the exported series reach a tracker by its own client, each point once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.patience import PATIENCE_SECONDS

SEND = Path(__file__).parents[2] / "examples" / "trackers" / "send.py"
HEAD = "attempt,step,at,loss,eval_loss\n"
# The clients as far as they are used: they write down what they are given.
MLFLOW = """
import json, types
def note(*words): open("told", "a").write(json.dumps(words) + "\\n")
def set_experiment(name): return types.SimpleNamespace(experiment_id=name)
def search_runs(experiments, where, output_format): return []
class start_run:
    def __init__(self, run_id, run_name): note("run", run_name)
    def __enter__(self): return self
    def __exit__(self, *_): pass
def log_metrics(values, step): note(step, values)
"""
WANDB = """
import json, types
def note(*words): open("told", "a").write(json.dumps(words) + "\\n")
def init(project, id, name, resume):
    note("run", name)
    return types.SimpleNamespace(log=lambda values, step: note(step, values), finish=lambda: None)
"""


@pytest.mark.parametrize(("tracker", "client"), [("mlflow", MLFLOW), ("wandb", WANDB)])
def test_each_point_is_sent_once_and_each_attempt_is_a_run(tmp_path: Path, tracker: str, client: str) -> None:
    (tmp_path / f"{tracker}.py").write_text(client)
    series = tmp_path / "series" / "ufm" / "series.csv"
    series.parent.mkdir(parents=True)

    def sent(*lines: str) -> list[object]:
        series.write_text(HEAD + "".join(f"{line}\n" for line in lines))
        (tmp_path / "told").write_text("")
        words = [sys.executable, str(SEND), tracker, str(tmp_path / "series")]
        subprocess.run(words, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, check=True, timeout=PATIENCE_SECONDS)
        return [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]

    first = ("1,10,2026-11-21T12:00:00Z,2.0,", "1,20,2026-11-21T12:01:00Z,nan,1.5")
    assert sent(*first) == [["run", "ufm-0001"], [10, {"loss": 2.0}], [20, {"eval_loss": 1.5}]]
    assert sent(*first) == []
    assert sent(*first, "2,20,2026-11-21T13:00:00Z,1.0,") == [["run", "ufm-0002"], [20, {"loss": 1.0}]]
