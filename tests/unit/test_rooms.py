"""The house as docs/architecture.md draws it, held against the code."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

PACKAGES = ("jobs", "platforms", "config", "scheduler")


def drawn(repository: Path, beginning: str) -> list[str]:
    """Lines of the block of docs/architecture.md whose first line begins so."""
    text = (repository / "docs/architecture.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [str(block) for block in blocks if str(block).startswith(beginning)][-1].splitlines()


def test_the_picture_shows_every_room_and_what_it_is_for(repository: Path) -> None:
    """A room is a folder with Python files; its line is the first of its docstring."""
    shown: dict[str, str] = {}
    above: list[str] = []
    for line in drawn(repository, "jobs/ "):
        found = re.fullmatch(r"( *)([\w-]+)/(?: +(.*))?", line)
        assert found, line
        above[len(found[1]) // 2 :] = [found[2]]
        shown["/".join(above)] = found[3] or ""
    for elsewhere in ("tests", "bridges", "systemd", "benchmarks"):
        assert (repository / elsewhere).is_dir()
        del shown[elsewhere]
    rooms = {}
    for top in (*PACKAGES, "tests/lab"):
        for file in (repository / top).rglob("__init__.py"):
            says = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
            rooms[file.parent.relative_to(repository).as_posix()] = says.splitlines()[0].removesuffix(".")
    assert shown == rooms


def test_every_folder_with_code_is_a_room(repository: Path) -> None:
    """Alembic loads migrations by path, own_folder is as users have one; the rest says what it is for."""
    bare = {
        path.parent.relative_to(repository).as_posix()
        for top in (*PACKAGES, "tests/lab")
        for path in (repository / top).rglob("*.py")
        if not (path.parent / "__init__.py").exists()
    }
    assert bare == {"scheduler/store/migrations", "scheduler/store/migrations/versions", "config/own_folder"}


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
        ("tests", ("tests.lab.", "benchmarks.")),
        ("benchmarks", ("tests.lab.",)),
    ],
)
def test_tests_share_code_through_the_lab_alone(repository: Path, folder: str, allowed: tuple[str, ...]) -> None:
    """And through their folder's conftest. Benchmarks are programs: only tests of them import them."""
    found = []
    for path in sorted((repository / folder).rglob("*.py")):
        own = f"{path.parent.relative_to(repository).as_posix().replace('/', '.')}.conftest."
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [
                f"{path.relative_to(repository).as_posix()}: {module}"
                for module in modules
                if module.split(".")[0] in {"tests", "benchmarks"} and not module.startswith((*allowed, own))
            ]
    assert found == []
