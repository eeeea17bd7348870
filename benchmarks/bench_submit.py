"""What it takes to train a script: from submit to its first step, what is sent again, and how fast code is packed.

A daemon with one local pool runs a script that needs two packages which the image lacks, made here as wheels.
Ratios: the first step with an environment that is there over one that must be built; bytes sent for an unchanged folder
over those of the first time; packing 10,000 files over `git archive` of the same commit.

    python benchmarks/bench_submit.py [--files 10000]
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from jobs.code.pack import pack
from jobs.spec import Code

_PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.02
_CONFIG = """
state_dir = "state"
models = []

[[pools]]
name = "desk"
platform = "local"
session_min = "1m"
options = { pass_environment = "PIP_FIND_LINKS,UV_FIND_LINKS,PIP_NO_INDEX,UV_NO_INDEX,PIP_CONFIG_FILE" }
"""
_SCRIPT = """
import tiny_one, tiny_two
from trainer_kit import Training

training = Training()
step = 0
while step < training.target_step and not training.should_stop:
    step += 1
    training.progress(step)
training.checkpoint(step, lambda folder: (folder / "weights").write_text(str(step)), {})
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="From submit to the first step, and what is sent.")
    parser.add_argument("--files", type=int, default=10_000, help="files of the folder that is packed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-submit-") as name:
        folder = Path(name)
        _first_steps(folder)
        _packing(folder / "repository", options.files)
    return 0


def _first_steps(folder: Path) -> None:
    wheels, trainer = folder / "wheels", folder / "trainer"
    trainer.mkdir()
    (trainer / "train.py").write_text(_SCRIPT)
    (trainer / "requirements.txt").write_text("tiny-one\ntiny-two\n")
    for package in ("tiny_one", "tiny_two"):
        _wheel(wheels, package)
    config = folder / "scheduler.toml"
    config.write_text(_CONFIG)
    given = {"PIP_FIND_LINKS": str(wheels), "UV_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1", "UV_NO_INDEX": "1"}
    environment = {**os.environ, **given, "PIP_CONFIG_FILE": os.devnull}
    schedctl = [sys.executable, "-m", "scheduler", "--config", str(config)]
    subprocess.run([*schedctl, "db", "upgrade"], env=environment, check=True, capture_output=True)
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen([*schedctl, "daemon"], stdout=log, stderr=log, env=environment)
    try:
        seconds, sent = [], []
        for job in ("cold", "warm"):
            words = ["submit", "train.py", "--name", job, "--target-step", "1000", "--steps-per-hour", "100000"]
            words += ["--requirements", "requirements.txt"]
            stored, began = _bytes(folder / "state"), time.monotonic()
            subprocess.run([*schedctl, *words], cwd=trainer, env=environment, check=True, capture_output=True)
            sent.append(_bytes(folder / "state") - stored)
            _wait_for_step(folder / "state" / "artifacts", job)
            seconds.append(time.monotonic() - began)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
    cold, warm = seconds
    print(f"submit to first step: {cold:.1f} s with an environment to build, {warm:.1f} s with one that is there")
    print(f"  warm over cold: {warm / cold:.2f}")
    print(f"sent at the first submission {sent[0]:,} bytes, at the second {sent[1]:,}: ratio {sent[1] / sent[0]:.2f}")


def _wait_for_step(artifacts: Path, job: str) -> None:
    """Return when a session of the job has reported a step. Raises SystemExit when none does in time."""
    until = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < until:
        for path in artifacts.glob(f"runs/*{job}*/lane-0/*.json"):
            try:
                reported = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue  # it is being written
            if reported.get("step"):
                return
            if reported.get("outcome") == "failed":
                raise SystemExit(f"the session of {job} failed: {reported}")
        time.sleep(_LOOK_SECONDS)
    raise SystemExit(f"no session of {job} reported a step within {_PATIENCE_SECONDS:.0f} s")


def _bytes(state: Path) -> int:
    """Return how much of what submissions store is in the artifact store."""
    found = (path for kind in ("code", "wheels", "input", "lock") for path in (state / "artifacts" / kind).rglob("*"))
    return sum(path.stat().st_size for path in found if path.is_file())


def _wheel(folder: Path, package: str) -> None:
    """Write a wheel with one empty module."""
    folder.mkdir(exist_ok=True)
    info = f"{package}-1.0.dist-info"
    files = {
        f"{package}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: bench\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        lines.append(f"{path},sha256={digest},{len(data)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    with zipfile.ZipFile(folder / f"{package}-1.0-py3-none-any.whl", "w") as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)


def _packing(folder: Path, count: int) -> None:
    for number in range(count):
        place = folder / f"part-{number % 100:02d}" / f"module_{number:05d}.py"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"# {number}\n" + "value = 1\n" * 400)
    git = ["git", "-C", str(folder), "-c", "user.name=bench", "-c", "user.email=bench@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "all"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    taken, code = [], Code(str(folder))
    for _ in range(3):
        began = time.monotonic()
        with tempfile.TemporaryFile() as sink:
            code, _ = pack(Code(str(folder)), sink)
        taken.append(time.monotonic() - began)
    archived = []
    for _ in range(3):
        began = time.monotonic()
        with tempfile.TemporaryFile() as sink:
            subprocess.run([*git, "archive", "--format=tar", "HEAD"], check=True, stdout=sink)
        archived.append(time.monotonic() - began)
    ours, theirs = min(taken), min(archived)
    print(
        f"packing {code.files:,} files, {code.bytes / 1e6:.0f} MB: {ours:.2f} s, git archive {theirs:.2f} s: "
        f"{ours / theirs:.1f} times as long, every byte hashed"
    )


if __name__ == "__main__":
    sys.exit(main())
