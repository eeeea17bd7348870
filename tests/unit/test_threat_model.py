"""The threat model holds: every row names tests that exist, and files that exist."""

import re
from pathlib import Path

TEST = re.compile(r"`(test_\w+)`")
FILE = re.compile(r"`([a-z_]+/[\w/]+(?:\.py)?)`")


def rows(repository: Path) -> list[list[str]]:
    lines = (repository / "docs" / "security.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("| who |"))
    table = [line for line in lines[first + 2 : lines.index("", first)] if line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def test_every_row_of_the_threat_model_names_tests_that_exist(repository: Path) -> None:
    there = set()
    for file in (repository / "tests").rglob("test_*.py"):
        there |= set(re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))
    table = rows(repository)
    assert len(table) > 10
    for row in table:
        assert len(row) == 5, row
        named = TEST.findall(row[4])
        assert named, row
        assert set(named) <= there, set(named) - there


def test_every_mechanism_that_names_a_file_names_one_that_exists(repository: Path) -> None:
    named = [path for row in rows(repository) for path in FILE.findall(row[3])]
    assert len(named) > 5
    assert [path for path in named if not (repository / path).exists()] == []
