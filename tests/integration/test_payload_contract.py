"""The page on training keeps its word: its example is run as it stands."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.payload.clock import Clock
from tests.lab.patience import PATIENCE_SECONDS


@pytest.fixture
def example(repository: Path, tmp_path: Path) -> Path:
    """The script of the page."""
    page = (repository / "docs" / "your-own-training.md").read_text()
    [script] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "example.py"
    path.write_text(script)
    return path


def test_the_example_runs_under_the_agent_and_resumes(repository: Path, tmp_path: Path, example: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    restore: list[str] = []
    for attempt, target in ((1, 20), (2, 30)):
        now = Clock().now()
        lane = {
            "index": 0, "job": "toy", "attempt": attempt, "devices": [], "seed": 3, "target_step": target,
            "command": ["{python}", str(example)], "environment": {}, "data": "",
            "setup_seconds": 1, "checkpoint_seconds": 0.1, "restore": restore,
        }  # fmt: skip
        launch = {
            "format": 1, "run": f"toy-{attempt:04d}", "clock": {"epoch": now, "origin": now, "scale": 1.0},
            "deadline": now + 60, "stop_margin_seconds": 1, "heartbeat_seconds": 1, "grace_seconds": 10,
            "mtbf_seconds": 3600, "work_dir": "work", "store": {"kind": "directory", "root": str(store)},
            "expected_devices": None, "lanes": [lane],
        }  # fmt: skip
        (tmp_path / "launch.json").write_text(json.dumps(launch))
        agent = [sys.executable, str(repository / "jobs/payload/agent.py"), str(tmp_path / "launch.json")]
        subprocess.run(agent, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        result = json.loads((store / f"runs/toy-{attempt:04d}/lane-0/result.json").read_bytes())
        assert (result["outcome"], result["checkpoint_step"]) == ("finished", target), result
        assert result["loss"] == pytest.approx(10 * 0.9**target)
        restore = [f"jobs/toy/manifests/{target:012d}-{attempt:06d}.json"]


def test_the_kit_works_outside_a_session(repository: Path, tmp_path: Path, example: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCHED_")}
    environment["PYTHONPATH"] = str(repository / "jobs/payload/trainers")
    subprocess.run([sys.executable, example], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_SECONDS)
    assert json.loads((tmp_path / "checkpoints/step-00001000/meta.json").read_bytes())["step"] == 1000


def test_the_script_of_the_tutorial_is_resumed(repository: Path, tmp_path: Path) -> None:
    """At a desk, with the pause of each step left out."""
    page = (repository / "docs" / "tutorial.md").read_text()
    [script] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(script.replace("time.sleep(0.01)", "pass"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SCHED_")}
    environment["PYTHONPATH"] = str(repository / "jobs/payload/trainers")

    def train(target: str) -> str:
        done = subprocess.run(
            [sys.executable, "train.py"],
            cwd=tmp_path,
            env={**environment, "SCHED_TARGET_STEP": target},
            check=True,
            timeout=PATIENCE_SECONDS,
            capture_output=True,
            text=True,
        )
        return done.stdout

    assert "resumed" not in train("40")
    assert "resumed at step 40" in train("60")
    assert json.loads((tmp_path / "checkpoints/step-00000060/meta.json").read_bytes())["step"] == 60


def test_a_disk_that_is_full_for_the_trainer_costs_a_checkpoint_not_the_training(
    repository: Path, tmp_path: Path
) -> None:
    """The kit clears what it had written, says so, and trains on."""
    script = tmp_path / "full.py"
    script.write_text(
        "import errno, os\n"
        "from trainer_kit import Training\n"
        "training = Training()\n"
        "def full(folder):\n"
        "    (folder / 'w').write_text('half')\n"
        "    raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "assert not training.checkpoint(1, full, {})\n"
        "assert training.checkpoint(2, lambda folder: None, {'loss': 1.0})\n"
        "assert os.listdir('checkpoints') == ['step-00000002']\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(repository / "jobs/payload/trainers"),
        "SCHED_PROGRESS": str(tmp_path / "progress"),
    }
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_SECONDS)
    said = [json.loads(line) for line in (tmp_path / "progress").read_text().splitlines()]
    assert [next(iter(line)) for line in said] == ["saving", "save_failed", "saving", "saved"]
    assert "No space left" in said[1]["save_failed"]


def test_a_library_that_takes_the_signals_for_itself_does_not_keep_them(repository: Path, tmp_path: Path) -> None:
    """LLVM, with which Triton compiles, puts a handler of its own in C, which Python does not know of."""
    script = tmp_path / "taken.py"
    script.write_text(
        "import ctypes, os, signal\n"
        "from trainer_kit import Training\n"
        "training = Training()\n"
        "ignore = ctypes.c_void_p(1)\n"
        "ctypes.CDLL(None).signal(signal.SIGUSR1, ignore)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "assert not training.should_save, 'it was not taken: this test shows nothing'\n"
        "training.progress(1)\n"
        "os.kill(os.getpid(), signal.SIGUSR1)\n"
        "assert training.should_save and not training.should_stop\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository / "jobs/payload/trainers")}
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True, timeout=PATIENCE_SECONDS)


def test_the_character_model_says_when_its_data_is_unreadable(repository: Path, tmp_path: Path) -> None:
    """Broken records are passed over; nothing but broken records is exit status 65 and one clear line."""
    data = tmp_path / "data"
    data.mkdir()
    trainer = [sys.executable, str(repository / "jobs/payload/trainers/charlm.py"), "--width", "8", "--batch", "4"]
    environment = {**os.environ, "SCHED_DATA_DIR": str(data), "SCHED_TARGET_STEP": "3"}
    shard = data / "train-000.jsonl"
    broken = b'{"text": 5}\n\xff\xfe\nnull\n{"text": "half'
    for content in (None, b"", broken):
        if content is not None:
            shard.write_bytes(content)
        ended = subprocess.run(
            trainer,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )
        assert (ended.returncode, len(ended.stderr.splitlines())) == (65, 1), ended.stderr
        assert "mixture = {}" in ended.stderr or content == broken
    shard.write_bytes(broken + b"\n" + json.dumps({"text": "to be or not to be " * 5}).encode() + b"\n")
    subprocess.run(trainer, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE_SECONDS)


def test_the_character_model_saves_when_asked_and_learns(repository: Path, tmp_path: Path) -> None:
    """SIGUSR1 saves and goes on; the loss on text it never saw falls clearly within two hundred steps."""
    data = tmp_path / "data"
    data.mkdir()
    texts = [path.read_text() for path in sorted(repository.glob("jobs/**/*.py"))]
    lines = [json.dumps({"text": text}) + "\n" for text in texts if text]
    (data / "heldout.jsonl").write_text("".join(lines[::7]))
    (data / "train-000.jsonl").write_text("".join(line for n, line in enumerate(lines) if n % 7))
    process = subprocess.Popen(
        [sys.executable, repository / "jobs/payload/trainers/charlm.py", "--report-every", "200"],
        env={
            **os.environ,
            "SCHED_DATA_DIR": str(data),
            "SCHED_TARGET_STEP": "1000000",
            "SCHED_CHECKPOINT_DIR": str(tmp_path / "checkpoints"),
            "SCHED_PROGRESS": str(tmp_path / "progress"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        for number in (signal.SIGUSR1, signal.SIGTERM):
            process.stdout.readline()
            process.send_signal(number)
        process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0
    first, last = sorted((tmp_path / "checkpoints").iterdir())
    early, late = (json.loads((folder / "meta.json").read_bytes())["metrics"] for folder in (first, last))
    assert early["held_out_loss"] < 4.0  # a model that knows nothing has log(97) = 4.57
    assert late["held_out_loss"] < early["held_out_loss"]
