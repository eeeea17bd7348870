"""Record held-out curves of real trainings: the character model on this repository's own texts, by many recipes.

Writes `tests/lab/curves.json`, which `bench_forecast.py` reads: widths, batches, rates, schedules and amounts of text
differ, so that some curves still fall at their end, some are flat and some rise again.

    python benchmarks/curves_record.py [--steps 3000] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from jobs.payload.trainers.charlm import BLOCK_STEPS, CharModel, CharShape, Stream, held_out_sample

ROOT = Path(__file__).resolve().parents[1]
CHECKPOINTS = 40


def corpus(folder: Path, texts: int) -> None:
    """Write so many texts of the repository for training, and others that are held out."""
    names = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = sorted(names.stdout.split())
    random.Random(3).shuffle(files)
    for name, some in (("heldout", files[:30]), ("train-0", files[30 : 30 + texts])):
        rows = (json.dumps({"text": (ROOT / one).read_text("utf-8")[:20_000]}) for one in some)
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n", "utf-8")


def curve(
    folder: Path, width: int, batch: int, rate: float, final_rate: float, steps: int, seed: int
) -> list[list[float]]:
    """Return (step, held-out loss) of one training; the rate falls as a cosine to a share of itself."""
    generator = np.random.default_rng(seed)
    model, stream = CharModel(CharShape(16, 16, width), generator), Stream(folder, seed, 16)
    held_out = held_out_sample(folder, 16)
    if held_out is None:
        raise SystemExit("the held-out text is too short")
    stream.seek(0)
    points = []
    for step in range(1, steps + 1):
        if step % BLOCK_STEPS == 0:
            stream.seek(stream.position + 1)
        lower = final_rate + (1 - final_rate) * 0.5 * (1 + math.cos(math.pi * step / steps))
        model.learn(stream.batch(generator, batch), step, rate * lower * min(1.0, step / 100))
        if step % (steps // CHECKPOINTS) == 0:
            points.append([step, round(model.loss(held_out), 5)])
    return points


def main() -> int:
    """Record all curves."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    steps = options.steps
    curves = {}
    for texts in (400, 6):
        with TemporaryDirectory() as folder:
            corpus(Path(folder), texts)
            recipes = product((24, 128), (16, 64), (5e-4, 2e-3, 8e-3), (1.0, 0.1))
            for seed, (width, batch, rate, final_rate) in enumerate(recipes, options.seed):
                name = f"{texts} texts, width {width}, batch {batch}, rate {rate:g}{', cosine' * (final_rate < 1)}"
                curves[name] = curve(Path(folder), width, batch, rate, final_rate, steps, seed)
                print(name, curves[name][-1], flush=True)
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(points)}" for name, points in curves.items())
    (ROOT / "tests/lab/curves.json").write_text(f"{{\n{rows}\n}}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
