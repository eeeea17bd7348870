"""The adviser's predictions held against peaks that were published and set-ups that were measured."""

from __future__ import annotations

import json
import statistics
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobs.advice.choice import MARGIN
from jobs.advice.memory import memory_of
from jobs.advice.seen import Measurement, pace_seen
from jobs.advice.shape import STACKS, Setup, Stack, find_shape, from_config, recognised

if TYPE_CHECKING:
    from pathlib import Path

MEAN, UNDER = 0.05, 0.08  # aims: mean error of peaks, worst under-estimate
HELD_OUT, WITHIN = 0.8, 0.15  # of lengths that calibration did not see, so many within so much
SIZES = (8, 12, 16, 24, 32, 40, 48, 80, 141)  # GiB of cards that a peak is held against


def published(path: Path) -> bool:
    """Print predictions of the published peaks in a file, and return whether all aims are reached."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    pairs = []
    for series in document["series"]:
        given = {"accumulate": 1, **series["setup"], "shape": find_shape(series["setup"]["shape"])}
        given["targets"] = tuple(given.get("targets", ()))
        stack = Stack(series["stack"], **document["stacks"][series["stack"]])
        unit = 2**30 if series.get("gib") else 1e9
        found = [
            (memory_of(Setup(**given, batch=batch, seq=seq, stack=stack)).total, peak * unit)
            for batch, seq, peak in series["points"]
        ]
        told = ", ".join(f"{100 * (said / seen - 1):+.0f}" for said, seen in found)
        print(f"{series['name']}: {told} %")
        pairs += found
    return judge("published peaks", pairs)


def judge(what: str, pairs: list[tuple[float, float]]) -> bool:
    """Print mean error, worst under-estimate and false fits of (predicted, seen) bytes; return whether aims are met."""
    errors = [said / seen - 1 for said, seen in pairs]
    false = sum(
        said * (1 + MARGIN) <= size * 2**30 < seen for said, seen in pairs for size in SIZES
    )  # called "fits", and did not
    mean, under = statistics.mean(map(abs, errors)), -min(errors)
    print(
        f"{what}: {len(pairs)} peaks, mean |error| {100 * mean:.1f} %, worst under-estimate {100 * under:.1f} %, "
        f"worst over-estimate {100 * max(errors):.1f} %, false fits {false}"
    )
    return mean <= MEAN and under <= UNDER and not false


def measured(path: Path) -> bool:
    """Print predictions of measured set-ups, and of lengths held out from calibration; return whether aims are met."""
    document = json.loads(path.read_bytes())
    found = recognised(document["card"]["name"])
    if found is None:
        raise SystemExit(f"{path}: {document['card']['name']} is no card that the adviser knows")
    card, allocated, used, held_out = found[0], [], [], []
    for row in document["setups"]:
        bare = setup_of(row)
        points = [(replace(bare, seq=point["seq"], batch=point["batch"]), point) for point in row["points"]]
        memories = [(memory_of(given), point) for given, point in points]
        here = [(memory.allocated, point["allocated"]) for memory, point in memories]
        allocated += here
        used += [(memory.total, point["reserved"] + point["context"]) for memory, point in memories]
        # Calibrated with every other length, 20 steps in all; judged by the others.
        known = [
            Measurement(
                card.name, bare.shape.name, bare.method, bare.stack.name, bare.checkpointing, given.batch, given.seq,
                point["seconds"], 20 * 2 // (len(points) + 1),
            )
            for given, point in points[::2]
        ]  # fmt: skip
        late = [pace_seen(given, card, known).step / point["seconds"] - 1 for given, point in points[1::2]]
        held_out += late
        told = ", ".join(f"{100 * (said / seen - 1):+.0f}" for said, seen in here)
        print(f"{row['name']}: memory {told} %; time held out {', '.join(f'{100 * one:+.0f}' for one in late)} %")
    reached = judge(f"measured, {card.name}, allocated", allocated)
    judge("the same with context, against what was reserved", used)
    good = sum(abs(one) <= WITHIN for one in held_out)
    print(f"time after 20 steps: {good} of {len(held_out)} held-out lengths within {100 * WITHIN:.0f} %")
    return reached and good >= HELD_OUT * len(held_out)


def setup_of(row: dict[str, Any]) -> Setup:
    """Return what was measured as the adviser writes it, without rows and length."""
    own = "finetune-compiled" if row["compile"] else "finetune"
    theirs = "transformers" if row["autocast"] else "transformers-bare"
    shape = from_config(row["shape"], row["name"])
    patches = row["image"][0] * row["image"][1] if row["image"] else 0
    return Setup(
        shape=shape,
        method=row["method"],
        accumulate=1,
        rank=row["rank"],
        targets=() if row["targets"] == "all" else tuple(row["targets"]),
        dropout=row["dropout"],
        optimizer=row["optimizer"],
        master=row["weights"] == "fp32",
        checkpointing=row["checkpointing"],
        stack=STACKS[own if row["trainer"] == "finetune" else theirs],
        image_tokens=patches // shape.vision.merge**2 if shape.vision else 0,
    )
