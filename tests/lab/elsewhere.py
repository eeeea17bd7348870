"""A whole scheduler beside the tests of fine-tuning: daemon, Kaggle's and SageMaker's emulators, this machine.

Where torch is tested nothing of the scheduler is installed. So all of it runs in the environment of ``make test``, and
is asked by its command line alone; only the trainings run in the environment of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from scheduler.clock import real_now
from tests.lab.crashes.processes import kill, working_for
from tests.lab.desk import REPOSITORY
from tests.lab.patience import pause
from tests.lab.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BIN = REPOSITORY / ".venv" / "bin"
_SCALE = 20.0  # scheduled seconds in a real one: what SageMaker gives for the last save is six real ones
_KEY = "any-word"
_BUCKET = "uff"
_SETTINGS = """
state_dir = "state"
models = []

[artifacts]
kind = "s3"
root = "uploads"
options = {{ bucket = "{bucket}", region = "us-east-1", endpoint = "{aws}", credentials = "{folder}/aws.ini" }}

[daemon]
cycle = "10s"
heartbeat = "5s"
grace = "4m"
retry_base = "10s"

[clock]
scale = {scale}
epoch = {epoch}
origin = {epoch}

[logging]
format = "json"

[[pools]]
name = "kaggle"
platform = "kaggle"
vram_gib = 15
session_cap = "12h"
session_min = "10m"
setup = "5m"

[pools.options]
emulator = "{kaggle}"
credentials = "{folder}/kaggle.json"
checkpoints = "direct"
idle_milliseconds = "50"
pause_milliseconds = "10"
expected_device = "NvidiaTeslaT4"

[[pools]]
name = "sagemaker"
platform = "sagemaker"
vram_gib = 15
session_cap = "4h"
session_min = "10m"
setup = "5m"

[pools.options]
endpoint = "{aws}"
credentials = "{folder}/aws.ini"
region = "us-east-1"
bucket = "{bucket}"
role = "arn:aws:iam::123456789012:role/uff-execution"
image = "123456789012.dkr.ecr.us-east-1.amazonaws.com/whatever-runs-here:1"
instance_types = "ml.g4dn.xlarge"
poll_seconds = "0"

[[pools]]
name = "local"
platform = "local"
vram_gib = 15
session_cap = "8h"
session_min = "10m"
setup = "5m"
"""


def missing() -> str:
    """Return why no scheduler can be run beside these tests; "" if one can."""
    words = [str(BIN / "python"), "-c", "import boto3, flask, kagglesdk, moto, scheduler"]
    if not (BIN / "python").exists():
        return f"{BIN.parent} is not there: `make .venv/ready-dev` makes it"
    return subprocess.run(words, capture_output=True, text=True, check=False).stderr.strip().rpartition("\n")[2]


class Elsewhere:
    """A daemon with its places, in ``folder``. Leave it: every process of it is ended then."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._open = folder, ExitStack()
        self._config = folder / "config.toml"

    def __enter__(self) -> Self:
        folder = self._folder
        folder.mkdir(parents=True)
        (folder / "aws.ini").write_text(
            "[default]\naws_access_key_id = AKIAEMULATED\naws_secret_access_key = emulated\n"
        )
        (folder / "kaggle.json").write_text(json.dumps({"username": "alice", "key": _KEY}))
        for name in ("aws.ini", "kaggle.json"):
            (folder / name).chmod(0o600)
        now = float(int(real_now()))
        clock = ["--origin", str(now), "--scale", str(_SCALE)]
        with ExitStack() as opened:
            bucket = ["--bucket", _BUCKET, "--role", "uff-execution"]
            aws = opened.enter_context(self._emulator("sagemaker", "--epoch", str(now), *bucket, *clock))
            kaggle = opened.enter_context(self._emulator("kaggle", *clock))
            told = {"aws": aws, "kaggle": kaggle, "folder": folder, "bucket": _BUCKET}
            self._config.write_text(_SETTINGS.format(**told, scale=_SCALE, epoch=now))
            self.type("db", "init")
            opened.enter_context(self._daemon())
            self._open = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        while left := working_for(self._folder):  # sessions outlive their daemon
            for process in left:
                kill(process)
            pause()

    def type(self, *words: str) -> Any:
        """Type a command of ``schedctl`` and return its document."""
        command = [str(BIN / "schedctl"), "--config", str(self._config), "--json", *words]
        environment = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDCTL_")}
        ended = subprocess.run(command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, f"{' '.join(words)}: {ended.stderr}"
        return json.loads(ended.stdout) if ended.stdout.strip() else None

    def printed(self, run: str) -> str:
        """Return what a session printed."""
        command = [str(BIN / "schedctl"), "--config", str(self._config), "runs", "logs", run]
        return subprocess.run(command, cwd=self._folder, capture_output=True, text=True, check=True).stdout

    @contextmanager
    def _emulator(self, name: str, *words: str) -> Iterator[str]:
        command = [str(BIN / "python"), "-m", f"platforms.emulators.{name}", str(self._folder / name)]
        command += ["--port", str(free_port()), *words]
        with (
            (self._folder / f"{name}.log").open("wb") as log,
            subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            assert process.stdin
            assert process.stdout
            process.stdin.write(f"{_KEY}\n")
            process.stdin.flush()
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()

    @contextmanager
    def _daemon(self) -> Iterator[None]:
        command = [str(BIN / "schedctl"), "--config", str(self._config), "daemon"]
        with (
            (self._folder / "daemon.log").open("wb") as log,
            subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log) as process,
        ):
            try:
                yield
            finally:
                process.terminate()
