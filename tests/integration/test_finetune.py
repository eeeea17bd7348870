"""Fine-tuning under the agent, with the real libraries: interrupted anywhere, it ends with the very same weights.

Needs torch and transformers, which the project does not install; run it where they are:
``python3 -m pytest --noconftest tests/integration/test_finetune.py``.
"""

import hashlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.payload.clock import Clock

REPOSITORY = Path(__file__).parent.parent.parent
TARGET = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a Llama of DeepSeek-Coder's shape in small, and a tokenizer made here."""
    pytest.importorskip("torch", reason="torch is not installed: fine-tuning is NOT tested here")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("model")
    words = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>", "<eos>"], initial_alphabet=alphabet
    )
    words.train_from_iterator(source_texts(), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", unk_token="<unk>")
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        attention_dropout=0.1,
    )
    transformers.set_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def source_texts() -> list[str]:
    """Text of this project, which is text enough."""
    return [path.read_text() for path in sorted((REPOSITORY / "jobs").rglob("*.py"))]


class Desk:
    """A store with data, in which sessions of a job are run one after the other."""

    def __init__(self, folder: Path, model: Path, *options: str) -> None:
        self.store = folder / "store"
        data = self.store / "data"
        data.mkdir(parents=True)
        lines = [json.dumps({"text": text}) + "\n" for text in source_texts()]
        (data / "train-00000.jsonl").write_text("".join(lines[3:]))
        (data / "heldout.jsonl").write_text("".join(lines[:3]))
        self.command = ["{python}", "{payload}/trainers/finetune.py", "--model", str(model), "--deterministic"]
        self.command += ["--length", "64", "--batch", "2", "--accumulate", "2", "--warmup", "5", *options]
        self.folder, self.attempts = folder, 0

    def session(self, interrupt_after: int | None = None, parent: str = "") -> Any:
        """Run a session to its end, or until so many steps are reported; return its result.

        ``parent`` is a manifest of this store, of another job, to begin with.
        """
        self.attempts += 1
        now, run = Clock().now(), f"toy-{self.attempts:04d}"
        restore = sorted((path.relative_to(self.store).as_posix() for path in self.manifests()), reverse=True)
        launch = {
            "format": 1, "run": run, "clock": {"epoch": now, "origin": now, "scale": 1.0}, "deadline": now + 500,
            "stop_margin_seconds": 5, "heartbeat_seconds": 0.2, "grace_seconds": 60, "mtbf_seconds": 3600,
            "work_dir": "work", "store": {"kind": "directory", "root": str(self.store)}, "expected_devices": None,
            "lanes": [{
                "index": 0, "job": "toy", "attempt": self.attempts, "devices": [0], "seed": 3, "target_step": TARGET,
                "command": self.command, "environment": {}, "data": "data", "setup_seconds": 5,
                "checkpoint_seconds": 0.2, "restore": restore, "parent": parent,
            }],
        }  # fmt: skip
        folder = self.folder / run
        (folder / "work").mkdir(parents=True)
        (folder / "launch.json").write_text(json.dumps(launch))
        agent = [sys.executable, str(REPOSITORY / "jobs/payload/agent.py"), str(folder / "launch.json")]
        with (folder / "log").open("wb") as log, subprocess.Popen(agent, stdout=log, stderr=log) as process:
            patience, beat = threading.Event(), self.store / f"runs/{run}/lane-0/heartbeat.json"
            while interrupt_after is not None and process.poll() is None:
                if beat.exists() and (json.loads(beat.read_bytes())["step"] or 0) >= interrupt_after:
                    process.send_signal(signal.SIGTERM)
                    break
                patience.wait(0.05)
        result = self.store / f"runs/{run}/lane-0/result.json"
        assert result.exists(), (folder / "log").read_text()
        return json.loads(result.read_bytes())

    def manifests(self) -> list[Path]:
        """Manifests by step."""
        return sorted(self.store.glob("jobs/toy/manifests/*.json"))

    def newest(self) -> tuple[int, dict[str, str]]:
        """Step of the newest checkpoint, and its files by digest."""
        manifest = json.loads(self.manifests()[-1].read_bytes())
        return manifest["step"], {part["name"]: part["sha256"] for part in manifest["components"]}


