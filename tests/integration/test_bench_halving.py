"""The benchmark of successive halving: what it promises on its twenty problems."""

import subprocess
import sys
from pathlib import Path


def test_halving_finds_the_best_of_a_grid_in_a_third_of_its_hours(repository: Path) -> None:
    command = [sys.executable, "benchmarks/bench_halving.py"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "above_budget 0" in done.stdout
