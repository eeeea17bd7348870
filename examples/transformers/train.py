"""Hugging Face's Trainer with one callback: it saves when the agent asks, and goes on where it was cut.

    schedctl submit train.py --target-step 2000

The model is a small one made here, so that the example runs anywhere; put your own and your own rows in its place. At a
desk: put trainer_kit.py and trainer_callback.py beside it (jobs/payload/trainers), and run ``python train.py``.
"""

from __future__ import annotations

import argparse

import torch
from trainer_callback import SchedulerCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--length", type=int, default=32)
options = parser.parse_args()


class Counting(torch.utils.data.Dataset):  # type: ignore[misc]  # not there where types are checked
    """Rows of numbers that count up, each from another place."""

    def __len__(self) -> int:
        """Return the number of rows."""
        return 4_096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Return one row."""
        row = (torch.arange(options.length) + index) % 64
        return {"input_ids": row, "labels": row}


scheduled = SchedulerCallback()
set_seed(scheduled.seed)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=64, n_positions=options.length, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
)
arguments = TrainingArguments(
    "trainer",
    max_steps=scheduled.target_step,
    per_device_train_batch_size=8,
    learning_rate=options.rate,
    lr_scheduler_type="constant",  # one that depends on the target would change with it
    save_strategy="no",  # when to save is the agent's to say
    logging_steps=10,
    logging_nan_inf_filter=False,
    report_to="none",
    disable_tqdm=True,
    seed=scheduled.seed,
)
Trainer(model, arguments, train_dataset=Counting(), callbacks=[scheduled]).train(
    resume_from_checkpoint=scheduled.resume_from
)
