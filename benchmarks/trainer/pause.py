"""The longest pause between steps, in a training whose first rows with several documents come in its midst."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.trainer.cases import WARMING, Case, data_of, make_model, ours_of
from jobs.payload.trainers.tuning.data.documents import load_tokenizer, stop_tokens
from jobs.payload.trainers.tuning.data.rows import RowOrder, Rows, pack

STEPS, SHORT = 30, 6  # short documents, four to a row
COMPILED = 1.0  # seconds: a pause this much longer than a step is no step


def measure_pause(options: argparse.Namespace, folder: Path) -> int:
    """Print it, with the compiler's cache cold; return 1 where a step took as long as to compile."""
    case = Case(options.shape, options.way, options.length, options.batch, options.checkpointing == "on")
    if not (folder / case.shape).exists():
        make_model(case.shape, folder / case.shape, longest=case.length, cpu=options.cpu)
    _make_data(case, data_of(case, folder))
    rows = _rows(case, folder)
    several = {index for index in range(len(rows)) if _documents(rows, index) > 1}
    seed, first = _seed(len(rows), case.batch, several)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        instants = _instants(case, folder, Path(name), seed)
    pauses = {step: after - before for step, (before, after) in enumerate(itertools.pairwise(instants), start=2)}
    late = {step: seconds for step, seconds in pauses.items() if step > WARMING}
    usual, longest = statistics.median(late.values()), max(late, key=lambda step: late[step])
    print(
        f"{case}: {len(several)} of {len(rows)} rows hold several documents, the first in step {first}. A step takes "
        f"{usual:.3f} s, that one {pauses[first]:.3f} s; the longest pause after step {WARMING} is "
        f"{late[longest]:.3f} s, before the end of step {longest}",
        flush=True,
    )
    return int(late[longest] > usual + COMPILED)


def _make_data(case: Case, folder: Path) -> None:
    """Write one document that fills nearly all rows, each alone, and some that share a row."""
    from tests.lab.desk import source_texts

    folder.mkdir(exist_ok=True)
    text = "\n".join(source_texts())
    wanted = STEPS * case.batch * case.length * 8
    texts = [(text * (1 + wanted // len(text)))[:wanted]]
    texts += [text[start : start + case.length // 2] for start in range(SHORT)]  # a token has two characters or more
    (folder / "train-00000.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))


def _rows(case: Case, folder: Path) -> Rows:
    """Pack the rows as finetune.py does, and finds them then."""
    model = str(folder / case.shape)
    tokenizer = load_tokenizer(model)
    paths = [data_of(case, folder) / "train-00000.jsonl"]
    return pack(paths, tokenizer, case.length, folder / "cache", stops=stop_tokens(model, tokenizer))


def _documents(rows: Rows, index: int) -> int:
    """Return how many documents have something to learn in a row."""
    batch = rows.batch([index])
    return len({*batch.documents[0, :-1][batch.targets[0, :-1] >= 0].tolist()})


def _seed(count: int, batch: int, several: set[int]) -> tuple[int, int]:
    """Return a seed by whose order no row of ``several`` comes before half of the steps, and the step of the first."""
    for seed in range(100_000):
        order = RowOrder(count, batch, seed)
        first = next((step for step in range(STEPS) if several & {*order.step(step)}), STEPS)
        if STEPS // 2 <= first < STEPS - WARMING:
            return seed, first + 1
    raise SystemExit("no order of these rows has one with several documents in its second half")


def _instants(case: Case, folder: Path, kept: Path, seed: int) -> list[float]:
    """Train, and return the instants at which steps ended, in seconds."""
    progress, rest = kept / "progress", b""
    progress.touch()
    environment = {
        **os.environ, "SCHED_PROGRESS": str(progress), "SCHED_TARGET_STEP": str(STEPS), "SCHED_SEED": str(seed),
        "SCHED_CHECKPOINT_DIR": str(kept), "SCHED_DATA_DIR": str(data_of(case, folder)),
        "TORCHINDUCTOR_CACHE_DIR": str(kept / "inductor"), "TRITON_CACHE_DIR": str(kept / "triton"),
    }  # fmt: skip
    instants: list[float] = []
    with (
        progress.open("rb") as source,
        (kept / "log").open("wb") as log,
        subprocess.Popen(ours_of(case, folder), env=environment, stdout=log, stderr=log) as process,
    ):
        while True:
            ended = process.poll() is not None
            lines = (rest + source.read()).split(b"\n")
            now, rest = time.monotonic(), lines.pop()
            reports: list[dict[str, Any]] = [json.loads(line) for line in lines]
            instants += [now for line in reports if "step" in line and "loss" in line]
            if ended:
                break
            time.sleep(0.001)
    if process.returncode:
        raise SystemExit(f"finetune.py ended with status {process.returncode}:\n{(kept / 'log').read_text()}")
    return instants
