"""What the shell is offered at Tab: jobs, runs, pools, checkpoints and versions, by their beginnings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.store.engine import Database


def offered(home: Path, line: str) -> set[str]:
    """Ask as bash does: the line typed so far, and which of its words the cursor is at."""
    environ = {
        **os.environ,
        "_SCHEDCTL_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "SCHEDCTL_CONFIG": str(home / "config.toml"),
    }
    program = str(Path(sys.executable).with_name("schedctl"))
    done = subprocess.run([program], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("schedctl queue hold uf", {"uff-main", "ufm"}),
        ("schedctl queue hold ufm uc", {"ucm"}),
        ("schedctl runs show uff-u", {"uff-uff-main-0001", "uff-ulm-0001"}),
        ("schedctl runs list --pool k", {"kaggle"}),
        ("schedctl pools close ", {"desk", "kaggle"}),
        ("schedctl checkpoints pin jobs/ulm", {"jobs/ulm/manifests/000000000500-000001.json"}),
        ("schedctl models show nothing", set()),
    ],
)
def test_names_are_completed(world: Database, home: Path, line: str, names: set[str]) -> None:
    assert offered(home, line) == names


def test_without_a_database_nothing_is_offered_and_nothing_is_said(home: Path) -> None:
    assert offered(home, "schedctl runs show u") == set()
