"""The examples as they stand: cut at some step and resumed, each ends with the very state of one that was never cut.

Those for torch and JAX need what ``make test`` does not install; ``make test-train`` runs them.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from jobs.certify.certificate import certify
from jobs.certify.script_run import ScriptUnderTest
from jobs.certify.strikes import STRIKES
from jobs.payload.clock import Clock

REPOSITORY = Path(__file__).parent.parent.parent
EXAMPLES = REPOSITORY / "examples"
KIT = REPOSITORY / "jobs/payload/trainers/trainer_kit.py"
STATES = {  # what must be equal, byte for byte
    "plain": ("state.json",),
    "shell": ("state",),
    "pytorch": ("model.pt", "optimiser.pt", "state.pt"),
    "accelerate": ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"),
    "transformers": ("model.safetensors",),
    "lightning": ("model.pt",),
    "jax": ("weights.npz", "first.npz", "second.npz", "step"),
}
NEEDED = {
    "pytorch": ("torch",),
    "accelerate": ("torch", "accelerate"),
    "transformers": ("torch", "transformers"),
    "lightning": ("torch", "lightning"),
    "jax": ("jax",),
}
MORE_STEPS = 25
COMMANDS = {"shell": ["bash", "train.sh"]}


class Desk:
    """A store in which sessions of one example are run one after the other, from a fresh copy of its folder each."""

    def __init__(self, folder: Path, example: str) -> None:
        self.folder, self.store, self.example, self.attempt = folder, folder / "store", example, 0
        self.store.mkdir(parents=True)

    def run(self, target: int, restore: list[str], *, cut: bool = False, **lane: Any) -> dict[str, Any]:
        """Return the last word of a session; one that is ``cut`` is asked to leave after its first step."""
        self.attempt += 1
        run, now = f"run-{self.attempt}", Clock().now()
        code = self.folder / f"code-{self.attempt}"
        shutil.copytree(EXAMPLES / self.example, code)
        words = COMMANDS.get(self.example, ["{python}", "train.py"])
        order = {
            "index": 0, "job": "example", "attempt": self.attempt, "devices": [0], "seed": 7, "target_step": target,
            "command": [words[0], str(code / words[1])], "data": "", "restore": restore, "setup_seconds": 1,
            "environment": {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, "checkpoint_seconds": 0.1, **lane,
        }  # fmt: skip
        document = {
            "format": 1, "run": run, "clock": {"epoch": now, "origin": now, "scale": 1.0}, "deadline": now + 300,
            "stop_margin_seconds": 1, "heartbeat_seconds": 0.05, "grace_seconds": 30, "mtbf_seconds": 1e9,
            "work_dir": f"work-{self.attempt}", "store": {"kind": "directory", "root": str(self.store)},
            "expected_devices": None, "lanes": [order],
        }  # fmt: skip
        launch = self.folder / "launch.json"
        launch.write_text(json.dumps(document))
        agent = subprocess.Popen(
            [sys.executable, str(REPOSITORY / "jobs/payload/agent.py"), str(launch)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # Examples do not ask for the slower products that give the same bits twice on an accelerator.
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu"},
        )
        lane_folder, pause = self.store / f"runs/{run}/lane-0", threading.Event()
        while cut and agent.poll() is None and not _step(lane_folder / "heartbeat.json"):
            pause.wait(0.01)
        if cut:
            (self.store / f"runs/{run}/stop").write_text(json.dumps({"reason": "cut", "lane": None}))
        said, _ = agent.communicate(timeout=300)
        result: dict[str, Any] = json.loads((lane_folder / "result.json").read_bytes())
        assert result["outcome"] == ("yielded" if cut else "finished"), (result, said)
        return result

    def manifest(self, step: int) -> str:
        """Return the key of the newest attempt's checkpoint."""
        return f"jobs/example/manifests/{step:012d}-{self.attempt:06d}.json"

    def parts(self, key: str) -> dict[str, str]:
        """Return the digests of a checkpoint's files by name."""
        components = json.loads((self.store / key).read_bytes())["components"]
        return {part["name"]: part["sha256"] for part in components}


def _step(heartbeat: Path) -> int:
    try:
        return json.loads(heartbeat.read_bytes())["step"] or 0
    except (FileNotFoundError, ValueError):
        return 0


