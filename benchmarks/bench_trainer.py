"""Our trainer against plain Hugging Face Trainer with PEFT: tokens a second and peak memory, on the same weights.

The weights are random, in the shape of the real model; each program runs in a process of its own. MFU counts (4 N for
an adapter, 6 N for all weights, plus 6 L h S) FLOP a token over --peak. The first steps of each are not counted. Needs
torch, transformers, peft and, for QLoRA, bitsandbytes, all of them already there: nothing is fetched.

    python3 benchmarks/bench_trainer.py --table                          (one H100 or H200: 12 minutes, 17 GB of disk)
    python3 benchmarks/bench_trainer.py --shape 6.7b --way lora          (one line of it)
    python3 benchmarks/bench_trainer.py --cpu                            (a tiny shape, to see that it runs)
    python3 benchmarks/bench_trainer.py --saves [--cpu]                  (what a save of all weights costs the training)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # started as a script

SHAPES = {  # hidden, layers, heads, intermediate, vocabulary
    "tiny": (64, 2, 4, 128, 512),
    "small": (512, 8, 8, 1376, 8192),
    "1.3b": (2048, 24, 16, 5504, 32256),
    "6.7b": (4096, 32, 32, 11008, 32256),
}
SAVES, APART = 3, 8  # of --saves: so many, so many steps from the end of one to the next
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
    """Tokens a second, bytes at the peak, and seconds from the command to the end of the first step."""

    speed: float
    peak: int
    first_step: float


TABLE = (
    Case("1.3b", "full", 2048, 4, theirs=False),
    Case("1.3b", "full", 2048, 8, theirs=False),
    Case("1.3b", "full", 2048, 4, theirs=False, deterministic=True),
    Case("6.7b", "lora", 2048, 4),
    Case("6.7b", "lora", 2048, 4, ours=True),
    Case("6.7b", "lora", 2048, 4, deterministic=True),
    Case("6.7b", "lora", 8192, 1),
    Case("6.7b", "lora", 16384, 1, ours=True),
    Case("6.7b", "qlora", 2048, 4, ours=True),
)


def main() -> int:
    """Measure both, print both and their ratio; 1 if ours is below --least."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--table", action="store_true", help="all cases of docs/fine-tuning.md, one after the other")
    parser.add_argument("--saves", action="store_true", help="saves of all weights, at once and in the background")
    parser.add_argument("--only", default="", metavar="TEXT", help="of the table only the cases that begin so")
    parser.add_argument("--shape", choices=SHAPES, default="1.3b")
    parser.add_argument("--way", choices=("lora", "qlora", "full"), default="lora")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpointing", choices=("on", "off"), default="off", help="ours")
    parser.add_argument("--baseline-checkpointing", choices=("on", "off"), default="on", help="theirs")
    parser.add_argument("--short-documents", action="store_true", help="several to a row, so that ours needs a mask")
    parser.add_argument("--peak", type=float, default=989.0, metavar="TFLOPS", help="of the device, dense 16 bit")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail below this ratio")
    parser.add_argument("--deterministic", action="store_true", help="ours pays for the same bits each time")
    parser.add_argument("--cpu", action="store_true", help="the tiny shape on the processor")
    parser.add_argument("--baseline-in", type=Path, help=argparse.SUPPRESS)  # the child process of the baseline
    options = parser.parse_args()
    if options.cpu:
        options.shape, options.length, options.batch = "tiny", 128, 2
    if options.saves and options.cpu:
        options.shape, options.length, options.batch = "small", 64, 1
    if options.baseline_in:
        return baseline(options, options.baseline_in)
    case = Case(
        options.shape,
        options.way,
        options.length,
        options.batch,
        options.checkpointing == "on",
        options.baseline_checkpointing == "on",
        options.deterministic,
    )
    cases = [each for each in TABLE if str(each).startswith(options.only)] if options.table else [case]
    with tempfile.TemporaryDirectory(prefix="bench-trainer-") as name:
        if options.saves:
            options.steps = 100  # rows for as many; then they come again
            compare_saves(case._replace(way="full", theirs=False), options, Path(name))
            return 0
        ratios = compare_all(cases, options, Path(name))
    return int(min(ratios) < options.least)


