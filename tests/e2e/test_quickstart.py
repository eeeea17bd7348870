"""The quickstart, typed from its first line to its last on a machine that has nothing but a clone and the program."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.lab.patience import until

FENCE = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
# How a person differs from a script: a daemon has a shell of its own, and Ctrl-C ends it before it is started again;
# doctor may find something; a rehearsal, and the installation of what is installed, are tests of their own.
PERSON = """
schedctl() {
    case "$1" in
    daemon)
        if [ -s "$HOME/daemon.pid" ]; then
            kill -INT "$(cat "$HOME/daemon.pid")"
            tail --pid="$(cat "$HOME/daemon.pid")" -f /dev/null
        fi
        setsid "$PROGRAM" daemon >>"$HOME/daemon.log" 2>&1 &
        echo $! >"$HOME/daemon.pid"
        ;;
    doctor) "$PROGRAM" doctor || [ $? = 9 ] ;;
    *) "$PROGRAM" "$@" ;;
    esac
}
make() { command make --dry-run "$@" >/dev/null; }
set -e
"""


def test_a_newcomer_types_the_quickstart_from_its_first_line_to_its_last(repository: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    names = subprocess.check_output(
        ["git", "ls-files", "examples", "Makefile", "requirements"], cwd=repository, text=True
    )
    for name in (*names.split(), "pyproject.toml"):
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(repository / name, clone / name)
    program = Path(sys.executable).with_name("schedctl")
    activate = clone / ".venv/bin/activate"
    activate.parent.mkdir(parents=True)
    activate.write_text(f'export PATH="{program.parent}:$PATH"\n')
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SCHED", "XDG_", "KAGGLE"))
    }
    environment |= {"HOME": str(tmp_path), "PROGRAM": str(program)}
    page = (repository / "docs/quickstart.md").read_text(encoding="utf-8")
    blocks = FENCE.findall(page)
    typed = "".join(blocks)
    assert "```toml" not in page, "a block that is shown and not typed"
    for command in ("make run", "schedctl init", "schedctl submit", "cat >>", "schedctl queue add", "schedctl quota"):
        assert command in typed
    log = tmp_path / "daemon.log"
    try:
        done = run(["bash", "-c", PERSON + typed], clone, environment)
        assert done.returncode == 0, f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}\n{log.read_text()[-2_000:]}"
        assert (clone / "trained/state.json").stat().st_size > 0
        until(lambda: live_runs(program, clone, environment) == [], "the end of the cancelled session")
    finally:
        if log.exists():
            run([str(program), "queue", "cancel", "--all", "--yes"], clone, environment)
            until(lambda: live_runs(program, clone, environment) == [], "the end of every session")
            daemon = int((tmp_path / "daemon.pid").read_text())
            os.kill(daemon, signal.SIGINT)
            until(lambda: not Path(f"/proc/{daemon}").exists(), "the end of the daemon")


def run(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


def live_runs(program: Path, folder: Path, environment: dict[str, str]) -> list[object]:
    found = json.loads(run([str(program), "--json", "runs", "list", "--live"], folder, environment).stdout)["runs"]
    assert isinstance(found, list)
    return found
