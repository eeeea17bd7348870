"""A training that is killed again and again, held to one that was left alone, bit for bit."""

from __future__ import annotations

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.trainer.cases import Case, make_model
from tests.lab.desk import Desk
from tests.lab.storm import STEPS_BETWEEN, Weathered, weather


def measure_storm(options: argparse.Namespace, folder: Path) -> int:
    """Print what came of it; 1 unless each went on from a save, with an undisturbed one's losses and weights."""
    case = Case(options.shape, options.way, options.length, options.batch, deterministic=True)
    if not (folder / case.shape).exists():
        make_model(case.shape, folder / case.shape, longest=case.length, cpu=options.cpu)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        return _compare(case, options, folder, Path(name))


def _compare(case: Case, options: argparse.Namespace, folder: Path, kept: Path) -> int:
    words = ["--lora", "16"] if case.way == "lora" else []
    words += ["--compile", "auto", "--length", str(case.length), "--batch", str(case.batch), "--accumulate", "1"]
    words += ["--report-every", "1", "--cache", str(folder / "cache")]
    share = options.kills // options.at_once
    steps = (STEPS_BETWEEN + 2) * (share + 1)
    whole = Desk(kept / "whole", folder / case.shape, *words, target=steps)
    alone = whole.run()
    if alone.codes != [0]:
        raise SystemExit(alone.said)
    began = time.monotonic()
    with ProcessPoolExecutor(options.at_once) as pool:
        begun = [
            pool.submit(_one, kept / f"stormy-{seed}", folder / case.shape, words, steps, share, seed)
            for seed in range(options.at_once)
        ]
        storms = [each.result() for each in begun]
    expected = {step: {loss} for step, loss in whole.losses() if loss is not None}
    losses = all(storm.reported == expected for storm, _ in storms)
    weights = all(digests == whole.state() for _, digests in storms)
    print(
        f"{case}: {share * options.at_once} SIGKILLs in {options.at_once} trainings of {steps} steps, "
        f"{sum(storm.torn for storm, _ in storms)} of them inside a save; gone on from the steps "
        f"{'; '.join(', '.join(map(str, storm.began)) for storm, _ in storms)}; {time.monotonic() - began:.0f} s\n"
        f"losses are {'equal' if losses else 'NOT EQUAL'}, weights and optimiser {'equal' if weights else 'NOT EQUAL'} "
        "to those of a training that was left alone"
    )
    return int(not (losses and weights and all(any(storm.began) for storm, _ in storms)))


def _one(
    folder: Path, model: Path, words: list[str], steps: int, kills: int, seed: int
) -> tuple[Weathered, dict[str, str]]:
    desk = Desk(folder, model, *words, target=steps)
    return weather(desk, kills, seed), desk.state()
