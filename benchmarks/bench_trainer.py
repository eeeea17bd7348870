"""Our trainer against plain Hugging Face Trainer with PEFT: tokens a second and peak memory, on the same weights.

The weights are random, in the shape of the real model; each program runs in a process of its own. MFU counts (4 N for
an adapter, 6 N for all weights, plus 6 L h S) FLOP a token over --peak. The first steps of each are not counted. Needs
torch, transformers, peft and, for --way qlora, bitsandbytes, all of them already there: nothing is fetched.

    python3 benchmarks/bench_trainer.py --shape 6.7b --way lora          (one H200: a few minutes, 14 GB of disk)
    python3 benchmarks/bench_trainer.py --cpu                            (a tiny shape, to see that it runs)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # started as a script

SHAPES = {  # hidden, layers, heads, intermediate, vocabulary
    "tiny": (64, 2, 4, 128, 512),
    "1.3b": (2048, 24, 16, 5504, 32256),
    "6.7b": (4096, 32, 32, 11008, 32256),
}
WARMING = 5  # steps that are not counted
RANK = 16


def main() -> int:
    """Measure both, print both and their ratio; 1 if ours is below --least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="1.3b")
    parser.add_argument("--way", choices=("lora", "qlora", "full"), default="lora")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--checkpointing", choices=("on", "off"), default="off", help="ours; the baseline's is on")
    parser.add_argument("--short-documents", action="store_true", help="several to a row, so that ours needs a mask")
    parser.add_argument("--peak", type=float, default=989.0, metavar="TFLOPS", help="of the device, dense 16 bit")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail below this ratio")
    parser.add_argument("--deterministic", action="store_true", help="ours pays for the same bits each time")
    parser.add_argument("--cpu", action="store_true", help="the tiny shape on the processor")
    parser.add_argument("--baseline-in", type=Path, help=argparse.SUPPRESS)  # the child process of the baseline
    options = parser.parse_args()
    if options.cpu:
        options.shape, options.length, options.batch = "tiny", 128, 2
    if options.baseline_in:
        return baseline(options, options.baseline_in)
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        folder = Path(name)
        prepare(options, folder)
        theirs, ours = measure_baseline(folder), measure_ours(options, folder)
    for who, (speed, peak) in (("Trainer + PEFT", theirs), ("finetune.py", ours)):
        print(
            f"{who:>15}: {speed:9,.0f} tokens/s, MFU {100 * mfu(options, speed):4.1f} %, peak {peak / 2**30:5.1f} GiB",
            flush=True,
        )
    ratio = ours[0] / theirs[0]
    print(f"{options.shape} {options.way} {options.length} x {options.batch}: ratio {ratio:.2f}")
    return int(ratio < options.least)


def mfu(options: argparse.Namespace, speed: float) -> float:
    """Return the share of the device's peak that useful products take."""
    peak: float = options.peak * 1e12
    hidden, layers, _, between, words = SHAPES[options.shape]
    weights = 2 * words * hidden + layers * (4 * hidden**2 + 3 * hidden * between)
    each = (6 if options.way == "full" else 4) * weights + 6 * layers * hidden * options.length
    return float(speed * each / peak)