def compare_all(cases: list[Case], options: argparse.Namespace, folder: Path) -> list[float]:
    """Print each case as it ends; return its ratios. A baseline that several cases have is measured once."""
    baselines: dict[Case, Measured] = {}
    ratios = []
    for case in cases:
        model = folder / case.shape
        if not model.exists():
            prepare_model(case.shape, model, longest=max(each.length for each in cases), cpu=options.cpu)
        data = folder / f"data-{case.length}-{case.batch}"
        if not data.exists():
            prepare_data(case, options, data)
        common = case._replace(ours=False, deterministic=False)
        if common not in baselines:
            baselines[common] = measure_baseline(case, options, folder)
        theirs, ours = baselines[common], measure_ours(case, options, folder)
        print(case)
        for who, measured in (("Trainer + PEFT", theirs), ("finetune.py", ours)):
            print(
                f"{who:>15}: {measured.speed:9,.0f} tokens/s, MFU {100 * mfu(case, options, measured.speed):4.1f} %, "
                f"peak {measured.peak / 2**30:5.1f} GiB, first step after {measured.first_step:5.1f} s"
            )
        ratios.append(ours.speed / theirs.speed)
        print(f"{'ratio':>15}: {ratios[-1]:9.2f}", flush=True)
    return ratios


def compare_saves(case: Case, options: argparse.Namespace, folder: Path) -> None:
    """Print what saves cost that are written at once, and in the background."""
    prepare_model(case.shape, folder / case.shape, longest=case.length, cpu=options.cpu)
    prepare_data(case, options, folder / f"data-{case.length}-{case.batch}")
    print(f"{case.shape}, all weights, {case.length} x {case.batch}, {SAVES} saves each")
    for wish in ("off", "on"):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            told = watch_saves(case, folder, Path(name), wish)
        steps = [at for at, line in told if "step" in line]
        usual = statistics.median(after - before for before, after in itertools.pairwise(steps))
        blocked: list[float] = []
        whole: list[tuple[int, float, int]] = []
        for began, line in told:
            if "saving" not in line or line["saving"] in [seen for seen, _, _ in whole]:
                continue
            ended = next((at for at, later in told if later.get("saved") == line["saving"]), None)
            after = next((at for at in steps if at > began), None)
            if ended is not None and after is not None:
                blocked.append(after - max(at for at in steps if at <= began) - usual)
                whole.append((line["saving"], ended - began, sum(began < at <= ended for at in steps)))
        print(
            f"--background-saves {wish:>3}: a step takes {usual:.3f} s; a save blocks "
            f"{', '.join(f'{seconds:.2f}' for seconds in blocked)} s, is whole after "
            f"{', '.join(f'{seconds:.2f}' for _, seconds, _ in whole)} s, with "
            f"{', '.join(str(count) for _, _, count in whole)} steps meanwhile",
            flush=True,
        )


def watch_saves(case: Case, folder: Path, kept: Path, wish: str) -> list[tuple[float, dict[str, Any]]]:
    """Train, ask for saves, and return what was told of it with the seconds at which it was."""
    words = [*ours_of(case, folder), "--background-saves", wish]
    progress, asked, rest, left = kept / "progress", 0, b"", WARMING
    told: list[tuple[float, dict[str, Any]]] = []
    progress.touch()
    environment = {"SCHED_PROGRESS": str(progress), "SCHED_TARGET_STEP": "100000", "SCHED_CHECKPOINT_DIR": str(kept)}
    environment = {**os.environ, **environment, "SCHED_DATA_DIR": str(data_of(case, folder))}
    with (
        progress.open("rb") as source,
        (kept / "log").open("wb") as log,
        subprocess.Popen(words, env=environment, stdout=log, stderr=log) as process,
    ):
        while process.poll() is None and asked <= SAVES:
            lines = (rest + source.read()).split(b"\n")
            now, rest = time.monotonic(), lines.pop()
            for line in map(json.loads, lines):
                told.append((now, line))
                left -= "step" in line
                if "saved" in line:  # the first one makes what the others use again
                    for old in sorted(kept.glob("step-*"))[:-1]:
                        shutil.rmtree(old)
                    left = APART
                if not left:
                    asked += 1
                    left = -1
                    process.send_signal(signal.SIGTERM if asked > SAVES else signal.SIGUSR1)
            time.sleep(0.001)
        if process.wait():
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{(kept / 'log').read_text()}")
    return told


def mfu(case: Case, options: argparse.Namespace, speed: float) -> float:
    """Return the share of the device's peak that useful products take."""
    peak: float = options.peak * 1e12
    hidden, layers, _, between, words = SHAPES[case.shape]
    weights = 2 * words * hidden + layers * (4 * hidden**2 + 3 * hidden * between)
    each = (6 if case.way == "full" else 4) * weights + 6 * layers * hidden * case.length
    return float(speed * each / peak)


