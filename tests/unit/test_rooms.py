"""The house as docs/architecture.md draws it, held against the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.lab.reference import rooms

PACKAGES = ("jobs", "platforms", "config", "scheduler")
NAMED = re.compile(r"^\s*(?:from|import)\b.*\b(?:tests|benchmarks)\b", re.MULTILINE)
# Which test starts which benchmark in its own process: what such a program says is what is tested.
STARTED = {
    ("test_pinned_packages", "benchmarks.packages"),
    ("test_planner_benchmark", "benchmarks.bench_planner"),
    ("test_replay", "benchmarks.simulate"),
}


def drawn(repository: Path, beginning: str) -> list[str]:
    """Return the lines of the block of docs/architecture.md whose first line begins so."""
    text = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [str(block) for block in blocks if str(block).startswith(beginning)][-1].splitlines()


def test_every_room_says_what_it_is_for(repository: Path) -> None:
    """`make rooms` prints the first line of each folder's docstring."""
    printed = list(rooms(repository))
    assert len(printed) > 50
    assert [line for line in printed if not re.fullmatch(r" *[\w-]+/ +\S.*[^.]", line)] == []


def test_every_folder_with_code_is_a_room(repository: Path) -> None:
    """own_folder is as users have one; the rest says what it is for."""
    bare = {
        path.parent.relative_to(repository).as_posix()
        for top in (*PACKAGES, "tests/lab")
        for path in (repository / top).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert bare == {"config/own_folder"}


def test_the_floors_are_drawn_as_they_are_checked(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))
    checked = {
        contract["containers"][0].replace(".", "/"): contract["layers"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers" and "containers" in contract
    }
    lines = [line.split(":", 1) for line in drawn(repository, "scheduler:")]
    assert {name: [layer.strip().strip("()") for layer in text.split(">")] for name, text in lines} == checked


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        *((package, ()) for package in PACKAGES),
        ("tests/lab", ("tests.lab.",)),
        ("tests", ("tests.lab.",)),
        ("benchmarks", ("tests.lab.", "benchmarks.trainer.")),
    ],
)
def test_tests_share_code_through_the_lab_alone(repository: Path, folder: str, allowed: tuple[str, ...]) -> None:
    """And through their folder's conftest. Of benchmarks, which are programs, tests start three; one has parts."""
    found = []
    for path in sorted((repository / folder).rglob("*.py")):
        own = f"{path.parent.relative_to(repository).as_posix().replace('/', '.')}.conftest."
        text = path.read_text(encoding="utf-8")
        if not NAMED.search(text):  # most files of the product: to parse them all takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                f"{path.relative_to(repository).as_posix()}: {module}"
                for module in modules
                if module.split(".")[0] in {"tests", "benchmarks"}
                and not module.startswith((*allowed, own))
                and (path.stem, module) not in STARTED
            ]
    assert found == []
