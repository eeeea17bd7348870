"""What is measured: cases in the shapes of real models with random weights, their corpora, and finetune.py on them."""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PROGRAM = REPOSITORY / "jobs/payload/trainers/finetune.py"
SHAPES = {  # hidden, layers, heads, intermediate, vocabulary
    "tiny": (64, 2, 4, 128, 512),
    "small": (512, 8, 8, 1376, 8192),
    "1.3b": (2048, 24, 16, 5504, 32256),
    "6.7b": (4096, 32, 32, 11008, 32256),
    "27b": (5120, 48, 40, 27648, 152064),
}
WARMING = 5  # steps that are not counted
RANK = 16


class Case(NamedTuple):
    """What is trained: ``checkpointing`` of ours and of theirs, and whether ours pays for the same bits each time."""

    shape: str
    way: str
    length: int
    batch: int
    ours: bool = False
    theirs: bool = True
    deterministic: bool = False

    def __str__(self) -> str:
        said = f"{self.shape} {self.way} {self.length} x {self.batch}"
        return said + ", checkpointing" * self.ours + ", deterministic" * self.deterministic


class Measured(NamedTuple):
    """Tokens a second, bytes at the peak, seconds from the command to the first step's end, and what was printed."""

    speed: float
    peak: int
    first_step: float
    said: str = ""
    held_out_loss: float = math.nan


def mfu(case: Case, peak: float, speed: float) -> float:
    """Return the share of the device's ``peak``, in TFLOP/s, that useful products take."""
    hidden, layers, _, between, words = SHAPES[case.shape]
    weights = 2 * words * hidden + layers * (4 * hidden**2 + 3 * hidden * between)
    each = (6 if case.way == "full" else 4) * weights + 6 * layers * hidden * case.length
    return speed * each / (peak * 1e12)


def prepare(case: Case, options: argparse.Namespace, folder: Path, *, longest: int = 0) -> None:
    """Make model and corpus of a case in ``folder``, unless they are there."""
    model, data = folder / case.shape, data_of(case, folder)
    if not model.exists():
        make_model(case.shape, model, longest=max(longest, case.length), cpu=options.cpu)
    if not data.exists():
        _make_data(case, options, data)


def make_model(shape: str, folder: Path, *, longest: int, cpu: bool) -> None:
    """Make the folder of a model."""
    import torch
    import transformers

    from tests.lab.desk import make_tokenizer

    tokenizer = make_tokenizer(folder)
    hidden, layers, heads, between, words = SHAPES[shape]
    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=between,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max(4096, longest),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cpu" if cpu else "cuda"):  # random numbers for 6.7B take a processor minutes
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    del model
    if not cpu:
        torch.cuda.empty_cache()  # this process lives on beside those that are measured


def _make_data(case: Case, options: argparse.Namespace, folder: Path) -> None:
    from tests.lab.desk import source_texts

    folder.mkdir()
    text = "\n".join(source_texts())
    # Of long documents hardly a row holds the ends of several, which would need a mask and be slower.
    piece = case.length // 3 if options.short_documents else 200 * case.length
    wanted = options.steps * case.batch * case.length * 8  # characters; a token has fewer than eight
    with (folder / "train-00000.jsonl").open("w") as file:
        for first in range(0, wanted, piece):
            start = first % max(1, len(text) - piece)
            file.write(json.dumps({"text": (text * (1 + piece // len(text)))[start : start + piece]}) + "\n")


def data_of(case: Case, folder: Path) -> Path:
    """Return where the corpus of a case lies."""
    return folder / f"data-{case.length}-{case.batch}"


def ours_of(case: Case, folder: Path, devices: int = 1) -> list[str]:
    """Return the command line of finetune.py for a case, of which each device has a batch."""
    words = [sys.executable, str(PROGRAM), "--model", str(folder / case.shape), "--length", str(case.length)]
    words += ["--batch", str(case.batch), "--accumulate", str(devices), "--devices", str(devices)]
    words += ["--cache", str(folder / "cache"), "--report-every", "1", "--warmup", "1"]
    words += {"lora": ["--lora", str(RANK)], "qlora": ["--use-4bit", "--lora", str(RANK)], "full": []}[case.way]
    words += ["--gradient-checkpointing"] * case.ours + ["--deterministic"] * case.deterministic
    return words


def measure_ours(
    case: Case,
    steps: int,
    folder: Path,
    *more: str,
    devices: int = 1,
    environment: dict[str, str] | None = None,
    keep: Path | None = None,
) -> Measured:
    """Measure finetune.py on a case, with ``more`` options; what it saved last is moved to ``keep``."""
    words = [*ours_of(case, folder, devices), *more]
    with tempfile.TemporaryDirectory(dir=folder) as name:
        kept = Path(name)
        told_to = {"SCHED_PROGRESS": str(kept / "progress"), "SCHED_TARGET_STEP": str(steps), **(environment or {})}
        (kept / "progress").touch()
        first, said = run(words, data_of(case, folder), kept, told_to)
        lines = [json.loads(line) for line in (kept / "progress").read_text().splitlines()]
        metrics = json.loads((kept / f"step-{steps:08d}/meta.json").read_bytes())["metrics"]
        if keep is not None:
            (kept / f"step-{steps:08d}").rename(keep)
    peak = max(line.get("gpu_memory_bytes", 0) for line in lines)
    speed, loss = metrics.get("tokens_per_second", 0.0), metrics.get("held_out_loss", math.nan)
    return Measured(speed, peak, first, said, loss)


def run(words: list[str], data: Path, kept: Path, more: dict[str, str]) -> tuple[float, str]:
    """Run a program on a corpus and return the seconds until its first step, and what it printed.

    Ends with that if it fails.
    """
    environment = {**os.environ, "SCHED_DATA_DIR": str(data), "SCHED_CHECKPOINT_DIR": str(kept), **more}
    progress, first, began = more.get("SCHED_PROGRESS"), 0.0, time.monotonic()
    with tempfile.TemporaryFile("w+") as printed:
        with subprocess.Popen(words, env=environment, stdout=printed, stderr=printed, text=True) as process:
            while process.poll() is None and progress is not None and not first:
                time.sleep(0.02)
                if '"step": 1,' in Path(progress).read_text():
                    first = time.monotonic() - began
        printed.seek(0)
        said = printed.read()
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{said}")
    return first, said