@pytest.fixture
def make_desk(tmp_path: Path, model: Path) -> Callable[..., Desk]:
    """Makes desks."""
    return lambda name, *options: Desk(tmp_path / name, model, *options)


@pytest.mark.parametrize("options", [(), ("--lora", "4", "--dropout", "0.1")], ids=["full", "lora"])
def test_an_interrupted_run_ends_with_the_weights_of_one_that_was_not(
    make_desk: Callable[..., Desk], options: tuple[str, ...]
) -> None:
    whole, broken = make_desk("whole", *options), make_desk("broken", *options)
    assert whole.session()["outcome"] == "finished", (whole.folder / "toy-0001/log").read_text()
    first = broken.session(interrupt_after=20)
    assert first["outcome"] == "preempted", (broken.folder / "toy-0001/log").read_text()
    assert 20 <= first["checkpoint_step"] < TARGET
    second = broken.session()
    assert (second["outcome"], second["restored_step"]) == ("finished", first["checkpoint_step"])
    (step, theirs), (_, ours) = whole.newest(), broken.newest()
    assert step == TARGET
    weights = "adapter_model.safetensors" if options else "model.safetensors"
    assert ours[weights] == theirs[weights]
    assert ours["optimizer.pt"] == theirs["optimizer.pt"]
    assert ours["rng_state.pth"] == theirs["rng_state.pth"]
    metrics = [json.loads(desk.manifests()[-1].read_bytes())["metrics"] for desk in (whole, broken)]
    assert metrics[0]["held_out_loss"] == metrics[1]["held_out_loss"] < 5.95, "below that of a guess, ln 400 = 5.99"


@pytest.mark.parametrize("options", [(), ("--lora", "4", "--dropout", "0.1")], ids=["full", "lora"])
def test_a_job_begins_with_the_weights_of_another(make_desk: Callable[..., Desk], options: tuple[str, ...]) -> None:
    desk = make_desk("family", *options)
    assert desk.session()["outcome"] == "finished", (desk.folder / "toy-0001/log").read_text()
    loss = json.loads(desk.manifests()[-1].read_bytes())["metrics"]["held_out_loss"]
    (desk.store / "jobs/toy").rename(desk.store / "jobs/main")
    for path in (desk.store / "jobs/main/manifests").iterdir():
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "job": "main"}))
    key = max(path.relative_to(desk.store).as_posix() for path in desk.store.glob("jobs/main/manifests/*.json"))
    first = desk.session(interrupt_after=1, parent=key)
    assert first["outcome"] == "preempted", (desk.folder / "toy-0002/log").read_text()
    began = json.loads(desk.manifests()[0].read_bytes())
    assert began["step"] < TARGET // 2
    assert began["metrics"]["start_held_out_loss"] == loss, "the parent's, not a beginner's"
    desk.command += ["--lora", "0" if options else "4"]
    for path in desk.manifests():
        path.unlink()
    refused = desk.session(parent=key)
    assert refused["outcome"] == "failed"
    assert "Train this job with --lora" in refused["message"]


def test_a_checkpoint_made_otherwise_is_not_gone_on_from(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk")
    desk.session(interrupt_after=5)
    desk.command += ["--accumulate", "4"]
    refused = desk.session()
    assert refused["outcome"] == "failed"
    assert "accumulate was 2 and is 4" in refused["message"]


def test_data_that_fill_no_row_are_named(make_desk: Callable[..., Desk]) -> None:
    desk = make_desk("desk")
    (desk.store / "data/train-00000.jsonl").write_text('{"text": "too short"}\nnot json\n')
    result = desk.session()
    assert (result["outcome"], result["error_class"]) == ("failed", "data")


def test_the_model_given_is_left_as_it_was(make_desk: Callable[..., Desk], model: Path) -> None:
    """The base of a job is a file of somebody else's."""
    before = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()}
    make_desk("desk").session(interrupt_after=2)
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in model.iterdir()} == before
