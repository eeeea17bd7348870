"""Fine-tune a causal language model with Hugging Face's Trainer: all its weights, or a LoRA adapter on frozen ones.

Needs torch, transformers and, for ``--lora``, peft, as the images of Kaggle and SageMaker bring them. Reads
``train-*.jsonl`` and ``heldout.jsonl`` (one ``{"text": ...}`` a line) below SCHED_DATA_DIR. On the same device and
software ``--deterministic`` resumes bit for bit: rows are made in a fixed order, and saves fall between two steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Before CUDA is loaded: without a workspace of fixed size its sums depend on the moment.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, set_seed

if TYPE_CHECKING or __package__:
    from .trainer_callback import SchedulerCallback
    from .trainer_kit import EXIT_DATA, NO_CORPUS, Training
else:
    from trainer_callback import SchedulerCallback
    from trainer_kit import EXIT_DATA, NO_CORPUS, Training

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HELD_OUT_ROWS = 32
_BF16_CAPABILITY = (8, 0)  # older cards say that they can, and crawl


class UnreadableData(Exception):
    """The corpus is missing or too small for one row."""


class Rows(Dataset):  # type: ignore[misc]  # torch is not there where types are checked
    """Rows of ``length`` tokens, in the order of the files: text after text, an end token between."""

    def __init__(self, texts: Iterator[str], tokenizer: Any, length: int, rows_max: int | None = None) -> None:
        tokens: list[int] = []
        for text in texts:
            tokens += [*tokenizer(text, verbose=False)["input_ids"], tokenizer.eos_token_id]
            if rows_max is not None and len(tokens) >= rows_max * length:
                break
        count = len(tokens) // length if rows_max is None else min(rows_max, len(tokens) // length)
        self.rows = torch.tensor(tokens[: count * length], dtype=torch.int32).reshape(count, length)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a row as the model takes it."""
        row = self.rows[index].long()
        return {"input_ids": row, "labels": row}


class HeldOutLoss:
    """Mean loss on rows that are never trained on; draws no random number and leaves the model as it was."""

    def __init__(self, rows: Rows, batch: int) -> None:
        self._rows, self._batch = rows.rows, batch

    def __call__(self, model: Any) -> float:
        """Return the loss in nats a token."""
        training = model.training
        model.eval()
        device = next(model.parameters()).device
        losses = []
        with torch.no_grad():
            for batch in self._rows.split(self._batch):
                tokens = batch.long().to(device)
                losses.append(float(model(input_ids=tokens, labels=tokens).loss) * len(batch))
        model.train(training)
        return sum(losses) / len(self._rows)


def texts(folder: Path, pattern: str) -> Iterator[str]:
    """Yield the texts of a corpus in a fixed order; what is no record is passed over."""
    for path in sorted(folder.glob(pattern)):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                try:
                    text = json.loads(line)["text"]
                except (ValueError, KeyError, TypeError):
                    continue
                if isinstance(text, str) and text:
                    yield text


def precision() -> str:
    """Return what this machine computes in: bf16 where the device has units for it, else fp16; fp32 without one."""
    if not torch.cuda.is_available():
        return "fp32"
    return "bf16" if torch.cuda.get_device_capability() >= _BF16_CAPABILITY else "fp16"


def check_recipe(resume: Path | None, recipe: dict[str, Any]) -> None:
    """Refuse to go on from a checkpoint that was made in another way: its data position would mean other rows."""
    if resume is None or not (resume / "recipe.json").exists():
        return
    before = json.loads((resume / "recipe.json").read_bytes())
    changed = sorted(name for name in before.keys() | recipe.keys() if before.get(name) != recipe.get(name))
    if changed:
        told = ", ".join(f"{name} was {before.get(name)} and is {recipe.get(name)}" for name in changed)
        raise SystemExit(f"finetune: the checkpoint was made otherwise: {told}. Train under a new job name")


class Recorded(SchedulerCallback):
    """Puts the recipe beside every checkpoint."""

    def __init__(self, training: Training, held_out: HeldOutLoss | None, recipe: dict[str, Any]) -> None:
        super().__init__(training, held_out)
        self._recipe = recipe

    def on_save(self, args: Any, state: Any, control: Any, model: Any = None, **others: Any) -> None:
        """Write the recipe, then hand over."""
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            (folder / "recipe.json").write_text(json.dumps(self._recipe))
        super().on_save(args, state, control, model=model, **others)


