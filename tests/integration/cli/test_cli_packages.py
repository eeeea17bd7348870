"""Requirements at the command line: locked when a job is added, told, and taken anew."""

import sys
from pathlib import Path

import pytest

from jobs.environment.tool import here
from jobs.payload.store.lock import LOCK, lock_prefix, parse_lock
from jobs.spec import Requirements
from platforms.artifacts.directory import DirectoryStore
from scheduler.store import events, jobs
from scheduler.store.engine import Database
from tests.integration.cli.conftest import Schedctl
from tests.lab.packages import use_index, write_wheel


def requirements_of(world: Database) -> Requirements:
    """What the database has of the job ``mine``."""
    with world.read() as tx:
        found = jobs.get(tx, "mine").spec.requirements
    assert found is not None
    return found


NEW = ("queue", "add", "--name", "mine", "--command", "{python} -c 1", "--target-step", "10", "--requirements")


@pytest.fixture
def index(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index with a package for every Python, and one for this one alone."""
    folder = home / "index"
    use_index(folder, monkeypatch)
    write_wheel(folder, "light", "0.1")
    write_wheel(folder, "newish", "1.0", tag=f"cp3{sys.version_info[1]}-none-any")
    return folder


@pytest.mark.usefixtures("index")
def test_requirements_are_locked_shown_and_locked_anew(
    schedctl: Schedctl, world: Database, home: Path, artifacts: DirectoryStore, index: Path
) -> None:
    file = home / "requirements.txt"
    file.write_text("light\n")
    added = schedctl("--json", *NEW, str(file))
    assert added.code == 0, added.err
    (document,) = added.document["jobs"]
    told = document["spec"]["requirements"]
    assert (told["source"], told["packages"]) == (str(file), 1)
    assert here().name in told["targets"]
    lock = parse_lock(artifacts.read(f"{lock_prefix(told['digest'])}/{LOCK}"), told["digest"])
    assert [pin.version for pin in lock.targets[here().name]] == ["0.1"]
    shown = schedctl("queue", "show", "mine").out
    assert f"{told['digest'][:12]}, 1 package for " in shown
    write_wheel(index, "light", "0.2")
    assert schedctl("queue", "edit", "mine", "--set", "target_step=20").code == 0
    kept = requirements_of(world)
    assert kept.digest == told["digest"], "an edit is no reason to lock anew"
    updated = schedctl("queue", "update", "mine")
    assert "mine has other packages: " in updated.out, updated.err
    assert "mine has the same packages as before: " in schedctl("queue", "update", "mine").out
    file.write_text("absent\n")
    refused = schedctl("queue", "update", "mine", "--requirements", str(file))
    assert (refused.code, "absent" in refused.err) == (3, True)
    with world.read() as tx:
        (event,) = [found for found in events.tail(tx, subject="mine") if found.kind == "job.requirements"]
    assert event.data["old"]["requirements"]["digest"] == told["digest"]
    assert event.data["new"]["requirements"]["digest"] == requirements_of(world).digest


@pytest.mark.usefixtures("index")
def test_what_a_pool_cannot_have_is_told_before_anything_is_added(
    schedctl: Schedctl, world: Database, home: Path
) -> None:
    file = home / "requirements.txt"
    file.write_text("newish\n")
    settings = home / "config.toml"
    settings.write_text(settings.read_text() + OLD)
    refused = schedctl(*NEW, str(file))
    assert refused.code == 3
    assert "old (Python 3.9 on x86_64-manylinux_2_28)" in refused.err
    assert "newish" in refused.err
    with world.read() as tx:
        assert "mine" not in {record.spec.name for record in jobs.everything(tx)}
    settings.write_text(settings.read_text().replace('image_python = "3.9"', ""))
    file.write_text("light\n")
    added = schedctl(*NEW, str(file))
    assert added.code == 0, added.err
    assert "its requirements are not locked for old" in added.err


OLD = """
[[pools]]
name = "old"
platform = "manual"
accelerator = "A10"
options = { image_python = "3.9" }
"""


def test_a_file_that_a_model_names_and_nobody_can_lock_is_told_by_the_check(schedctl: Schedctl, home: Path) -> None:
    models = home / "models.toml"
    models.write_text(models.read_text().replace('role = "main"', 'role = "main"\nrequirements = "wanted.txt"'))
    told = schedctl("config", "check")
    assert "no such file" in told.err, told.err
    (home / "wanted.txt").write_text("-e .\n")
    told = schedctl("config", "check")
    assert "options are not followed" in told.err, told.err
    assert "UV_DEFAULT_INDEX or PIP_INDEX_URL" in told.err, "as the variables are spelt"
