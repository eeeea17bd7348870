"""A state folder that nobody can write to: a command that would says so, with its exit code, and nothing is lost."""

import hashlib
import sqlite3
from pathlib import Path

import pytest

from scheduler.store.engine import Database
from tests.integration.cli.conftest import Schedctl
from tests.lab.disk import read_only


def contents(folder: Path) -> dict[str, str]:
    """Return the digests of all files of a folder."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


CHANGES = (
    "queue hold ufm",
    "queue add --name new --command true --target-step 10 --steps-per-hour 10",
    "queue edit ufm --set weight=3",
    "pause",
    "db backup {state}/copy.db",
    "daemon",
)
LOOKS = ("queue list", "status", "plan show", "db verify", "db upgrade")


@pytest.mark.parametrize("is_open", [False, True], ids=["at rest", "in use"])
@pytest.mark.parametrize("line", [*CHANGES, *LOOKS])
def test_a_command_says_that_the_state_folder_is_read_only_if_it_would_change_it(
    schedctl: Schedctl, world: Database, home: Path, line: str, is_open: bool
) -> None:
    """``is_open``: another process has the database open, so that the two files beside it are there."""
    queue = schedctl("--json", "queue", "list").document
    other = sqlite3.connect(home / "state" / "scheduler.db")
    if is_open:
        other.execute("SELECT count(*) FROM jobs").fetchone()
    world.close()
    before = contents(home / "state")
    with read_only(home / "state"):
        found = schedctl(*line.format(state=home / "state").split())
    assert found.code == (4 if line in CHANGES else 0), found
    assert line in LOOKS or ("ead-only" in found.err and str(home / "state") in found.err), found
    assert "unexpected" not in found.err
    assert contents(home / "state") == before
    other.close()
    assert schedctl("--json", "queue", "list").document == queue
    assert schedctl("queue", "hold", "ufm").code == 0
