"""A tiny training, in plain Python, that keeps to the training contract; FAULT names what is wrong with its resume.

Two ranks in one process share weights, and have random numbers of their own for dropout and noise.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

FAULT = os.environ.get("FAULT", "")
SIZE, ROWS, BATCH, WARMUP = 8, 96, 8, 200
CHECKPOINTS, RESUME = Path(os.environ["SCHED_CHECKPOINT_DIR"]), os.environ["SCHED_RESUME_DIR"]
SEED, TARGET = int(os.environ["SCHED_SEED"]), int(os.environ["SCHED_TARGET_STEP"])
wanted = {"save": False, "stop": False}


def on_signal(number: int, _frame: object) -> None:
    if number == signal.SIGTERM and FAULT != "ignored SIGTERM":
        wanted["stop"] = True
    wanted["save"] = wanted["save"] or FAULT != "saved only at the end"


signal.signal(signal.SIGTERM, on_signal)
signal.signal(signal.SIGUSR1, on_signal)
source = random.Random(1)
TRUTH = [source.uniform(-1, 1) for _ in range(SIZE)]
DATA = [([source.uniform(-1, 1) for _ in range(SIZE)], source.gauss(0, 1)) for _ in range(ROWS)]  # with its noise
ranks = [random.Random(SEED), random.Random(SEED + 1)]
state: dict[str, Any] = {
    "step": 0, "weights": [0.0] * SIZE, "momentum": [0.0] * SIZE, "warm": 0, "scale": 2.0**24, "good": 0,
    "order": [], "read": 0, "epoch": 0, "best": [1e9, []],
}  # fmt: skip


def resume() -> None:
    saved = json.loads((Path(RESUME) / "state.json").read_text())
    lost = {
        "data order not restored": ("order", "read", "epoch"),
        "optimiser not restored": ("momentum",),
        "learning rate restarted": ("warm",),
        "scaler state lost": ("scale", "good"),
    }.get(FAULT, ())
    state.update({name: value for name, value in saved["state"].items() if name not in lost})
    if FAULT == "best instead of last restored" and state["best"][1]:
        state["weights"] = state["best"][1]
    if FAULT == "wrong step":
        state["step"] -= 3
    for number, rank in enumerate(ranks):
        version, numbers, rest = saved["ranks"][1 if FAULT == "wrong rank saves" else number]
        rank.setstate((version, tuple(numbers), rest))
        if FAULT == "random state lost":
            rank.seed()


def batch() -> list[tuple[list[float], float]]:
    if state["read"] + BATCH > len(state["order"]):
        state["epoch"] += 1
        state["order"], state["read"] = list(range(ROWS)), 0
        random.Random(SEED + state["epoch"]).shuffle(state["order"])
    rows = [DATA[at] for at in state["order"][state["read"] : state["read"] + BATCH]]
    state["read"] += BATCH
    return rows


def train() -> float:
    rows, gradient, loss = batch(), [0.0] * SIZE, 0.0
    for number, rank in enumerate(ranks):
        for row, noise in rows[number::2]:
            seen = [value * (rank.random() > 0.1) for value in row]
            error = sum(w * x for w, x in zip(state["weights"], seen, strict=True))
            error -= sum(w * x for w, x in zip(TRUTH, row, strict=True)) + noise + rank.gauss(0, 0.05)
            loss += error * error / BATCH
            gradient = [g + 2 * error * x / BATCH for g, x in zip(gradient, seen, strict=True)]
    if state["scale"] * max(map(abs, gradient)) > 2.0**16:  # what would overflow in half precision is left out
        state["scale"], state["good"] = state["scale"] / 2, 0
    else:
        rate = 0.02 * min(1.0, (state["warm"] + 1) / WARMUP) * (1 - 0.9 * state["step"] / TARGET)
        state["momentum"] = [0.9 * m + g for m, g in zip(state["momentum"], gradient, strict=True)]
        state["weights"] = [w - rate * m for w, m in zip(state["weights"], state["momentum"], strict=True)]
        state["warm"], state["good"] = state["warm"] + 1, state["good"] + 1
        if state["good"] % 50 == 0:
            state["scale"] *= 2
    if loss < state["best"][0]:
        state["best"] = [loss, state["weights"]]
    state["step"] += 1
    return loss


def write(step: int, text: str) -> None:
    final = CHECKPOINTS / f"step-{step:08d}"
    folder = final if FAULT == "save not atomic" else CHECKPOINTS / f".partial-{step:08d}"
    folder.mkdir(exist_ok=True)
    if FAULT == "save not atomic":
        (folder / "meta.json").write_text(json.dumps({"step": step, "metrics": {}}))
    with (folder / "state.json").open("w") as stream:
        for at in range(0, len(text), 1000):
            stream.write(text[at : at + 1000])
            stream.flush()
            if folder == final:
                time.sleep(0.05)  # a disk so slow that a strike in the middle of a save shows the fault under load too
    if folder != final:
        (folder / "meta.json").write_text(json.dumps({"step": step, "metrics": {}}))
        folder.rename(final)


def save() -> None:
    step, wanted["save"] = state["step"], False
    if (CHECKPOINTS / f"step-{step:08d}").exists():
        return
    say({"saving": step})
    text = json.dumps({"state": state, "ranks": [rank.getstate() for rank in ranks]})
    if FAULT == "background writer lost at exit" and wanted["stop"]:
        writer = threading.Timer(5, write, (step, text))
        writer.daemon = True
        writer.start()
        return
    write(step, text)
    say({"saved": step})


def say(line: dict[str, float]) -> None:
    os.write(progress, json.dumps(line).encode() + b"\n")


if RESUME:
    resume()
progress = os.open(os.environ["SCHED_PROGRESS"], os.O_WRONLY)
say({"step": state["step"]})
while state["step"] < TARGET and not wanted["stop"]:
    if wanted["save"]:
        save()
    report = {"loss": train(), "step": state["step"]}
    if state["step"] % 100 == 0:
        report["held_out_loss"] = sum((w - t) ** 2 for w, t in zip(state["weights"], TRUTH, strict=True))
    say(report)
if wanted["stop"] and FAULT == "saved only at the end":
    sys.exit(0)
save()
