"""The project ships four plainly named packages: nobody else may own their names, nothing may join them."""

import ast
import sys
import zipfile
from importlib.metadata import entry_points, metadata, packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

PACKAGES = {"scheduler", "platforms", "jobs", "config"}


@pytest.fixture(scope="module")
def wheel_names(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Build the wheel, without a network, and return the paths in it."""
    target = tmp_path_factory.mktemp("wheel")
    (wheel,) = WheelBuilder(str(repository)).build(directory=str(target), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_no_other_distribution_owns_a_package_of_ours(package: str) -> None:
    """An editable install owns its packages through a path file and lists none of them; a wheel lists all."""
    assert set(packages_distributions().get(package, [])) <= {"uff-scheduler"}


def test_the_file_that_people_copy_beside_their_scripts_runs_on_python_3_8(repository: Path) -> None:
    """Its syntax, what it imports, and that annotations, which use newer words, are never evaluated."""
    text = (repository / "jobs" / "payload" / "trainers" / "trainer_kit.py").read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    names = {
        alias.name if isinstance(found, ast.Import) else str(found.module)
        for found in ast.walk(tree)
        if isinstance(found, ast.Import | ast.ImportFrom)
        for alias in found.names
    }
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names
    assert "__future__" in names
    newer = {"removeprefix", "removesuffix", "pairwise", "batched", "cache", "is_relative_to", "hardlink_to"}
    assert not newer & {found.attr for found in ast.walk(tree) if isinstance(found, ast.Attribute)}
    functions = [found for found in ast.walk(tree) if isinstance(found, ast.FunctionDef)]
    assert all(found.returns is not None for found in functions)


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_the_name_of_a_package_finds_this_work_tree(repository: Path, package: str) -> None:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin == str(repository / package / "__init__.py")


def test_the_wheel_holds_the_four_packages_and_its_metadata_only(wheel_names: set[str]) -> None:
    roots = {name.split("/")[0] for name in wheel_names}
    assert {root for root in roots if not root.endswith(".dist-info")} == PACKAGES


def test_the_wheel_marks_every_package_as_typed(wheel_names: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= wheel_names


def test_the_wheel_holds_every_module_and_every_data_file(repository: Path, wheel_names: set[str]) -> None:
    """A file left out by an ignore rule would be missed only by the users of the wheel."""
    ours = {
        path.relative_to(repository).as_posix()
        for package in PACKAGES
        for pattern in (
            "*.py",
            "*.toml",
            "*.mako",
            "*.sql",
            "*.html",
            "*.css",
            "*.js",
            "*.svg",
            "*.service",
            "*.socket",
            "*.conf",
        )
        for path in (repository / package).rglob(pattern)
    }
    units = {f"scheduler/{path.relative_to(repository).as_posix()}" for path in (repository / "systemd").rglob("*.*")}
    assert len(units) > 8
    assert ours | units <= wheel_names
    assert "config/models.toml" in wheel_names


def test_the_wheel_holds_no_tests_and_no_bytecode(wheel_names: set[str]) -> None:
    assert not [name for name in wheel_names if name.startswith("tests/") or name.endswith(".pyc")]


def test_the_project_refuses_to_be_uploaded() -> None:
    assert "Private :: Do Not Upload" in metadata("uff-scheduler").get_all("Classifier", [])


def test_schedctl_is_the_console_script() -> None:
    (script,) = entry_points(group="console_scripts", name="schedctl")
    assert script.value == "scheduler.cli.main:run"
