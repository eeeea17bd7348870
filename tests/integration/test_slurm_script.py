"""The script that Slurm runs for a session, without Slurm."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from platforms.targets.reach import shell_script
from scheduler.clock import real_now
from tests.lab.patience import PATIENCE_SECONDS, until

AGENT = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
open("ready", "w").close()
signal.pause()
"""
# As on a machine that has much to do: the agent has ended before the script hears that it was told to.
SLOW_KILL = 'kill() { builtin kill "$@"; local code=$?; sleep 1; return $code; }\n'


def test_a_session_that_was_asked_to_leave_and_did_has_not_failed(tmp_path: Path) -> None:
    for name, content in (("order", "one\n"), ("launch.json", "{}"), ("agent.py", AGENT), ("slow", SLOW_KILL)):
        (tmp_path / name).write_text(content)
    agent, until_at = str(tmp_path / "agent.py"), int(real_now()) + 600
    values = {"key": "one", "until": until_at, "limit": 600, "python": sys.executable, "agent": agent}
    script = shell_script("platforms.slurm", "session.sh", **values, nodes=1, share=1)
    (tmp_path / "script").write_text(script)
    with subprocess.Popen(
        ["bash", "script"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "BASH_ENV": str(tmp_path / "slow"), "SLURM_JOB_ID": "1"},
    ) as process:
        until((tmp_path / "ready").exists, "the agent")
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert (tmp_path / "ended").read_text().split()[2] == "0"
