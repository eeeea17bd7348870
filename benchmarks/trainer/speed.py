"""Tokens a second and peak memory beside Trainer's; what the same bits each time cost; long rows in little memory."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from benchmarks.trainer.baseline import measure_baseline
from benchmarks.trainer.cases import Case, Measured, data_of, measure_ours, mfu, prepare

TABLE = (
    Case("1.3b", "full", 2048, 4, theirs=False),
    Case("1.3b", "full", 2048, 8, theirs=False),
    Case("1.3b", "full", 2048, 4, theirs=False, deterministic=True),
    Case("6.7b", "lora", 2048, 4),
    Case("6.7b", "lora", 2048, 4, ours=True),
    Case("6.7b", "lora", 2048, 4, deterministic=True),
    Case("6.7b", "lora", 8192, 1),
    Case("6.7b", "lora", 16384, 1, ours=True),
    Case("6.7b", "qlora", 2048, 4, ours=True),
)
LENGTHS = (1024, 2048, 4096, 8192, 16384)
CONTEXT = 0.5  # GiB that a process takes of a card before it asks for any


def compare(cases: list[Case], options: argparse.Namespace, folder: Path) -> list[float]:
    """Print each case as it ends; return its ratios. A baseline that several cases have is measured once."""
    baselines: dict[Case, Measured] = {}
    ratios = []
    for case in cases:
        prepare(case, options, folder, longest=max(each.length for each in cases))
        common = case._replace(ours=False, deterministic=False)
        if common not in baselines:
            baselines[common] = measure_baseline(case, options.steps, folder)
        theirs, ours = baselines[common], measure_ours(case, options.steps, folder)
        print(case)
        for who, measured in (("Trainer + PEFT", theirs), ("finetune.py", ours)):
            print(f"{who:>15}: {rated(case, options, measured)}")
        ratios.append(ours.speed / theirs.speed)
        print(f"{'ratio':>15}: {ratios[-1]:9.2f}", flush=True)
        if options.precision == "fp8":
            rounded = measure_ours(case, options.steps, folder, "--precision", "fp8")
            print(f"{'in fp8':>15}: {rated(case, options, rounded)}")
            print(f"{'fp8 / bf16':>15}: {rounded.speed / ours.speed:9.2f}", flush=True)
    return ratios


def measure_rounding(options: argparse.Namespace, folder: Path) -> None:
    """Print what an adapter learns on a frozen base in fp8, beside bf16: held-out losses, and their ratio."""
    case = Case("small", "lora", 512, 8)
    prepare(case, options, folder)
    texts = [{"text": path.read_text()} for path in sorted(Path(json.__file__).parent.glob("*.py"))]
    (data_of(case, folder) / "heldout.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    base = folder / "base"
    losses = {"base": measure_ours(case._replace(way="full"), 300, folder, "--rate", "1e-3", keep=base).held_out_loss}
    for precision in ("bf16", "fp8"):
        way = ("--model", str(base), "--precision", precision, "--rate", "1e-3")
        losses[precision] = measure_ours(case, options.steps, folder, *way).held_out_loss
        print(f"{precision:>15}: held-out loss {losses[precision]:.5f}, before {losses['base']:.5f}", flush=True)
    print(f"{'ratio':>15}: {losses['fp8'] / losses['bf16']:9.5f}", flush=True)


def measure_offload(options: argparse.Namespace, folder: Path) -> None:
    """Print what it costs, and frees, to keep the inputs of checkpointed layers in the machine's memory."""
    for way in ("lora", "full"):
        case = Case(options.shape, way, options.length, options.batch, ours=True, deterministic=options.deterministic)
        prepare(case, options, folder)
        plain = measure_ours(case, options.steps, folder)
        away = measure_ours(case, options.steps, folder, "--gradient-checkpointing", "offload")
        print(f"{case}\n    on the card: {rated(case, options, plain)}\n    offloaded:   {rated(case, options, away)}")
        print(f"    ratio: {away.speed / plain.speed:.3f} of the speed, {away.peak / plain.peak:.3f} of the peak")
        same = re.findall(r"loss [\d.]+", plain.said) == re.findall(r"loss [\d.]+", away.said)
        print(f"    the same losses: {'yes' if same else 'no'}", flush=True)


def measure_price(cases: list[Case], options: argparse.Namespace, folder: Path) -> None:
    """Print what --deterministic takes of the speed."""
    for case in cases:
        prepare(case, options, folder)
        plain, exact = (
            measure_ours(case._replace(deterministic=wish), options.steps, folder) for wish in (False, True)
        )
        print(f"{case}\n          plain: {rated(case, options, plain)}\n  deterministic: {rated(case, options, exact)}")
        print(f"          price: {100 * (1 - exact.speed / plain.speed):8.1f} %", flush=True)


def measure_lengths(options: argparse.Namespace, folder: Path) -> None:
    """Print what a base in 4 bits takes by length of a row, where a card has no more than ``--cap`` GiB."""
    cases = [Case(options.shape, "qlora", length, 1, ours=True) for length in options.lengths or LENGTHS]
    environment = {} if options.cpu else capped(options.cap)
    for case in cases:
        prepare(case, options, folder, longest=max(each.length for each in cases))
        measured = measure_ours(case, options.steps, folder, "--precision", options.precision, environment=environment)
        print(f"{case}, {options.precision}, of {options.cap} GiB: {rated(case, options, measured)}", flush=True)


def capped(gib: float) -> dict[str, str]:
    """Return variables under which a program finds no more memory on a device."""
    import torch

    share = (gib - CONTEXT) * 2**30 / torch.cuda.get_device_properties(0).total_memory
    return {"PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:True,per_process_memory_fraction:{share:.4f}"}


def rated(case: Case, options: argparse.Namespace, measured: Measured) -> str:
    """Return a measurement in words."""
    return (
        f"{measured.speed:9,.0f} tokens/s, MFU {100 * mfu(case, options.peak, measured.speed):4.1f} %, "
        f"peak {measured.peak / 2**30:5.1f} GiB, first step after {measured.first_step:5.1f} s"
    )
