"""The program behind `make mutants` tells bugs that tests notice from those that none does."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.nightly  # it copies the work tree and runs tests of its own


def tried(repository: Path, *words: str, file: str = "scheduler/core/blame.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(repository / "benchmarks/mutants.py"), file, *words]
    return subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)


def test_what_tests_notice_is_killed_and_what_none_reaches_is_listed(repository: Path) -> None:
    seen = tried(repository, "--sample", "5", "--tests", "tests/unit/test_core_waits.py")
    assert (seen.returncode, seen.stdout.splitlines()[-1][:16]) == (0, "5 of 5 killed: {"), seen.stdout + seen.stderr
    blind = tried(repository, "--sample", "3", "--tests", "tests/unit/test_plural.py")
    assert blind.returncode == 1
    *listed, last = blind.stdout.splitlines()
    assert [line.split(":")[0] for line in listed] == ["unreached (0 tests)"] * 3
    assert last.startswith("0 of 3 killed")
    assert "line " in listed[0]
    assert "scheduler/core/blame.py" in listed[0]


def test_a_table_is_tried_with_tests_that_import_it_and_enter_nothing_of_its_file(repository: Path) -> None:
    words = ("--sample", "12", "--tests", "tests/unit/test_core_states.py")
    seen = tried(repository, *words, file="scheduler/core/run.py")
    assert "12 wanted" in seen.stdout
    assert "False  ->  True" not in seen.stdout  # of what outcomes mean
