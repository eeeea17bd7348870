"""Start-up is a feature: what `schedctl queue list` loads, through the console script as users run it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.store.engine import Database, open_database
from tests.lab.patience import PATIENCE_SECONDS

# SDKs, the solver, arrays, plotting, the database toolkit, the settings model, the parser and its tables.
TOO_HEAVY = {
    "alembic",
    "apscheduler",
    "boto3",
    "highspy",
    "kaggle",
    "matplotlib",
    "numpy",
    "pydantic",
    "pydantic_settings",
    "rich",
    "sqlalchemy",
    "structlog",
    "typer",
}
REPORT = """
import json, sys
from scheduler.cli.main import main
code = main(sys.argv[1:])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("flags", [[], ["--json"], ["--state", "held"]], ids=["table", "json", "state"])
def test_the_listing_loads_nothing_heavy(flags: list[str], world: Database) -> None:
    program = [sys.executable, "-c", REPORT, "queue", "list", *flags]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
    assert "uff-main" in done.stdout or flags == ["--state", "held"]
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    assert "sqlite3" in loaded
    assert loaded & TOO_HEAVY == set()


LOOKING = """
import json, os, sys
from scheduler.service.cycle.cycle import Cycle

def look(cycle):
    print(json.dumps(sorted(sys.modules)), flush=True)
    os._exit(0)

Cycle.run = look
from scheduler.cli.main import main
sys.exit(main(["--config", sys.argv[1], "daemon"]))
"""


def test_a_daemon_loads_little_before_it_looks_after_what_runs(tmp_path: Path) -> None:
    """Sessions wait to be adopted; neither the parser nor what plans is needed for that."""
    (tmp_path / "config.toml").write_text(
        'state_dir = "state"\nmodels = []\n[[pools]]\nname = "a"\nplatform = "local"\n'
    )
    open_database(f"sqlite:///{tmp_path}/state/scheduler.db", create=True).close()
    words = [sys.executable, "-c", LOOKING, str(tmp_path / "config.toml")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert "apscheduler" in loaded
    parts = ("typer", "rich.", "scheduler.planner", "highspy", "numpy", "alembic")
    assert [name for name in loaded if name.startswith(parts)] == []


def test_help_and_version_load_no_database_toolkit(home: Path) -> None:
    """The parser brings pydantic with it, which is one reason why the listing does without a parser."""
    for words in (["--help"], ["queue", "--help"], ["version"]):
        program = [sys.executable, "-c", REPORT, *words]
        done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
        loaded = set(json.loads(done.stderr.splitlines()[-1]))
        assert loaded & (TOO_HEAVY - {"typer", "pydantic"}) == set()


def test_the_console_script_lists_and_refuses(world: Database) -> None:
    script = Path(sys.executable).with_name("schedctl")
    listed = subprocess.run(
        [script, "queue", "list", "--json"], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS
    )
    assert [job["name"] for job in json.loads(listed.stdout)["jobs"]][:2] == ["uff-main", "ufm"]
    refused = subprocess.run(
        [script, "queue", "show", "ufn"], capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )
    assert (refused.returncode, refused.stdout) == (5, "")
    assert refused.stderr.count("\n") == 1


def test_the_shell_completes_commands_and_names(world: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(sys.executable).with_name("schedctl")
    for typed, expected in (
        ("schedctl ch", ["checkpoints"]),
        ("schedctl queue show uf", ["uff-main", "ufm"]),
        ("schedctl queue list --state c", ["cancelled"]),
    ):
        monkeypatch.setenv("_SCHEDCTL_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
        done = subprocess.run([script], capture_output=True, text=True, check=True, timeout=PATIENCE_SECONDS)
        assert done.stdout.split() == expected
