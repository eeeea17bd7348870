"""The figures of our trainer, beside plain Hugging Face Trainer with PEFT where that has them.

The weights are random, in the shape of the real model; each program runs in a process of its own. MFU counts (4 N for
an adapter, 6 N for all weights, plus 6 L h S) FLOP a token over --peak. The first steps of each are not counted. Needs
torch, transformers, peft and, for QLoRA, bitsandbytes, all of them already there: nothing is fetched. With --cpu a tiny
shape, to see that it runs. On one H100 or H200, with 17 GB of disk:

    python3 benchmarks/bench_trainer.py --table                          (beside Trainer; 12 minutes)
    python3 benchmarks/bench_trainer.py --shape 6.7b --way lora          (one line of it)
    python3 benchmarks/bench_trainer.py --price                          (of --deterministic; 3 minutes)
    python3 benchmarks/bench_trainer.py --saves                          (of all weights; 4 minutes, 50 GB)
    python3 benchmarks/bench_trainer.py --start --shape 6.7b             (from the command to the first step; 2 minutes)
    python3 benchmarks/bench_trainer.py --storm --length 512 --at-once 4 (20 SIGKILLs; 3 minutes)
    python3 benchmarks/bench_trainer.py --cap 14.5 --shape 6.7b          (4 bits, rows of 1k to 16k, on so small a card)
    python3 benchmarks/bench_trainer.py --offload --shape 6.7b           (of checkpointed layers' inputs; 4 minutes)
    python3 benchmarks/bench_trainer.py --pair --shape 6.7b              (two devices; 4 minutes)
    python3 benchmarks/bench_trainer.py --layers --shape 27b --batch 1 --cap 14.5 (two devices; 5 minutes, 60 GB)
    python3 benchmarks/bench_trainer.py --pause --shape 6.7b             (rows of several documents come; 2 minutes)
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started as a script

from benchmarks.trainer.baseline import baseline
from benchmarks.trainer.cases import SHAPES, Case
from benchmarks.trainer.pair import measure_layers, measure_pair
from benchmarks.trainer.pause import measure_pause
from benchmarks.trainer.saves import measure_saves
from benchmarks.trainer.speed import TABLE, compare, measure_lengths, measure_offload, measure_price, measure_rounding
from benchmarks.trainer.start import measure_starts
from benchmarks.trainer.storm import measure_storm


def main() -> int:
    """Measure what is asked for and print it; 1 if ours is below --least, or a training did not end as it should."""
    options = _options()
    if options.baseline_in:
        return baseline(options, options.baseline_in)
    case = Case(
        options.shape,
        options.way,
        options.length,
        options.batch,
        options.checkpointing == "on",
        options.baseline_checkpointing == "on",
        options.deterministic,
    )
    with contextlib.ExitStack() as kept:
        folder = options.folder or Path(kept.enter_context(tempfile.TemporaryDirectory(prefix="bench-trainer-")))
        folder.mkdir(parents=True, exist_ok=True)
        if options.storm:
            return measure_storm(options, folder)
        if options.pair:
            return measure_pair(options, folder)
        if options.layers:
            return measure_layers(options, folder)
        if options.pause:
            return measure_pause(options, folder)
        if options.saves:
            measure_saves(options, folder)
        elif options.start:
            measure_starts(options, folder)
        elif options.cap:
            measure_lengths(options, folder)
        elif options.offload:
            measure_offload(options, folder)
        elif options.rounding:
            measure_rounding(options, folder)
        elif options.price:
            exact = [each for each in TABLE if each.deterministic and str(each).startswith(options.only)]
            measure_price([case] if options.cpu else exact, options, folder)
        else:
            cases = [each for each in TABLE if str(each).startswith(options.only)] if options.table else [case]
            return int(min(compare(cases, options, folder)) < options.least)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--table", action="store_true", help="all cases of docs/fine-tuning.md, one after the other")
    what.add_argument("--price", action="store_true", help="what --deterministic takes of the speed")
    what.add_argument(
        "--saves", nargs="?", const="on off", metavar="WISH", help="what saves of all weights cost: on, off, or both"
    )
    what.add_argument("--start", action="store_true", help="seconds from the command to the first step")
    what.add_argument("--storm", action="store_true", help="a training that is killed --kills times")
    parser.add_argument("--cap", type=float, metavar="GIB", help="4 bits, by length, on a card of so much memory")
    what.add_argument("--layers", action="store_true", help="4 bits, layers on two devices (with --cap: so small)")
    parser.add_argument("--compile", choices=("auto", "on", "off"), default="auto", help="of --layers")
    what.add_argument("--rounding", action="store_true", help="what an adapter learns on a base in fp8, beside bf16")
    what.add_argument(
        "--offload", action="store_true", help="checkpointing with layers' inputs in the machine's memory"
    )
    what.add_argument("--pause", action="store_true", help="the longest between steps; fails where layers are compiled")
    what.add_argument("--pair", action="store_true", help="two devices beside one")
    parser.add_argument("--only", default="", metavar="TEXT", help="of --table and --price the cases that begin so")
    parser.add_argument("--folder", type=Path, help="keep models there for the next time (default: for this time)")
    parser.add_argument("--kills", type=int, default=20, help="of --storm")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="share the kills out to so many trainings")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="TOKENS", help="of --cap")
    parser.add_argument(
        "--precision", choices=("auto", "bf16", "fp16", "fp8"), default="auto", help="of --cap; fp8: beside bf16"
    )
    parser.add_argument("--shape", choices=SHAPES, default="1.3b")
    parser.add_argument("--way", choices=("lora", "qlora", "full"), default="lora")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpointing", choices=("on", "off"), default="off", help="ours")
    parser.add_argument("--baseline-checkpointing", choices=("on", "off"), default="on", help="theirs")
    parser.add_argument("--short-documents", action="store_true", help="several to a row, so that ours needs a mask")
    parser.add_argument("--peak", type=float, default=989.0, metavar="TFLOPS", help="of the device, dense 16 bit")
    parser.add_argument("--least", type=float, default=0.0, metavar="RATIO", help="fail below this ratio")
    parser.add_argument("--deterministic", action="store_true", help="ours pays for the same bits each time")
    parser.add_argument("--cpu", action="store_true", help="the tiny shape on the processor")
    parser.add_argument("--baseline-in", type=Path, help=argparse.SUPPRESS)  # the child process of the baseline
    options = parser.parse_args()
    if options.cpu:
        options.shape, options.length, options.batch = ("small", 64, 1) if options.saves else ("tiny", 128, 2)
        options.lengths = options.lengths or [128]
    return options


if __name__ == "__main__":
    sys.exit(main())
