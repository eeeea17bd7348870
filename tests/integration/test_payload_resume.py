"""kill -9 anywhere, resume, and nothing shows: the same losses at every step, the same bits in the end."""

import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock
from tests.lab.night import share
from tests.lab.patience import PATIENCE_SECONDS

TARGET_STEP = 6000
OPTIONS = ("--width", "24", "--batch", "16", "--report-every", "1")

# Ends the process it is loaded into, by SIGKILL, at the n-th file it opens or links in the named phase.
HOOK = """
import os, signal, sys
wanted, left = os.environ.get("KILL_IN"), int(os.environ.get("KILL_AT") or 0)
def hook(event, arguments):
    global left
    save = event in ("open", "os.rename") and "/.partial-" in str(arguments[0])
    publish = event in ("os.link", "os.remove") and str(arguments[0]).startswith(".tmp-")
    if publish:  # the folder is an open one: the third argument of a link, the second of a removal
        publish = "/jobs/" in os.readlink(f"/proc/self/fd/{arguments[2 if event == 'os.link' else 1]}") + "/"
    if (save and wanted == "save") or (publish and wanted == "publish"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
if wanted:
    sys.addaudithook(hook)
"""


class Storm:
    """One job, trained by as many attempts as it takes; each attempt is a fresh agent."""

    def __init__(self, folder: Path, payload: Path) -> None:
        self.folder, self.payload = folder, payload
        self.store = folder / "store"
        self.data = self.store / "corpus"
        self.data.mkdir(parents=True)
        source = Path(json.__file__).read_text() + Path(random.__file__).read_text()
        texts = [source[start : start + 2000] for start in range(0, len(source), 2000)]
        lines = [json.dumps({"text": text}) + "\n" for text in texts]
        (self.data / "heldout.jsonl").write_text("".join(lines[:2]))
        (self.data / "train-000.jsonl").write_text("".join(lines[2:]))
        (folder / "hook").mkdir()
        (folder / "hook/sitecustomize.py").write_text(HOOK)
        self.attempt = 0
        self.kills = 0
        self.resumed_from: set[str] = set()
        self.curve: dict[int, str] = {}

    @property
    def trainer(self) -> list[str]:
        """The training command, without an agent."""
        return [sys.executable, str(self.payload / "trainers/charlm.py"), *OPTIONS]

    def reference(self) -> dict[int, str]:
        """Train without any interruption and without the agent; return the loss of every step, as text."""
        environment = {
            **os.environ,
            "SCHED_DATA_DIR": str(self.data),
            "SCHED_SEED": "11",
            "SCHED_TARGET_STEP": str(TARGET_STEP),
            "SCHED_CHECKPOINT_DIR": str(self.folder / "reference"),
        }
        output = subprocess.run(self.trainer, env=environment, capture_output=True, text=True, check=True)
        return dict(self.losses(output.stdout.splitlines()))

    @staticmethod
    def losses(lines: list[str]) -> Iterator[tuple[int, str]]:
        """Yield (step, loss) from a log."""
        for line in lines:
            match line.split():
                case ["step", step, "loss", loss]:
                    yield int(step), loss

    def manifests(self) -> list[str]:
        """Return keys, newest first."""
        folder = self.store / "jobs/lm/manifests"
        names = sorted((path.name for path in folder.glob("*.json")), reverse=True)
        return [f"jobs/lm/manifests/{name}" for name in names]

    def start(self, **environment: str) -> subprocess.Popen[str]:
        """Start the next attempt, from all there is."""
        self.attempt += 1
        restore = self.manifests()
        self.resumed_from.update(restore[:1])
        now = Clock().now()
        document = {
            "format": 1,
            "run": f"lm-{self.attempt:04d}",
            "clock": {"epoch": now, "origin": now, "scale": 1.0},
            "deadline": now + 120,
            "stop_margin_seconds": 1,
            "heartbeat_seconds": 1,
            "grace_seconds": 20,
            "mtbf_seconds": 0.1,  # checkpoints as often as they go
            "work_dir": f"work-{self.attempt}",
            "store": {"kind": "directory", "root": str(self.store)},
            "expected_devices": None,
            "lanes": [
                {
                    "index": 0,
                    "job": "lm",
                    "attempt": self.attempt,
                    "devices": [],
                    "seed": 11,
                    "target_step": TARGET_STEP,
                    "command": ["{python}", "{payload}/trainers/charlm.py", *OPTIONS],
                    "environment": {},
                    "data": "corpus",
                    "setup_seconds": 1,
                    "checkpoint_seconds": 0.01,
                    "restore": restore,
                }
            ],
        }
        path = self.folder / f"launch-{self.attempt}.json"
        path.write_text(json.dumps(document))
        return subprocess.Popen(
            [sys.executable, str(self.payload / "agent.py"), str(path)],
            env={**os.environ, "PYTHONPATH": str(self.folder / "hook"), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def finish(self, agent: subprocess.Popen[str], lines: list[str]) -> dict[str, Any] | None:
        """Note what was said and hold it against what was said before; return the result, if there is one."""
        rest, _ = agent.communicate(timeout=PATIENCE_SECONDS)
        # The last line of a process that was killed may be half a line.
        said = lines + rest.splitlines()[: None if rest.endswith("\n") else -1]
        for step, loss in self.losses(said):
            assert self.curve.setdefault(step, loss) == loss, f"step {step} came out differently"
        path = self.store / f"runs/lm-{self.attempt:04d}/lane-0/result.json"
        result: dict[str, Any] | None = json.loads(path.read_bytes()) if path.exists() else None
        if result:
            assert result["bad_manifests"] == []
        return result

    def final_components(self) -> dict[str, str]:
        """Digests of the checkpoint at the target step."""
        newest = json.loads((self.store / self.manifests()[0]).read_bytes())
        assert newest["step"] == TARGET_STEP
        return {part["name"]: part["sha256"] for part in newest["components"]}

    def reference_components(self) -> dict[str, str]:
        """Digests of the same checkpoint, uninterrupted."""
        folder = self.folder / f"reference/step-{TARGET_STEP:08d}"
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def kill_one_of(agent: subprocess.Popen[str], chance: random.Random) -> None:
    """Kill the agent or, as likely, the trainer: its youngest child."""
    if agent.poll() is None:
        children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
        os.kill(chance.choice([agent.pid, *(int(child) for child in children[-1:])]), signal.SIGKILL)


@pytest.fixture
def storm(tmp_path: Path, repository: Path) -> Storm:
    return Storm(tmp_path, repository / "jobs" / "payload")


def test_a_storm_of_kills_leaves_no_trace(storm: Storm) -> None:
    """Kills of agent and trainer: at random steps, at every file of a save, at every object of a publication."""
    chance = random.Random(5)
    inside = [("save", at) for at in range(1, 6)] + [("publish", at) for at in range(1, 7)]
    chance.shuffle(inside)
    # With every push some of them: each alone is tried below.
    inside, kills = inside[: 1 + share(10)], 7 + share(7)
    result: dict[str, Any] | None = None
    while result is None or result["outcome"] != "finished":
        phase, at = inside.pop() if inside and storm.attempt % 2 else ("", 0)
        agent = storm.start(KILL_IN=phase, KILL_AT=str(at))
        assert agent.stdout
        lines: list[str] = []
        if not phase and storm.kills < kills:
            # Some time after a checkpoint, so that there is always something to resume from.
            for line in agent.stdout:
                lines.append(line)
                if "published" in line:
                    break
            lines += itertools.islice(agent.stdout, chance.randint(0, 200))
            kill_one_of(agent, chance)
        result = storm.finish(agent, lines)
        assert result is None or result["outcome"] == "finished" or result["error_class"] == "killed"
        storm.kills += result is None or result["outcome"] == "failed"
        assert storm.attempt < 60
    reference = storm.reference()
    assert storm.kills >= kills - 2
    assert len(storm.resumed_from) >= 4
    assert {step: loss for step, loss in reference.items() if storm.curve.get(step) != loss} == {}
    assert storm.final_components() == storm.reference_components()


@pytest.mark.parametrize("at", range(1, 6))
def test_a_kill_inside_a_save_leaves_no_half_checkpoint(storm: Storm, at: int) -> None:
    result = storm.finish(storm.start(KILL_IN="save", KILL_AT=str(at)), [])
    assert result
    assert (result["outcome"], result["error_class"], storm.manifests()) == ("failed", "killed", [])


@pytest.mark.parametrize("at", range(1, 11))
def test_a_kill_inside_a_publication_leaves_only_whole_checkpoints(storm: Storm, at: int) -> None:
    """Every manifest that can be seen has all of its components, whole."""
    assert storm.finish(storm.start(KILL_IN="publish", KILL_AT=str(at)), []) is None
    for key in storm.manifests():
        for part in json.loads((storm.store / key).read_bytes())["components"]:
            blob = (storm.store / "jobs/lm/blobs" / part["sha256"]).read_bytes()
            assert hashlib.sha256(blob).hexdigest() == part["sha256"]
    assert bool(storm.manifests()) == (at >= 10)
