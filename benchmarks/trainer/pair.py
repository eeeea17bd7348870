"""Two devices beside one: their speed, and a job that is asked to save, to stop, and moves from two to one."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.trainer.cases import Case, data_of, measure_ours, ours_of, prepare
from benchmarks.trainer.speed import capped, rated

SAVE_AT, STOP_AT, END_AT = 4, 8, 14  # steps of the job that moves
_APART_MAX = 0.01  # of losses, in nats a token, where only rounding differs


def measure_pair(options: argparse.Namespace, folder: Path) -> int:
    """Print both; 1 if the job that moved did not go on as it should."""
    case = Case(options.shape, options.way, options.length, options.batch)
    options.steps *= 2  # rows for two devices
    prepare(case, options, folder)
    options.steps //= 2
    alone = measure_ours(case, options.steps, folder)
    print(f"{case}\n      one device: {rated(case, options, alone)}", flush=True)
    for name, more in (("two devices", ()), ("shared out", ("--shard", "on"))):
        both = measure_ours(case, options.steps, folder, *more, devices=2)
        print(f"{name:>16}: {rated(case, options, both)}\n{'ratio':>16}: {both.speed / alone.speed:9.2f}", flush=True)
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        return _move(case, folder, Path(kept))


def measure_layers(options: argparse.Namespace, folder: Path) -> int:
    """Print what a base in 4 bits takes whose layers lie on two devices, beside one, and let a job move to one.

    Returns 1 if losses differ, or the job that moved did not go on as it should.

    With ``--cap`` neither device has more than so many GiB, and one alone is not tried.
    """
    case = Case(options.shape, "qlora", options.length, options.batch, ours=True, deterministic=options.deterministic)
    options.steps *= 2  # two batches each
    prepare(case, options, folder)
    options.steps //= 2
    environment, ways = {"NCCL_P2P_DISABLE": "1"}, [("one device", 1), ("layers on two", 2)]
    if options.cap:
        environment, ways = {**environment, **capped(options.cap)}, ways[1:]
    measured = []
    for name, devices in ways:
        more = ("--accumulate", "2", "--shard", "on", "--compile", options.compile)
        measured.append(measure_ours(case, options.steps, folder, *more, devices=devices, environment=environment))
        print(f"{case}\n{name:>16}: {rated(case, options, measured[-1])}", flush=True)
    losses = [[float(loss) for loss in re.findall(r"step \d+ loss ([\d.]+)", each.said)] for each in measured]
    apart = max(abs(one - other) for one, other in zip(losses[0], losses[-1], strict=True))
    print(f"{'losses':>16}: {losses[-1][0]} to {losses[-1][-1]}, {apart:.4f} from those of one device at most")
    print(f"{'ratio':>16}: {measured[-1].speed / measured[0].speed:.2f}", flush=True)
    if options.cap or apart > _APART_MAX:
        return int(apart > _APART_MAX)
    with tempfile.TemporaryDirectory(dir=folder) as kept:
        return _move(case, folder, Path(kept), "--shard", "on")


def _move(case: Case, folder: Path, rest: Path, *more: str) -> int:
    """Train on two devices, ask for a save, then to stop, and go on with one; beside it, all on one."""
    kept, beside = rest / "moved", rest / "stayed"
    words = [*ours_of(case, folder, 2), *more]
    first = _session(words, case, folder, kept, {SAVE_AT: signal.SIGUSR1, STOP_AT: signal.SIGTERM})
    left = sorted(kept.glob("step-*"))
    print(f"    two devices: SIGUSR1 and SIGTERM left {', '.join(path.name for path in left)}", flush=True)
    one = ["1" if before == "--devices" else word for before, word in itertools.pairwise(["", *words])]
    second = _session(one, case, folder, kept, {}, left[-1])
    alone = _session(one, case, folder, beside, {})
    moved = {line["step"]: line["loss"] for line in [*first[0], *second[0]] if line.keys() >= {"step", "loss"}}
    stayed = {line["step"]: line["loss"] for line in alone[0] if line.keys() >= {"step", "loss"}}
    apart = max(abs(moved[step] - stayed[step]) for step in stayed) if moved.keys() == stayed.keys() else None
    going = next((line for line in second[1].splitlines() if "resuming from" in line), "it did not resume")
    print(f"     one device: {going}")
    print(f"        moved, beside never moved: losses of {len(stayed)} steps differ by {apart} at most", flush=True)
    return int(apart is None or ", E1:" not in going or len(left) != 2)


def _session(
    words: list[str],
    case: Case,
    folder: Path,
    kept: Path,
    signals: dict[int, signal.Signals],
    resume: Path | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Run a session, send it signals at steps, and return what it reported and what it printed."""
    kept.mkdir(exist_ok=True)
    progress, log = kept / f"progress-{time.monotonic_ns()}", kept / "log"
    progress.touch()
    environment = {
        **os.environ, "SCHED_PROGRESS": str(progress), "SCHED_TARGET_STEP": str(END_AT),
        "SCHED_CHECKPOINT_DIR": str(kept), "SCHED_DATA_DIR": str(data_of(case, folder)),
        "SCHED_RESUME_DIR": str(resume or ""),
    }  # fmt: skip
    left = dict(signals)
    with log.open("w+") as said:
        with subprocess.Popen(words, env=environment, stdout=said, stderr=said) as process:
            while process.poll() is None:
                text = progress.read_text()
                for step in [step for step in left if f'"step": {step},' in text]:
                    process.send_signal(left.pop(step))
                time.sleep(0.005)
        printed = log.read_text()
        if process.returncode:
            raise SystemExit(f"{' '.join(words)} ended with status {process.returncode}:\n{printed}")
    return [json.loads(line) for line in progress.read_text().splitlines()], printed
