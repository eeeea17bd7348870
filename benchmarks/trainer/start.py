"""Seconds from the command to the end of the first step, with the compiler's cache cold, then warm."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.trainer.cases import Case, measure_ours, prepare

STEPS, WARM = 3, 3


def measure_starts(options: argparse.Namespace, folder: Path) -> None:
    """Print them, and where the seconds went by what finetune.py says of it."""
    case = Case(options.shape, options.way, options.length, options.batch)
    prepare(case, options, folder)
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton")}
    for number in range(1 + WARM):
        measured = measure_ours(case, STEPS, folder, environment=caches)
        words = next((line for line in measured.said.splitlines() if "the first step" in line), "")
        print(f"{case}, {'warm' if number else 'cold'}: {measured.first_step:.1f} s; {words}", flush=True)