def check_parent(parent: Path | None, options: argparse.Namespace) -> None:
    """Refuse weights of another kind than are trained here: an adapter belongs to the base that it was trained on."""
    if parent is None:
        return
    kind = "an adapter" if (parent / "adapter_config.json").exists() else "a whole model"
    if (kind == "an adapter") != bool(options.lora):
        told = "with --lora 0" if kind == "a whole model" else "with --lora and its rank"
        raise SystemExit(f"finetune: the parent's checkpoint is {kind}. Train this job {told} as well")


def make_model(options: argparse.Namespace, parent: Path | None) -> Any:
    """Return the model to train: 32-bit weights, or frozen ones with an adapter; those of ``parent`` to begin with."""
    trained = parent if parent is not None and not options.lora else options.model
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    model.config.use_cache = False
    if not options.lora:
        return model
    from peft import LoraConfig, PeftModel, get_peft_model

    if parent is not None:
        return PeftModel.from_pretrained(model, parent, is_trainable=True)
    adapter = LoraConfig(
        r=options.lora,
        lora_alpha=2 * options.lora,
        lora_dropout=options.dropout,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, adapter)


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Fine-tune a causal language model.")
    parser.add_argument("--model", required=True, help="name or folder of a pretrained model with its tokenizer")
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter of this rank; 0: all")
    parser.add_argument("--dropout", type=float, default=0.05, help="dropout of the adapter")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row")
    parser.add_argument("--batch", type=int, default=4, help="rows at a time on a device")
    parser.add_argument("--accumulate", type=int, default=8, help="batches a step")
    parser.add_argument("--rate", type=float, default=2e-4, help="highest learning rate")
    parser.add_argument("--warmup", type=int, default=100, help="steps until it is reached")
    parser.add_argument("--report-every", type=int, default=10, metavar="STEPS", help="steps between losses")
    parser.add_argument("--gradient-checkpointing", action="store_true", help="less memory for more time")
    parser.add_argument("--deterministic", action="store_true", help="the same bits each time, some steps slower")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train until the target step, or until asked to stop."""
    options = read_options(arguments)
    training = Training()
    set_seed(training.seed)
    torch.use_deterministic_algorithms(options.deterministic)
    recipe = {
        name: getattr(options, name)
        for name in ("model", "lora", "dropout", "length", "batch", "accumulate", "rate", "warmup")
    }
    check_recipe(training.resume_dir, recipe)
    check_parent(training.parent_dir, options)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    rows = Rows(texts(training.data_dir, "train-*.jsonl"), tokenizer, options.length)
    if not len(rows):
        print(f"finetune: {training.data_dir} has no row of {options.length} tokens. {NO_CORPUS}", file=sys.stderr)
        return EXIT_DATA
    held = Rows(texts(training.data_dir, "heldout.jsonl"), tokenizer, options.length, HELD_OUT_ROWS)
    scheduled = Recorded(training, HeldOutLoss(held, options.batch) if len(held) else None, recipe)
    computes = precision()
    trainer = Trainer(
        model=make_model(options, training.parent_dir),
        args=TrainingArguments(
            output_dir="trainer",
            max_steps=training.target_step,
            per_device_train_batch_size=options.batch,
            gradient_accumulation_steps=options.accumulate,
            learning_rate=options.rate,
            lr_scheduler_type="cosine",
            warmup_steps=options.warmup,
            optim="adamw_torch",
            bf16=computes == "bf16",
            fp16=computes == "fp16",
            gradient_checkpointing=options.gradient_checkpointing,
            dataloader_drop_last=True,
            logging_steps=options.report_every,
            logging_nan_inf_filter=False,  # a loss that is no number is told, and ends the session
            save_strategy="no",
            seed=training.seed,
            data_seed=training.seed,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=rows,
        callbacks=[scheduled],
    )
    trainer.train(resume_from_checkpoint=scheduled.resume_from)
    return 0


if __name__ == "__main__":
    sys.exit(main())
