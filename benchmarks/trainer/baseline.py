"""Plain Trainer with PEFT, as their documentation shows them, in a process of its own."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.trainer.cases import RANK, REPOSITORY, WARMING, Case, Measured, data_of, run


def measure_baseline(case: Case, steps: int, folder: Path) -> Measured:
    """Measure plain Trainer."""
    words = [sys.executable, str(REPOSITORY / "benchmarks/bench_trainer.py"), "--baseline-in", str(folder)]
    for name in ("shape", "way", "length", "batch"):
        words += [f"--{name}", str(getattr(case, name))]
    words += ["--steps", str(steps), "--baseline-checkpointing", "on" if case.theirs else "off"]
    began = time.time()
    run(words, data_of(case, folder), folder / "theirs", {})
    speed, peak, first = json.loads((folder / "baseline.json").read_bytes())
    return Measured(speed, peak, first - began)


def baseline(options: argparse.Namespace, folder: Path) -> int:
    """Train with transformers' Trainer: autocast, fused AdamW."""
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
