"""A script of one's own: it fits a line to noisy points and is resumed exactly wherever it is cut."""

import argparse
import json
import random
import time

from rehearsal_points import point
from rehearsal_rates import warm
from trainer_kit import Training

parser = argparse.ArgumentParser()
parser.add_argument("--pace", type=float, help="Steps a second, as of a device of that speed.")
pace = parser.parse_args().pace

training = Training()
chance = random.Random(training.seed)
step, slope, offset, loss = 0, 0.0, 0.0, 1.0
if training.resume_dir:
    step, slope, offset, loss, (version, numbers, rest) = json.loads((training.resume_dir / "state.json").read_text())
    chance.setstate((version, tuple(numbers), rest))


def write(folder):
    (folder / "state.json").write_text(json.dumps([step, slope, offset, loss, chance.getstate()]))


training.progress(step)
due = time.monotonic()
while step < training.target_step and not training.should_stop:
    if training.should_save:
        training.checkpoint(step, write, {"loss": loss})
    x, y = point(chance)
    error = slope * x + offset - y
    rate = warm(step, 100, 0.02)
    slope, offset = slope - rate * error * x, offset - rate * error
    loss, step = 0.99 * loss + 0.01 * error * error, step + 1
    training.progress(step, loss=loss)
    if pace:
        due += 1 / pace
        time.sleep(max(0.0, due - time.monotonic()))
training.checkpoint(step, write, {"loss": loss})
