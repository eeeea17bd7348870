"""A loop of one's own, in plain Python: a line is fitted to noisy points, and resumed bit for bit wherever it is cut.

    schedctl submit train.py --target-step 200000 -- --rate 0.01

At a desk: put trainer_kit.py beside it (jobs/payload/trainers/trainer_kit.py), and run ``python train.py``.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import TYPE_CHECKING

from trainer_kit import Training

if TYPE_CHECKING:
    from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.01)
options = parser.parse_args()

training = Training()
chance = random.Random(training.seed)
step, slope, offset, loss = 0, 0.0, 0.0, 0.0
if training.resume_dir:  # what decides the next step: the model, its loss so far, and the random numbers
    step, slope, offset, loss, (version, numbers, rest) = json.loads((training.resume_dir / "state.json").read_text())
    chance.setstate((version, tuple(numbers), rest))


def write(folder: Path) -> None:
    """Put into a folder all that decides the next step."""
    (folder / "state.json").write_text(json.dumps([step, slope, offset, loss, chance.getstate()]))


training.progress(step)
while step < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(step, write, {"loss": loss})
    x = chance.uniform(-1, 1)
    error = slope * x + offset - (3 * x + 1 + chance.gauss(0, 0.1))
    slope, offset = slope - options.rate * error * x, offset - options.rate * error
    loss, step = 0.99 * loss + 0.01 * error * error, step + 1
    training.progress(step, loss=loss)
    if step % 10_000 == 0:
        print(f"step {step} slope {slope:.3f} offset {offset:.3f} loss {loss:.4f}", flush=True)
training.checkpoint(step, write, {"loss": loss})
