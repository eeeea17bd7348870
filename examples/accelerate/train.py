"""A loop of Hugging Face's Accelerate, resumed exactly: ``save_state`` and ``load_state`` keep all that it prepared.

    schedctl submit train.py --target-step 20000 -- --rate 1e-3

At a desk: put trainer_kit.py beside it (jobs/payload/trainers/trainer_kit.py), and run ``python train.py``.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from trainer_kit import Training

if TYPE_CHECKING:
    from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=1e-3)
parser.add_argument("--batch", type=int, default=128)
options = parser.parse_args()


class Steps:
    """The number of steps that are done. Registered below, it is saved and loaded with the rest."""

    done = 0

    def state_dict(self) -> dict[str, int]:
        """Return what is saved."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Take back what was saved."""
        self.done = state["done"]


training, steps, accelerator = Training(), Steps(), Accelerator()
set_seed(training.seed)
model = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Dropout(0.1), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimiser = torch.optim.AdamW(model.parameters(), lr=options.rate)
schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda done: min(1.0, (done + 1) / 100))
model, optimiser, schedule = accelerator.prepare(model, optimiser, schedule)
accelerator.register_for_checkpointing(steps)
if training.resume_dir:
    accelerator.load_state(str(training.resume_dir))


def write(folder: Path) -> None:
    """Put into a folder all that decides the next step: weights, optimiser, schedule, random state, step."""
    accelerator.save_state(str(folder))


loss = torch.tensor(0.0)
training.progress(steps.done)
while steps.done < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(steps.done, write, {"loss": loss.item()})
    points = torch.rand(options.batch, 2, device=accelerator.device)
    loss = torch.nn.functional.mse_loss(model(points).squeeze(1), torch.sin(6 * points).prod(dim=1))
    accelerator.backward(loss)
    optimiser.step()
    schedule.step()
    optimiser.zero_grad()
    steps.done += 1
    training.progress(steps.done, loss=loss.item())
    if steps.done % 500 == 0:
        print(f"step {steps.done} loss {loss.item():.5f}", flush=True)
training.checkpoint(steps.done, write, {"loss": loss.item()})
