"""Estimates of the needs and the speed of a job that uses our trainer, derived from its command line."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil
from pathlib import Path

from jobs.advice.choice import MARGIN, Wishes, gains_of, nearest, priced
from jobs.advice.memory import memory_of, pace_of, storage_of
from jobs.advice.shape import RANK, STACKS, Card, Setup, cards, find_shape
from jobs.payload.bounded_file import read_bounded
from jobs.problem import NotFound
from jobs.spec import JobSpec, Needs

TRAINER = "trainers/finetune.py"
REFERENCE = "t4"
"""The GPU for which the adviser estimates the speed of a job by default."""

_SYNONYMS = {"--batch-size": "--batch", "--gradient-accumulation-steps": "--accumulate"}
_ZERO_OPTIONS = frozenset({"--zero", "--zero-stage", "--offload", "--deepspeed", "--deepspeed-config"})
_DEVICES_MAX = 4  # devices that a job without --shard is allowed at most
_SAVE_SECONDS_MIN = 60  # minimum time for a checkpoint
_UPLOAD_BYTES_PER_SECOND = 50_000_000  # assumed bytes per second into a remote store, until they are measured
_TPU_IMPORTS = re.compile(rb"^\s*(import|from)\s+(jax|flax|torch_xla)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class JobEstimate:
    """Estimates for a job that has not run: speed on one REFERENCE, factors for 1, 2, ... devices, seconds per save."""

    needs: Needs
    steps_per_hour: float
    device_speedup: tuple[float, ...]
    checkpoint_seconds: int


def estimate(command: Sequence[str], inputs: Mapping[str, str]) -> JobEstimate | None:
    """Return the estimates for a job; None if it does not use our trainer, or has options without a formula.

    ``inputs`` are sources by name. The needs are minima: if memory is short, the trainer reduces its batch to one row,
    uses gradient checkpointing, and chooses fp16 or bf16 by the device. Raises NotFound for an unknown model.
    """
    setup = setup_of(tuple(command), tuple(sorted(inputs.items())))
    if setup is None:
        return None
    least = replace(setup, batch=1, checkpointing=True, precision="fp16", accumulate=max(2, setup.accumulate))
    gib = ceil(10 * memory_of(least).gib * (1 + MARGIN)) / 10
    card = cards()[REFERENCE]
    most, shared = setup.devices, setup
    if most == 1:
        most = next(count for count in range(_DEVICES_MAX, 0, -1) if setup.rows % count == 0)
        shared = replace(setup, devices=most, parallel="ddp" if most > 1 else "none")
    gains = gains_of(priced("", shared, card, Wishes())) if most > 1 else [1.0]
    needs = Needs(devices_min=setup.devices, devices_max=most, vram_gib=gib, dtype="fp16")
    rounded = tuple(max(1.0, round(gain, 2)) for gain in gains)
    saving = max(_SAVE_SECONDS_MIN, ceil(storage_of(setup).checkpoint / _UPLOAD_BYTES_PER_SECOND))
    return JobEstimate(needs, round(3_600 / pace_of(on_card(setup, card), card).step, 3), rounded, saving)


def could_use_tpu(spec: JobSpec) -> bool:
    """Return whether a job that asks for GPUs has a script that imports JAX or torch_xla. Reads the scripts."""
    if spec.code is None or spec.needs.accelerator != "gpu":
        return False
    scripts = [Path(spec.code.source, word) for word in spec.command if word.endswith(".py")]
    with suppress(OSError):
        return any(_TPU_IMPORTS.search(read_bounded(script)) for script in scripts if script.is_file())
    return False


def setup_of_job(command: Sequence[str], inputs: Mapping[str, str], card: Card) -> Setup | None:
    """Return a job's set-up on one GPU, adapted to it by ``on_card``; None if the set-up is unknown."""
    return _setup_on_card(tuple(command), tuple(sorted(inputs.items())), card)


def misfit(command: Sequence[str], inputs: Mapping[str, str], card: Card, devices: int) -> str:
    """Return the memory that a job needs on a GPU, and the nearest setting that fits; "" if the set-up is unknown."""
    return _cached_misfit(tuple(command), tuple(sorted(inputs.items())), card, devices)