def prepare(options: argparse.Namespace, folder: Path) -> None:
    """Make the model's folder and the corpus."""
    import torch
    import transformers

    from tests.lab.desk import make_tokenizer, source_texts

    tokenizer = make_tokenizer(folder / "model")
    hidden, layers, heads, between, words = SHAPES[options.shape]
    config = transformers.LlamaConfig(
        vocab_size=words,
        hidden_size=hidden,
        intermediate_size=between,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=max(4096, options.length),
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device("cpu" if options.cpu else "cuda"):  # random numbers for 6.7B take a processor minutes
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(folder / "model")
    (folder / "data").mkdir()
    text = "\n".join(source_texts())
    piece = options.length // 3 if options.short_documents else 20 * options.length
    wanted = options.steps * options.batch * options.length * 8  # characters; a token has fewer than eight
    with (folder / "data/train-00000.jsonl").open("w") as file:
        for first in range(0, wanted, piece):
            start = first % max(1, len(text) - piece)
            file.write(json.dumps({"text": (text * (1 + piece // len(text)))[start : start + piece]}) + "\n")
    (folder / "options.json").write_text(json.dumps(vars(options), default=str))


def measure_ours(options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Return tokens a second and the peak of memory of finetune.py."""
    words = [sys.executable, str(REPOSITORY / "jobs/payload/trainers/finetune.py"), "--model", str(folder / "model")]
    words += ["--length", str(options.length), "--batch", str(options.batch), "--accumulate", "1", "--devices", "1"]
    words += ["--cache", str(folder / "cache"), "--report-every", "1", "--warmup", "1"]
    words += {"lora": ["--lora", str(RANK)], "qlora": ["--use-4bit", "--lora", str(RANK)], "full": []}[options.way]
    words += ["--gradient-checkpointing"] * (options.checkpointing == "on")
    words += ["--deterministic"] * options.deterministic
    run(words, folder, {"SCHED_PROGRESS": str(folder / "progress"), "SCHED_TARGET_STEP": str(options.steps)})
    told = [json.loads(line) for line in (folder / "progress").read_text().splitlines()]
    metrics = json.loads((folder / f"checkpoints/step-{options.steps:08d}/meta.json").read_bytes())["metrics"]
    return metrics["tokens_per_second"], max(line.get("gpu_memory_bytes", 0) for line in told)


def measure_baseline(folder: Path) -> tuple[float, float]:
    """Return the same of the baseline."""
    given = json.loads((folder / "options.json").read_bytes())
    words = [sys.executable, str(Path(__file__).resolve()), "--baseline-in", str(folder)]
    for name in ("shape", "way", "length", "batch", "steps"):
        words += [f"--{name}", str(given[name])]
    run(words, folder, {})
    speed, peak = json.loads((folder / "baseline.json").read_bytes())
    return speed, peak


def run(words: list[str], folder: Path, more: dict[str, str]) -> None:
    """Run a program on the corpus; what it printed is shown if it fails."""
    environment = {
        **os.environ,
        "SCHED_DATA_DIR": str(folder / "data"),
        "SCHED_CHECKPOINT_DIR": str(folder / "checkpoints"),
    }
    ended = subprocess.run(words, env={**environment, **more}, cwd=folder, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)} ended with status {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")


def baseline(options: argparse.Namespace, folder: Path) -> int:
    """Train with transformers' Trainer as its documentation shows it: autocast, fused AdamW, checkpointing."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    accelerated = torch.cuda.is_available()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    text = "\n".join(json.loads(line)["text"] for line in (folder / "data/train-00000.jsonl").open())
    tokens = tokenizer(text, verbose=False)["input_ids"]
    count = len(tokens) // options.length
    rows = torch.tensor(tokens[: count * options.length]).reshape(count, options.length)
    loading: dict[str, Any] = {"dtype": torch.float32 if options.way == "full" else torch.bfloat16}
    if options.way == "qlora":
        loading["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", **loading)
    if options.way != "full":
        model.enable_input_require_grads()
        model = get_peft_model(
            model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    ends: list[float] = []

    class Stopwatch(transformers.TrainerCallback):  # type: ignore[misc]  # not there where types are checked
        def on_step_end(self, *_: Any, **__: Any) -> None:
            """Note when a step was really over."""
            if accelerated:
                torch.cuda.synchronize()
            ends.append(time.perf_counter())

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "theirs"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        bf16=accelerated,
        use_cpu=not accelerated,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch_fused" if accelerated else "adamw_torch",
        save_strategy="no",
        logging_steps=10,
        report_to="none",
        disable_tqdm=True,
    )
    dataset = [{"input_ids": row, "labels": row} for row in rows]
    transformers.Trainer(model, arguments, train_dataset=dataset, callbacks=[Stopwatch()]).train()
    steps = [after - before for before, after in itertools.pairwise(ends)][WARMING - 1 :]
    speed = options.batch * options.length / statistics.median(steps)
    peak = torch.cuda.max_memory_allocated() if accelerated else 0
    (folder / "baseline.json").write_text(json.dumps([speed, peak]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
