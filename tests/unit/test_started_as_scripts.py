"""Trainers that sessions start as scripts find the rest of the payload, wherever it is unpacked."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
import importlib, runpy, sys
started = runpy.run_path(sys.argv[1], run_name="probe")
reader = importlib.import_module(".tuning.data.reader", started["__package__"])
import code
print(reader.__file__, code.InteractiveConsole.__name__)
"""


@pytest.mark.parametrize("script", ["finetune", "calibrate"])
def test_a_script_reads_records(script: str, repository: Path, tmp_path: Path) -> None:
    """The reader lies above the trainers; a folder beside the payload hides no module of Python."""
    payload = tmp_path / "payload"
    shutil.copytree(repository / "jobs/payload", payload, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "__init__.py").touch()
    words = [sys.executable, "-c", PROBE, str(payload / "trainers" / f"{script}.py")]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=repository)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [str(payload / "trainers/tuning/data/reader.py"), "InteractiveConsole"]
