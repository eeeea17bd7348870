"""The first training of the quickstart, typed as it stands on a machine that has nothing but the program."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

FENCE = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_a_newcomer_trains_an_example_with_the_commands_of_the_quickstart(repository: Path, tmp_path: Path) -> None:
    schedctl = Path(sys.executable).with_name("schedctl")
    shutil.copytree(repository / "examples/plain", tmp_path / "examples/plain")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SCHED", "XDG_"))}
    environment["HOME"] = str(tmp_path)
    page = (repository / "docs/quickstart.md").read_text(encoding="utf-8")
    section = page.partition("\n## 2.")[2].partition("\n## ")[0]
    lines = [line.partition(" #")[0].split() for block in FENCE.findall(section) for line in block.splitlines()]
    commands = [words[1:] for words in lines if words[0] == "schedctl"]
    assert [words[0] for words in commands] == ["init", "daemon", "submit", "status", "checkpoints"]
    folder, daemon = tmp_path, None
    try:
        for words in commands:
            if words == ["daemon"]:
                with (tmp_path / "daemon.log").open("wb") as log:
                    daemon = subprocess.Popen([schedctl, *words], cwd=folder, env=environment, stderr=log, stdout=log)
                folder = tmp_path / "examples/plain"  # the second shell
                continue
            answer = subprocess.run(
                [schedctl, *words],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert answer.returncode == 0, f"schedctl {shlex.join(words)}: {answer.stderr}"
    finally:
        if daemon is not None:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(timeout=120)
    assert (folder / "trained/state.json").stat().st_size > 0
