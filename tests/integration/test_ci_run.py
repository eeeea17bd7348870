"""What a CI machine runs: a few failed tests get one more try, and nothing else does."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent.parent
# In place of make: tells what it was asked, and fails as the file of that name says, once for each of its lines.
MAKE = """#!/bin/bash
target=$2
echo "$@" >>asked
read -r failures error 2>/dev/null <"$target.fails" || exit 0
sed -i 1d "$target.fails"
mkdir -p .pytest_cache/v/cache
[ "$failures" = 0 ] || printf '%s' "$(cat "failed-$failures")" >.pytest_cache/v/cache/lastfailed
echo "make: *** [Makefile:41: $target] Error $error"
exit 2
"""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A repository in which nothing but the script is real."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / ".ci" / "nightly.txt").write_text("never\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "make").write_text(MAKE)
    (tmp_path / "bin" / "make").chmod(0o755)
    for count in (1, 3, 4):
        failed = {f"tests/test_{number}.py::test": True for number in range(count)}
        (tmp_path / f"failed-{count}").write_text(json.dumps(failed, indent=2))
    return tmp_path


def run(house: Path) -> tuple[int, str, list[str]]:
    """Its exit code, what it said, and the targets that it asked for."""
    environment = {**os.environ, "PATH": f"{house}/bin:{os.environ['PATH']}"}
    done = subprocess.run([house / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    asked = [line.split()[1] for line in (house / "asked").read_text().splitlines()]
    return done.returncode, done.stdout, asked


def test_where_all_passes_nothing_is_tried_twice(house: Path) -> None:
    code, said, asked = run(house)
    assert (code, asked) == (0, ["test", ".venv-train/ready", "test-train"])
    assert "UNSTEADY" not in said


@pytest.mark.parametrize("target", ["test", "test-train"])
def test_a_few_failed_tests_get_one_more_try_and_are_named(house: Path, target: str) -> None:
    (house / f"{target}.fails").write_text("3 1\n")
    code, said, asked = run(house)
    assert code == 0
    assert asked.count(target) == 2
    assert "UNSTEADY" in said
    assert all(f"tests/test_{number}.py::test" in said for number in range(3))
    assert "--last-failed" in (house / "asked").read_text()


@pytest.mark.parametrize("target", ["test", "test-train"])
@pytest.mark.parametrize(
    ("fails", "tries"),
    [("1 1\n1 1\n", 2), ("4 1\n", 1), ("0 1\n", 1), ("1 2\n", 1), ("1 3\n", 1)],
    ids=["fails again", "too many", "another check", "interrupted", "internal error"],
)
def test_all_else_has_failed(house: Path, target: str, fails: str, tries: int) -> None:
    (house / f"{target}.fails").write_text(fails)
    # Of an earlier run, which says nothing of this one.
    (house / ".pytest_cache" / "v" / "cache").mkdir(parents=True)
    shutil.copy(house / "failed-1", house / ".pytest_cache" / "v" / "cache" / "lastfailed")
    code, said, asked = run(house)
    assert code != 0
    assert asked.count(target) == tries
    assert ("UNSTEADY" in said) == (tries == 2)


def test_without_torch_fine_tuning_is_said_not_to_be_tested(house: Path) -> None:
    (house / ".venv-train").mkdir()
    (house / ".venv-train" / "ready.fails").write_text("0 1\n")
    code, said, asked = run(house)
    assert (code, asked) == (0, ["test", ".venv-train/ready"])
    assert "NOT TESTED" in said
