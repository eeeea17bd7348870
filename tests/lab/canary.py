"""A canary: the value of a secret that a job does its best to tell, and where it is found after that.

The job prints its secret plainly, encoded, in two pieces and in an endless line, reports it and the name of a metric
made of it, and fails with a traceback that quotes it. The real daemon runs it, started by the real command line.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import tomli_w

from jobs.payload.redact import MARK, Redactor
from scheduler.app import load_app
from scheduler.core.job import Failed, Held
from scheduler.core.reasons import SecretMissing
from scheduler.store import jobs, plans, runs
from tests.lab.patience import until

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

NAME = "CANARY_TOKEN"
_TELLS = """
import base64, fcntl, json, os, pathlib, signal, subprocess, sys, termios, time
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
value = os.environ["CANARY_TOKEN"]
shown = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True).stdout
print("in arguments:", shown.count(value), "in sched:", sum(value in text for name, text in os.environ.items()
    if name != "CANARY_TOKEN"), flush=True)
print("plain", value, "and", base64.b64encode(b"me:" + value.encode()).decode(), value.encode().hex(), flush=True)
sys.stdout.write("two pieces " + value[:11]); sys.stdout.flush()
while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))): os.sched_yield()  # until the first piece was read by itself
print(value[11:], flush=True)
for room in range(0, 90, 7):
    print("x" * (65536 + room) + value + "y" * 50, flush=True)
def report(**words):
    with open(os.environ["SCHED_PROGRESS"], "a") as pipe:
        pipe.write(json.dumps(words) + "\\n")
report(step=10, loss=1.0, save_failed="no access with " + value, note=value, **{value: 1})
time.sleep(0.5)  # training goes on, and the session tells what it was told before it saves
report(saving=10)
making = pathlib.Path(os.environ["SCHED_CHECKPOINT_DIR"]) / "making"
making.mkdir()
(making / "weights.bin").write_bytes(b"weights")
(making / "meta.json").write_text(json.dumps({"step": 10, "metrics": {"loss": 1.0, "of " + value: 2.0}}))
making.rename(making.with_name("step-00000010"))
report(step=10, saved=10)
raise RuntimeError("refused: Bearer " + value)
"""


def new_canary() -> str:
    """Return a value that is nowhere yet."""
    return f"canary_{secrets.token_hex(16)}"


def run_canary(
    folder: Path, settings: dict[str, Any], value: str, *, late: bool = False, seconds: float = 240.0
) -> str:
    """Let a daemon with ``settings`` run the job until it is over; return what the daemon and the commands said.

    The value is put into the file of credentials in the state folder, unless it is empty; ``late``: only once the job
    waits for it, which is what the newest plan says.
    """
    config = folder / "config.toml"
    document = {"models": [], **settings, "state_dir": str(folder / "daemon")}
    document["daemon"] = {**settings.get("daemon", {}), "failures_max": 1}
    config.write_text(tomli_w.dumps(document))
    if value and not late:
        _put(folder, value)
    job = {"name": "leaky", "role": "manager", "steps_per_hour": 400, "target_step": 300, "secrets": [NAME]}
    (folder / "leaky.toml").write_text(tomli_w.dumps({**job, "command": ["{python}", "-c", _TELLS], "code": ""}))
    run = [sys.executable, "-c", "from scheduler.cli.main import run; run()", "--config", str(config)]
    said = ""
    for words in (["db", "upgrade"], ["queue", "add", str(folder / "leaky.toml")]):
        done = subprocess.run([*run, *words], check=True, capture_output=True, text=True)
        said += done.stdout + done.stderr
    app = load_app(config)

    def over() -> bool:
        with app.database.read() as tx:
            state = jobs.get(tx, "leaky").state
            return isinstance(state, Failed | Held) and not runs.live(tx)

    def waits() -> bool:
        with app.database.read() as tx:
            return isinstance(plans.reason(tx, "leaky"), SecretMissing) and not runs.recent(tx, 1, job="leaky")

    with (folder / "daemon.log").open("w") as log, subprocess.Popen([*run, "daemon"], stdout=log, stderr=log) as daemon:
        try:
            if late:
                until(waits, "the job to wait for its secret", seconds, every=0.2)
                _put(folder, value)
            until(lambda: over() or daemon.poll() is not None, "the end of the job", seconds, every=0.2)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
    app.database.close()
    for words in (["queue", "show", "leaky"], ["queue", "list", "--json"], ["runs", "logs", "uff-leaky-0001"]):
        done = subprocess.run([*run, *words], check=False, capture_output=True, text=True)
        said += done.stdout + done.stderr
    return said + (folder / "daemon.log").read_text()


def _put(folder: Path, value: str) -> None:
    credentials = folder / "daemon" / "credentials"
    credentials.mkdir(parents=True, mode=0o700)
    with os.fdopen(os.open(credentials / NAME, os.O_WRONLY | os.O_CREAT, 0o600), "w") as stream:
        stream.write(f"{value}\n")


def proves_redaction(output: str, value: str) -> None:
    """Assert that a session had its secret and that none of its ways to tell it worked."""
    assert "in arguments: 0 in sched: 0" in output, output[-3_000:]
    assert f"plain {MARK} and " in output
    assert f"two pieces {MARK}\n" in output
    assert f"refused: Bearer {MARK}" in output
    assert told_in(output.encode(), value) == []


def told_in(data: bytes, value: str) -> list[str]:
    """Return the places at which a text tells the canary, in whatever form."""
    text = data.decode("latin-1")
    hidden = Redactor([value])
    return [line[:200] for line in text.splitlines() if hidden.whole(line) != line or value[:12] in line]


def files_that_tell(root: Path, value: str, but: Collection[Path] = ()) -> list[Path]:
    """Return the files below a folder in which the canary is found, ``but`` for those that may have it."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink() and path not in set(but))
    return sorted(path for path in found if told_in(path.read_bytes(), value))