@pytest.mark.parametrize("example", STATES)
def test_cut_and_resumed_it_ends_as_if_it_had_never_been_cut(tmp_path: Path, example: str) -> None:
    for needed in NEEDED.get(example, ()):
        pytest.importorskip(needed, reason=f"{needed} is not installed: examples/{example} is NOT tested here")
    desk = Desk(tmp_path / "cut", example)
    reached = desk.run(10**9, [], cut=True)["checkpoint_step"]  # no example ends by itself before
    target = reached + MORE_STEPS
    assert desk.run(target, [desk.manifest(reached)])["restored_step"] == reached
    found = desk.parts(desk.manifest(target))
    straight = Desk(tmp_path / "straight", example)
    straight.run(target, [])
    expected = straight.parts(straight.manifest(target))
    assert {name: found[name] for name in STATES[example]} == {name: expected[name] for name in STATES[example]}


@pytest.mark.parametrize("example", NEEDED)
def test_it_is_certified(tmp_path: Path, example: str) -> None:
    """Of the strikes those that need a resume: each run imports its framework, which takes seconds."""
    for needed in NEEDED[example]:
        pytest.importorskip(needed, reason=f"{needed} is not installed: examples/{example} is NOT tested here")
    shutil.copytree(EXAMPLES / example, tmp_path / "code")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    words = (sys.executable, "train.py")
    script = ScriptUnderTest(tmp_path / "code", words, environment, tmp_path, 40, devices=("",))
    strikes = tuple(one for one in STRIKES if one.name in {"SIGTERM in the middle", "SIGKILL in the middle"})
    certificate = certify(script, print, adapt=False, strikes=strikes)
    kinds = {finding.kind for result in certificate.results for finding in result.findings}
    # Lightning's own file counts resumes as well; transformers logs means, the first after a resume over fewer steps.
    allowed = {"lightning": {"other_files"}, "transformers": {"first_mean"}}.get(example, set())
    assert kinds <= allowed
    assert certificate.level == ("E1" if kinds else "E0")


def test_the_script_that_knows_nothing_is_run_whole(tmp_path: Path) -> None:
    desk = Desk(tmp_path, "whole")
    # The agent starts it in its own folder, as code that a job brings would be.
    script = tmp_path / "code-1" / "train.py"
    desk.run(1, [], whole=True, command=["{python}", str(script)])
    assert sorted(desk.parts(desk.manifest(1))) == ["meta.json", "output/model.json"]


@pytest.mark.parametrize("example", ["plain", "shell", "whole"])
def test_it_runs_at_a_desk_and_goes_on_there(tmp_path: Path, example: str) -> None:
    """With the kit beside it as one file, and nothing else of the scheduler anywhere."""
    folder = tmp_path / "desk"
    shutil.copytree(EXAMPLES / example, folder)
    shutil.copy(KIT, folder)
    words = [word.replace("{python}", sys.executable) for word in COMMANDS.get(example, ["{python}", "train.py"])]
    environment = {"PATH": os.environ["PATH"]}

    def run() -> str:
        return subprocess.run(
            words, cwd=folder, env=environment, check=True, timeout=60, capture_output=True, text=True
        ).stderr

    run()
    if example == "whole":
        assert (folder / "output/model.json").exists()
        return
    assert json.loads((folder / "checkpoints/step-00001000/meta.json").read_bytes())["step"] == 1_000
    if example == "plain":
        (folder / "checkpoints/step-00002000").mkdir()  # half of one, without its meta.json
        environment["SCHED_TARGET_STEP"] = "1500"
        assert "resuming from checkpoints/step-00001000" in run()
        assert (folder / "checkpoints/step-00001500/state.json").exists()


def test_the_kit_is_one_file_for_old_pythons_too() -> None:
    """Only the standard library, and no syntax that Python 3.8 does not know."""
    tree = ast.parse(KIT.read_text(), feature_version=(3, 8))
    imported = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."])
    }
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == {
        *STATES, "whole", "router", "container", "platform", "lightning-jobs",
        "fine-tune", "grafana", "settings", "trackers",
    }  # fmt: skip


def test_the_data_of_the_fine_tuning_example_is_learned(tmp_path: Path, make_desk: Any) -> None:
    """With a tiny model in place of the one that job.toml names, and its options for the data."""
    words = [sys.executable, "split.py", "units.jsonl", str(tmp_path / "data")]
    subprocess.run(words, cwd=EXAMPLES / "fine-tune", check=True, timeout=60)
    desk = make_desk("units", "--lora", "4", "--data", str(tmp_path / "data"), target=6)
    done = desk.run()
    assert done.codes == [0], done.said
    told = next(line["training_data"] for line in desk.told() if "training_data" in line)
    assert told["records"] == {"messages": 39}
    assert told["left_out"] == []
    assert desk.checkpoint().name == "step-00000006"
