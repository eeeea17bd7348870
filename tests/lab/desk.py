"""A desk at which sessions of a fine-tuning are run, one after the other, on tiny models.

``session`` runs one by the real agent. To load the libraries takes most of its time, so that most tests take ``run``:
its processes are forked from the test's, which has loaded them. Where there is an accelerator they are programs of
their own: its driver works in no fork of a process that has asked for it.
"""

import functools
import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jobs.payload.clock import Clock
from tests.lab.ports import free_port

REPOSITORY = Path(__file__).parent.parent.parent


@functools.cache
def source_texts() -> list[str]:
    """Text of this project, which is text enough."""
    return [path.read_text() for path in sorted((REPOSITORY / "jobs/payload").rglob("*.py"))]


def make_tokenizer(folder: Path, *, chat: bool = False) -> Any:
    """Make a tokenizer like DeepSeek-Coder's: of bytes, and of Llama's class by name alone."""
    import tokenizers
    import transformers

    words = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    words.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<bos>", "<eos>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=special, initial_alphabet=alphabet)
    words.train_from_iterator(source_texts(), trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    )
    if chat:
        tokenizer.chat_template = (
            "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}### Instruction:\n{{ m['content'] }}\n"
            "{% else %}### Response:\n{{ m['content'] }}\n<eos>\n{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}### Response:\n{% endif %}"
        )
    tokenizer.save_pretrained(folder)
    told = json.loads((folder / "tokenizer_config.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps({**told, "tokenizer_class": "LlamaTokenizerFast"}))
    return tokenizer


def make_model(folder: Path, *, chat: bool = False) -> Path:
    """Make a Llama of DeepSeek-Coder's shape in small, with its tokenizer."""
    import transformers

    tokenizer = make_tokenizer(folder, chat=chat)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    transformers.set_seed(1)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def make_seeing_model(folder: Path) -> Path:
    """Make a Qwen2-VL in small, whose images are of tokens of 8 x 8 pixels, with its tokenizer."""
    import transformers

    tokenizer = make_tokenizer(folder)
    marks = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    tokenizer.add_special_tokens({"additional_special_tokens": marks})
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {% if m['content'] is string %}{{ m['content'] }}{% else %}"
        "{% for part in m['content'] %}{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
        "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<eos>\n{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(folder)
    start, end, image, video = (tokenizer.convert_tokens_to_ids(mark) for mark in marks)
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10_000.0},
    }  # fmt: skip
    vision = {"depth": 2, "embed_dim": 64, "hidden_size": 64, "num_heads": 2, "patch_size": 4, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(
        text_config=text, vision_config=vision, image_token_id=image, video_token_id=video,
        vision_start_token_id=start, vision_end_token_id=end, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.set_seed(1)
    transformers.Qwen2VLForConditionalGeneration(config).save_pretrained(folder)
    said = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "patch_size": 4, "merge_size": 2}
    kind = {"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 2}
    (folder / "preprocessor_config.json").write_text(json.dumps({**said, **kind}))
    return folder


class Run(NamedTuple):
    """What came of forked processes: exit statuses by rank, and all they printed."""

    codes: list[int]
    said: str


class Desk:
    """A store with data, in which sessions of a job are run. ``options`` are those of finetune.py."""

    def __init__(self, folder: Path, model: Path, *options: str, target: int = 40) -> None:
        if {"--use-4bit", "adamw8bit"} & {*options}:
            pytest.importorskip("bitsandbytes")  # images with accelerators may lack it
        self.folder, self.target, self.attempts = folder, target, 0
        self.store = folder / "store"
        (folder / "checkpoints").mkdir(parents=True)
        (self.store / "data").mkdir(parents=True)
        self.fill({"text": text} for text in source_texts())
        self.command = ["{python}", "{payload}/trainers/finetune.py", "--model", str(model), "--deterministic"]
        self.command += ["--length", "64", "--batch", "2", "--accumulate", "2", "--warmup", "5"]
        self.command += ["--compile", "off"]  # which would take most of the time where Triton works
        self.command += ["--cache", str(folder / "cache"), *options]
        self.environment = {"OMP_NUM_THREADS": "1"}

    def fill(self, records: Iterable[Any]) -> None:
        """Write the corpus: the first three records are held out."""
        lines = [json.dumps(record) + "\n" for record in records]
        (self.store / "data/train-00000.jsonl").write_text("".join(lines[3:]))
        (self.store / "data/heldout.jsonl").write_text("".join(lines[:3]))

    def run(
        self,
        *more: str,
        ranks: int = 1,
        cut: int | None = None,
        sign: signal.Signals = signal.SIGTERM,
        told: int = 0,
        disturb: Callable[[int, int], None] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        """Fork processes that train from the newest checkpoint here to the target.

        Once step ``cut`` is reported, rank ``told`` alone gets ``sign``. ``disturb`` gets the first rank's process and
        the newest step (-1: none yet) a hundred times a second.
        """
        self.attempts += 1
        at = [(self.folder / f"{name}-{self.attempts}") for name in ("progress", "log")]
        newest = self.checkpoint()
        variables = {
            "SCHED_CHECKPOINT_DIR": str(self.folder / "checkpoints"), "SCHED_RESUME_DIR": str(newest or ""),
            "SCHED_DATA_DIR": str(self.store / "data"), "SCHED_TARGET_STEP": str(self.target), "SCHED_SEED": "3",
            "SCHED_PROGRESS": str(at[0]), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()), "GLOO_SOCKET_IFNAME": "lo", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            **hidden(ranks), **(environment or {}),
        }  # fmt: skip
        at[0].touch()
        start = spawn if accelerators() else fork
        pids = [start([*self.command[2:], *more], {**variables, "RANK": str(rank)}, at[1]) for rank in range(ranks)]
        patience, left, codes = threading.Event(), dict(enumerate(pids)), [0] * ranks
        while left:
            for rank, pid in list(left.items()):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    codes[rank] = os.waitstatus_to_exitcode(status)
                    del left[rank]
            step = max((step for step, _ in self.losses()), default=-1)
            if cut is not None and told in left and step >= cut:
                os.kill(left[told], sign)
                cut = None
            if disturb is not None and 0 in left:
                disturb(left[0], step)
            if any(codes):  # the launcher's part, which a fork leaves out
                for pid in left.values():
                    os.kill(pid, signal.SIGKILL)
            patience.wait(0.01)
        return Run(codes, at[1].read_text())

    def told(self) -> list[dict[str, Any]]:
        """What the newest run told so far; a line that is being written counts once it is whole."""
        text = (self.folder / f"progress-{self.attempts}").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def losses(self) -> list[tuple[int, float | None]]:
        """Steps that the newest run reported, with their losses where it told one."""
        return [(line["step"], line.get("loss")) for line in self.told() if "step" in line]

    def checkpoint(self) -> Path | None:
        """The newest checkpoint that ``run`` left."""
        return max((self.folder / "checkpoints").glob("step-*"), default=None)

    def kept(self, name: str) -> Any:
        """A JSON document of the newest checkpoint."""
        folder = self.checkpoint()
        assert folder is not None
        return json.loads((folder / name).read_bytes())

    def metrics_kept(self) -> Any:
        """Metrics of the newest checkpoint that ``run`` left."""
        return self.kept("meta.json")["metrics"]

    def state(self) -> dict[str, str]:
        """Digests of the newest checkpoint's files that a training goes on from."""
        folder = self.checkpoint()
        assert folder is not None
        files = [*folder.glob("*.safetensors"), folder / "optimizer.pt"]
        return {path.name: digest(path) for path in files}

    def session(
        self,
        *,
        cut: int | None = None,
        sign: signal.Signals = signal.SIGTERM,
        parent: str = "",
        devices: int = 1,
        nodes: Any = None,
        expected: str = "",
        beside: str = "",
    ) -> Any:
        """Run a session to its end and return its result; ``cut``: the agent gets ``sign`` at this step.

        ``parent`` is a manifest of this store, of another job, to begin with; ``nodes`` where its lane runs;
        ``expected`` the device that the pool promises. ``beside``: a job that begins in a second lane, on the device
        after those of the first.
        """
        self.attempts += 1
        now, run = Clock().now(), f"toy-{self.attempts:04d}"
        restore = sorted((path.relative_to(self.store).as_posix() for path in self.manifests()), reverse=True)
        launch: dict[str, Any] = {
            "format": 1, "run": run, "clock": {"epoch": now, "origin": now, "scale": 1.0}, "deadline": now + 500,
            "stop_margin_seconds": 5, "heartbeat_seconds": 0.1, "grace_seconds": 60, "mtbf_seconds": 3600,
            "work_dir": "work", "store": {"kind": "directory", "root": str(self.store)},
            "expected_devices": {"count": devices, "name": expected} if expected else None,
            "lanes": [{
                "index": 0, "job": "toy", "attempt": self.attempts, "devices": list(range(devices)), "seed": 3,
                "target_step": self.target, "command": self.command, "environment": self.environment, "data": "data",
                "setup_seconds": 5, "checkpoint_seconds": 0.2, "restore": restore, "parent": parent,
                "stall": {"loss_nan": 3}, "nodes": nodes,
            }],
        }  # fmt: skip
        if beside:
            second = {"index": 1, "job": beside, "devices": [devices], "restore": [], "parent": ""}
            launch["lanes"] = [*launch["lanes"], {**launch["lanes"][0], **second}]
        folder = self.folder / run
        (folder / "work").mkdir(parents=True)
        (folder / "launch.json").write_text(json.dumps(launch))
        agent = [sys.executable, str(REPOSITORY / "jobs/payload/agent.py"), str(folder / "launch.json")]
        with (folder / "log").open("wb") as log, subprocess.Popen(agent, stdout=log, stderr=log) as process:
            patience, beat = threading.Event(), self.store / f"runs/{run}/lane-0/heartbeat.json"
            while cut is not None and process.poll() is None:
                if beat.exists() and (json.loads(beat.read_bytes())["step"] or 0) >= cut:
                    process.send_signal(sign)
                    break
                patience.wait(0.02)
        result = self.store / f"runs/{run}/lane-0/result.json"
        assert result.exists(), self.log()
        return json.loads(result.read_bytes())

    def log(self) -> str:
        """What the newest session printed."""
        return (self.folder / f"toy-{self.attempts:04d}/log").read_text()

    def manifests(self, job: str = "toy") -> list[Path]:
        """Manifests by step."""
        return sorted(self.store.glob(f"jobs/{job}/manifests/*.json"))

    def newest(self, job: str = "toy") -> tuple[int, dict[str, str]]:
        """Step of the newest checkpoint, and its files by digest."""
        manifest = json.loads(self.manifests(job)[-1].read_bytes())
        return manifest["step"], {part["name"]: part["sha256"] for part in manifest["components"]}

    def metrics(self) -> Any:
        """Metrics of the newest checkpoint."""
        return json.loads(self.manifests()[-1].read_bytes())["metrics"]


def fork(arguments: list[str], variables: Mapping[str, str], log: Path) -> int:
    """Fork a process that is one rank of finetune.py, and return its id."""
    from jobs.payload.trainers import finetune

    with warnings.catch_warnings():
        # Python 3.12 warns of threads that do not survive a fork; those of pytest's workers are not needed there.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid:
        return pid
    code = 99
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update({**variables, "LOCAL_RANK": variables["RANK"]})
        # Progress bars lock what all forks of a test share: one that is killed while it draws would never give it back.
        # The two classes have a lock each once both were used.
        for name in ("tqdm", "tqdm.auto"):
            importlib.import_module(name).tqdm.set_lock(threading.RLock())
        # torch replaces the thread pool, which a fork loses, at its next use. Two threads that do so at once fail with
        # "Invalid thread pool!", so it is replaced while there is one.
        torch = importlib.import_module("torch")
        torch.set_num_threads(torch.get_num_threads())
        warnings.simplefilter("default")  # as in a program: libraries warn of each other
        code = finetune.main(arguments)
    except BaseException as error:  # noqa: BLE001 - the child must never go on as a test
        traceback.print_exc()
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def spawn(arguments: list[str], variables: Mapping[str, str], log: Path) -> int:
    """Start finetune.py as a program that is one rank, and return its id."""
    words = [sys.executable, str(REPOSITORY / "jobs/payload/trainers/finetune.py"), *arguments]
    out = [
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(
        words[0], words, {**os.environ, **variables, "LOCAL_RANK": variables["RANK"]}, file_actions=out
    )


@functools.cache
def accelerators() -> int:
    """Return how many this machine has."""
    import torch

    return int(torch.cuda.device_count())


def hidden(ranks: int) -> dict[str, str]:
    """Variables that hide this machine's accelerators where it has fewer than the ranks: then processors compute."""
    return {} if accelerators() >= ranks else {"CUDA_VISIBLE_DEVICES": ""}


def digest(path: Path) -> str:
    """Name a file's bytes: to show how two files differ takes pytest minutes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
