"""What a CI machine runs: each target once, whatever became of the others, and no test twice."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
# In place of make: notes the target, and fails where a file of its name says so.
MAKE = """#!/bin/bash
target=$2
echo "$target" >>targets
! [ -e "$target.fails" ]
"""
TARGETS = ["test", "test-services", ".venv-train/ready", "test-train"]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository in which nothing but the script is real."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / ".ci" / "nightly.txt").write_text("never\n")
    (tmp_path / ".venv-train").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text(MAKE)
    (tmp_path / "bin" / "make").chmod(0o755)
    return tmp_path


def run(house: Path, *failing: str) -> tuple[int, str, list[str]]:
    """Return its exit code, its output and the targets that it made, where the ``failing`` ones fail."""
    for target in failing:
        (house / f"{target}.fails").touch()
    environment = {**os.environ, "PATH": f"{house}/bin:{os.environ['PATH']}"}
    done = subprocess.run([house / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr, (house / "targets").read_text().split()


def test_each_target_is_made_once(house: Path) -> None:
    code, output, targets = run(house)
    assert (code, targets) == (0, TARGETS)
    assert "FAILED" not in output


@pytest.mark.parametrize("target", ["test", "test-services", "test-train"])
def test_a_failed_target_fails_the_run_is_named_and_is_not_made_again(house: Path, target: str) -> None:
    code, output, targets = run(house, target)
    assert (code, targets) == (1, TARGETS)
    assert f"FAILED: {target}\n" in output


def test_without_torch_fine_tuning_is_named_as_not_tested(house: Path) -> None:
    code, output, targets = run(house, ".venv-train/ready")
    assert (code, targets) == (0, TARGETS[:-1])
    assert "NOT TESTED" in output


def test_the_two_targets_share_out_all_tests() -> None:
    """What one of them selects is what the other leaves out, so no test is lost between them."""
    recipes = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    assert recipes.count('-m "not services" $(ARGS)') == 2, "make test and its short form"
    assert recipes.count("-m services $(ARGS)") == 1