def prepare_model(shape: str, folder: Path, *, longest: int, cpu: bool) -> None:
    """Make a model's folder."""
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


def prepare_data(case: Case, options: argparse.Namespace, folder: Path) -> None:
    """Make the corpus of a case."""
    from tests.lab.desk import source_texts

    folder.mkdir()
    text = "\n".join(source_texts())
    piece = case.length // 3 if options.short_documents else 20 * case.length
    wanted = options.steps * case.batch * case.length * 8  # characters; a token has fewer than eight
    with (folder / "train-00000.jsonl").open("w") as file:
        for first in range(0, wanted, piece):
            start = first % max(1, len(text) - piece)
            file.write(json.dumps({"text": (text * (1 + piece // len(text)))[start : start + piece]}) + "\n")


def measure_ours(case: Case, options: argparse.Namespace, folder: Path) -> Measured:
    """Measure finetune.py."""
    words = ours_of(case, folder)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        kept = Path(name)
        more = {"SCHED_PROGRESS": str(kept / "progress"), "SCHED_TARGET_STEP": str(options.steps)}
        (kept / "progress").touch()
        first = run(words, data_of(case, folder), kept, more)
        told = [json.loads(line) for line in (kept / "progress").read_text().splitlines()]
        metrics = json.loads((kept / f"step-{options.steps:08d}/meta.json").read_bytes())["metrics"]
    return Measured(metrics["tokens_per_second"], max(line.get("gpu_memory_bytes", 0) for line in told), first)


def ours_of(case: Case, folder: Path) -> list[str]:
    """Return the command line of finetune.py for a case."""
    words = [sys.executable, str(REPOSITORY / "jobs/payload/trainers/finetune.py"), "--model", str(folder / case.shape)]
    words += ["--length", str(case.length), "--batch", str(case.batch), "--accumulate", "1", "--devices", "1"]
    words += ["--cache", str(folder / "cache"), "--report-every", "1", "--warmup", "1"]
    words += {"lora": ["--lora", str(RANK)], "qlora": ["--use-4bit", "--lora", str(RANK)], "full": []}[case.way]
    words += ["--gradient-checkpointing"] * case.ours + ["--deterministic"] * case.deterministic
    return words


def measure_baseline(case: Case, options: argparse.Namespace, folder: Path) -> Measured:
    """Measure plain Trainer."""
    words = [sys.executable, str(Path(__file__).resolve()), "--baseline-in", str(folder)]
    for name in ("shape", "way", "length", "batch"):
        words += [f"--{name}", str(getattr(case, name))]
    words += ["--steps", str(options.steps), "--baseline-checkpointing", "on" if case.theirs else "off"]
    began = time.time()
    run(words, data_of(case, folder), folder / "theirs", {})
    speed, peak, first = json.loads((folder / "baseline.json").read_bytes())
    return Measured(speed, peak, first - began)


def data_of(case: Case, folder: Path) -> Path:
    """Return where the corpus of a case lies."""
    return folder / f"data-{case.length}-{case.batch}"


def run(words: list[str], data: Path, kept: Path, more: dict[str, str]) -> float:
    """Run a program on a corpus and return the seconds until its first step; what it printed is shown if it fails."""
    environment = {**os.environ, "SCHED_DATA_DIR": str(data), "SCHED_CHECKPOINT_DIR": str(kept), **more}
    progress, first, began = more.get("SCHED_PROGRESS"), 0.0, time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        with subprocess.Popen(words, env=environment, stdout=said, stderr=said, text=True) as process:
            while process.poll() is None and progress is not None and not first:
                time.sleep(0.02)
                if '"step": 1,' in Path(progress).read_text():
                    first = time.monotonic() - began
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{said.read()}")
    return first


def baseline(options: argparse.Namespace, folder: Path) -> int:
    """Train with transformers' Trainer as its documentation shows it: autocast, fused AdamW."""
    import torch
    import transformers
    from peft import LoraConfig, get_peft_model

    accelerated = torch.cuda.is_available()
    source = folder / options.shape
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    data = Path(os.environ["SCHED_DATA_DIR"])
    text = "\n".join(json.loads(line)["text"] for line in (data / "train-00000.jsonl").open())
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
    model = transformers.AutoModelForCausalLM.from_pretrained(source, **loading)
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
            ends.append(time.time())

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "theirs"),
        max_steps=options.steps,
        per_device_train_batch_size=options.batch,
        bf16=accelerated,
        use_cpu=not accelerated,
        gradient_checkpointing=options.baseline_checkpointing == "on",
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
    (folder / "baseline.json").write_text(json.dumps([speed, peak, ends[0]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
