"""A training that is killed again and again, held to one that was left alone, bit for bit."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from benchmarks.trainer.cases import Case, make_model
from tests.lab.desk import Desk
from tests.lab.storm import STEPS_BETWEEN, weather


def measure_storm(options: argparse.Namespace, folder: Path) -> int:
    """Print what came of it; 1 unless losses and weights are those of the undisturbed training."""
    case = Case(options.shape, options.way, options.length, options.batch, deterministic=True)
    if not (folder / case.shape).exists():
        make_model(case.shape, folder / case.shape, longest=case.length, cpu=options.cpu)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return _compare(case, options, folder, Path(name))


def _compare(case: Case, options: argparse.Namespace, folder: Path, kept: Path) -> int:
    words = ["--lora", "16"] if case.way == "lora" else []
    words += ["--compile", "auto", "--length", str(case.length), "--batch", str(case.batch), "--accumulate", "1"]
    words += ["--report-every", "1", "--cache", str(folder / "cache")]
    steps = STEPS_BETWEEN * (options.kills + 1) + 1
    whole, stormy = (Desk(kept / name, folder / case.shape, *words, target=steps) for name in ("whole", "stormy"))
    alone = whole.run()
    if alone.codes != [0]:
        raise SystemExit(alone.said)
    began = time.monotonic()

    def notice(number: int, step: int) -> None:
        print(f"kill {number} of {options.kills} at step {step}, {time.monotonic() - began:.0f} s", flush=True)

    told, torn = weather(stormy, options.kills, notice)
    expected = {step: {loss} for step, loss in whole.losses() if loss is not None}
    losses, weights = told == expected, stormy.state() == whole.state()
    again = sum(len(desk) for desk in told.values())
    print(
        f"{case}: {options.kills} SIGKILLs, {torn} of them inside a save, {time.monotonic() - began:.0f} s; "
        f"{again} different losses of {len(expected)} steps, {'equal' if losses else 'NOT EQUAL'}; "
        f"weights and optimiser {'equal' if weights else 'NOT EQUAL'} to those of a training that was left alone"
    )
    return int(not (losses and weights))