# Cached, because every cycle and page needs the result for each job and pool, and it never changes.
@lru_cache(maxsize=8_192)
def _setup_on_card(command: tuple[str, ...], inputs: tuple[tuple[str, str], ...], card: Card) -> Setup | None:
    try:
        setup = setup_of(command, inputs)
    except NotFound:
        return None
    return None if setup is None else on_card(setup, card)


@lru_cache(maxsize=8_192)
def _cached_misfit(command: tuple[str, ...], inputs: tuple[tuple[str, str], ...], card: Card, devices: int) -> str:
    try:
        setup = setup_of(command, inputs)
    except NotFound:
        return ""
    if setup is None:
        return ""
    memory = memory_of(on_card(replace(setup, batch=1, checkpointing=True), card))
    wishes = Wishes(seq=setup.seq, rows=setup.rows, methods=(setup.method,), rank=setup.rank, stack=setup.stack)
    fitting = nearest(setup.shape, card, devices, wishes)
    part = memory.largest
    text = f"{memory.gib:.1f} GiB on {card.name}, of which {part.name} {part.bytes / 2**30:.1f}"
    return f"{text}; it fits {fitting}" if fitting else text


def on_card(setup: Setup, card: Card) -> Setup:
    """Return the set-up as the trainer adapts it to a GPU: number format, and smaller batches if memory is short."""
    stack = setup.stack if card.compiles else STACKS["finetune"]
    fitted = replace(setup, precision=card.precision, stack=stack)
    while memory_of(fitted).gib > card.usable_gib and (fitted.batch > 1 or not fitted.checkpointing):
        if fitted.batch > 1:
            half = fitted.batch // 2
            fitted = replace(fitted, batch=half, accumulate=ceil(setup.rows / (half * fitted.devices)))
        else:
            fitted = replace(fitted, checkpointing=True)
    return fitted


@lru_cache(maxsize=1_024)
def setup_of(command: tuple[str, ...], inputs: tuple[tuple[str, str], ...]) -> Setup | None:
    """Return the set-up by a command line of our trainer; None for others. Raises NotFound for an unknown model."""
    start = next((place for place, word in enumerate(command) if word.endswith(TRAINER)), None)
    if start is None:
        return None
    options = options_of(command[start + 1 :])
    if options.get("--stage", "sft") != "sft":
        return None  # the formulas are for supervised training; other stages need more memory
    if options.keys() & _ZERO_OPTIONS:
        return None  # ZeRO's memory depends on the machine and on all devices, not on one card
    model = options.get("--model", "")
    if model.startswith("input:"):
        model = dict(inputs).get(model.removeprefix("input:"), "")
    if not model:
        return None
    try:
        rank = int(options.get("--lora", "0")) or (RANK if "--use-lora" in options or "--use-4bit" in options else 0)
        seq, batch = int(options.get("--length", "1024")), int(options.get("--batch", "4"))
        accumulate, dropout = int(options.get("--accumulate", "8")), float(options.get("--dropout", "0"))
        image_tokens = int(options.get("--image-tokens", "256"))
    except ValueError:
        return None
    if (
        min(seq, batch, accumulate, image_tokens) < 1
        or max(seq, batch, accumulate) > 1 << 20
        or not 0 <= rank <= 1 << 14
    ):
        return None
    shape = find_shape(model.partition("#")[0])
    by_layers = "--use-4bit" in options and options.get("--shard") == "on"
    return Setup(
        shape=shape,
        image_tokens=min(image_tokens, seq) if shape.vision is not None else 0,
        method="qlora" if "--use-4bit" in options else "lora" if rank else "full",
        seq=seq,
        batch=batch,
        accumulate=ceil(accumulate / 2) if by_layers else accumulate,
        devices=2 if by_layers else 1,
        parallel="layers" if by_layers else "none",
        rank=rank or RANK,
        dropout=dropout,
        optimizer="adamw8bit" if options.get("--optimizer") == "adamw8bit" else "adamw",
        checkpointing=options.get("--gradient-checkpointing", "half") != "half",
        stack=STACKS["finetune" if options.get("--compile") == "off" else "finetune-compiled"],
    )


def options_of(words: Sequence[str]) -> dict[str, str]:
    """Return the values of options by name, from ``--name value`` and ``--name=value``."""
    result: dict[str, str] = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            name, _, value = word.partition("=")
            following = words[place + 1] if place + 1 < len(words) else ""
            result[_SYNONYMS.get(name, name)] = value or ("" if following.startswith("--") else following)
    return result
