"""What saves of all weights cost a training."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.trainer.cases import WARMING, Case, data_of, ours_of, prepare

COUNT, APART = 3, 8  # so many, so many steps from the end of one to the next
EVERY = 900  # seconds, at most, from one to the next in a session of hours


def measure_saves(options: argparse.Namespace, folder: Path) -> None:
    """Print what saves cost that are written in the background, and at once."""
    case = Case(options.shape, "full", options.length, options.batch, theirs=False)
    options.steps = 100  # rows for as many; then they come again
    prepare(case, options, folder)
    print(f"{case}, {COUNT} saves each", flush=True)
    for wish in options.saves.split():
        with tempfile.TemporaryDirectory(dir=folder) as name:
            reports = _watch(case, folder, Path(name), wish)
        steps = [at for at, line in reports if "step" in line]
        usual = statistics.median(after - before for before, after in itertools.pairwise(steps[WARMING:]))
        found = [_cost(reports, steps, usual, step) for step in dict.fromkeys(_saves(reports))]
        whole = [each for each in found if each is not None]
        lost = [each[3] for each in whole[1:] or whole]  # the first makes the memory that the others use again
        print(
            f"--background-saves {wish:>3}: a step takes {usual:.3f} s; a save blocks "
            f"{', '.join(f'{each[0]:.2f}' for each in whole)} s, is whole after "
            f"{', '.join(f'{each[1]:.2f}' for each in whole)} s, with "
            f"{', '.join(str(each[2]) for each in whole)} steps meanwhile, and costs "
            f"{', '.join(f'{each[3]:.2f}' for each in whole)} s of training: of {EVERY} s "
            f"{100 * whole[0][3] / EVERY:.2f} % the first, {100 * statistics.median(lost) / EVERY:.2f} % each other",
            flush=True,
        )


def _saves(reports: list[tuple[float, dict[str, Any]]]) -> list[int]:
    return [line["saving"] for _, line in reports if "saving" in line]


def _cost(
    reports: list[tuple[float, dict[str, Any]]], steps: list[float], usual: float, step: int
) -> tuple[float, float, int, float] | None:
    """Return the seconds that a save blocks and takes, the steps made meanwhile, and the seconds lost in all.

    None for the last one, after which nothing is trained.
    """
    began = next(at for at, line in reports if line.get("saving") == step)
    ended = next((at for at, line in reports if line.get("saved") == step), None)
    before = max(at for at in steps if at <= began)
    after = next((at for at in steps if at > began), None)
    if ended is None or after is None:
        return None
    meanwhile = sum(began < at <= ended for at in steps)
    until = next((at for at in steps if at > ended), None)  # the first step that nothing is written beside
    if until is None:
        return None
    return after - before - usual, ended - began, meanwhile, until - before - usual * (meanwhile + 1)


def _watch(case: Case, folder: Path, kept: Path, wish: str) -> list[tuple[float, dict[str, Any]]]:
    """Train, ask for saves, and return what was reported of them, each line with its time in seconds."""
    words = [*ours_of(case, folder), "--background-saves", wish]
    progress, asked, rest, left = kept / "progress", 0, b"", WARMING + APART
    reports: list[tuple[float, dict[str, Any]]] = []
    progress.touch()
    environment = {"SCHED_PROGRESS": str(progress), "SCHED_TARGET_STEP": "100000", "SCHED_CHECKPOINT_DIR": str(kept)}
    environment = {**os.environ, **environment, "SCHED_DATA_DIR": str(data_of(case, folder))}
    cleaners: list[threading.Thread] = []
    with (
        progress.open("rb") as source,
        (kept / "log").open("wb") as log,
        subprocess.Popen(words, env=environment, stdout=log, stderr=log) as process,
    ):
        while process.poll() is None and asked <= COUNT:
            lines = (rest + source.read()).split(b"\n")
            now, rest = time.monotonic(), lines.pop()
            for line in map(json.loads, lines):
                reports.append((now, line))
                left -= "step" in line
                if "saved" in line:  # the first one makes what the others use again
                    for old in sorted(kept.glob("step-*"))[:-1]:  # beside us: it takes seconds, and we hold a watch
                        gone = old.rename(kept / f"old-{old.name}")
                        cleaners.append(threading.Thread(target=shutil.rmtree, args=(gone,)))
                        cleaners[-1].start()
                    left = APART
                if not left:
                    asked += 1
                    left = -1
                    process.send_signal(signal.SIGTERM if asked > COUNT else signal.SIGUSR1)
            time.sleep(0.001)
        if process.wait():
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{(kept / 'log').read_text()}")
    for cleaner in cleaners:
        cleaner.join()
    return reports
