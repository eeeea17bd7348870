"""Fine-tune a causal language model: all its weights, or a LoRA adapter on a frozen base in 16 or 4 bits.

It needs torch, transformers and, for ``--lora``, peft; the images of Kaggle and SageMaker have all three. It reads
``train-*.jsonl`` and ``heldout.jsonl`` (one record per line: text, prompt and completion, or messages) from
SCHED_DATA_DIR. One process per device is started; their number does not change the steps. See docs/fine-tuning.md.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

if not __package__:  # started as a script, wherever the payload is unpacked
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = "trainers"

from .ranks import NodeRanks, Ranks, devices_visible
from .trainer_kit import EXIT_DATA, NO_CORPUS, Training
from .tuning import memory
from .tuning.base import find_base
from .tuning.errors import TrainingRefused, UnreadableData
from .tuning.options import by_layers, read_options, rows_at_once, unfit_devices, unshared
from .tuning.start import Start, bytecode_kept, leave_out_libraries, wake_device

_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without a workspace of fixed size, sums depend on timing
    "TOKENIZERS_PARALLELISM": "true",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL reports the trainer's class to its authors
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Start one process per device, or run as one of them; return the exit status."""
    options = read_options(arguments)
    if "RANK" in os.environ:
        return _process(options)
    devices = options.devices or devices_visible(os.environ)
    try:
        if by_layers(options) and NodeRanks(os.environ).nodes > 1:
            raise ValueError("--shard on with --use-4bit spreads layers over the devices of one node; omit one of them")
        rows_at_once(options, 1 if by_layers(options) else devices * NodeRanks(os.environ).nodes)
    except ValueError as error:
        return _fail(error, 2)
    if not by_layers(options) and (unfit := unfit_devices(options)):
        listed = ", ".join(map(str, unfit))
        print(f"finetune: a session with {listed} devices could not resume this job (--batch x --accumulate)")
    words = [sys.executable, str(Path(__file__).resolve()), *(sys.argv[1:] if arguments is None else arguments)]
    return _until_it_fits(options, words, devices)


def _until_it_fits(options: argparse.Namespace, words: list[str], devices: int) -> int:
    """Run the processes to their end. If memory is too small, run them again with steps computed in smaller parts."""
    more = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    more |= bytecode_kept(options.cache)
    nodes = NodeRanks(os.environ).nodes
    # Whether to shard is decided if there is one device or an option that decides it.
    decided = devices * nodes == 1 or options.shard != "auto" or bool(options.zero or unshared(options))
    at_once = rows_at_once(options, 1 if by_layers(options) else devices * nodes)
    levels, shared = options.gradient_checkpointing, options.shard == "on"
    wanted = memory.Fit(at_once, levels, shared, options.optimizer, options.length)
    ranks, fit = Ranks(), wanted
    lowered: list[str] = []
    while True:
        count = 1 if fit.shared and options.bits == 4 else devices
        status = ranks.run([*words, *lowered], count, more)
        if ranks.stop_requested or status not in (memory.STATUS, memory.STATUS_BY_LAYERS):
            return status
        by_halves = options.stage in ("sft", "selftrain")  # in other stages, TRL checkpoints all layers or none
        less = memory.smaller(fit, by_halves=by_halves, shareable=not decided, may_change=_may_change(options, fit))
        if status == memory.STATUS_BY_LAYERS:
            less = fit._replace(shared=True)
        if nodes > 1:  # the launchers of the other nodes would not learn of the change
            return _fail("out of memory; choose a smaller --rows-at-once or --gradient-checkpointing")
        if less is None:
            return _fail(f"out of memory with one row at a time; {_remedy(options)}")
        fit = less
        lowered = memory.words_for(fit, wanted)
        _fail(f"a step did not fit into memory; trying again with {' '.join(lowered)}")


def _may_change(options: argparse.Namespace, fit: memory.Fit) -> set[str]:
    """Return the options of --may-change that can be changed in this set-up."""
    may = set(options.may_change)
    shards_weights = fit.shared and not options.lora  # the 8-bit optimiser does not support sharded weights
    if options.zero or shards_weights or find_spec("bitsandbytes") is None:
        may -= {"optimizer"}
    return may


def _remedy(options: argparse.Namespace) -> str:
    names = [name for name in memory.CHANGES if name not in options.may_change and options.stage == "sft"]
    also = f", or allow a change of the training (E2): --may-change {','.join(names)}" if names else ""
    return f"use --use-4bit, --offload (if all weights are trained) or a smaller --length{also}"


def _fail(why: object, status: int = 1) -> int:
    """Print ``why`` on standard error; return ``status``."""
    print(f"finetune: {why}", file=sys.stderr)
    return status


def _process(options: argparse.Namespace) -> int:
    """Train as one rank of the process group; return the exit status."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("SCHED_PROGRESS"):
        return _fail(
            "torchrun ends at SIGUSR1, the signal by which the agent requests checkpoints. Start this program without "
            "torchrun: it starts one process for each device of the session by itself",
            2,
        )
    try:
        _train(options, Training(), int(os.environ.get("LOCAL_RANK", "0")))
    except TrainingRefused as error:
        return _fail(error)
    except UnreadableData as error:
        return _fail(error, EXIT_DATA)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" in {error.filename}" if error.filename else ""
        return _fail(
            f"{error.strerror}{where}: the disk is full. Packed rows are in {options.cache} (--cache), checkpoints are "
            "on the session's own disk"
        )
    except (MemoryError, RuntimeError) as error:
        if not memory.is_too_small(error):
            raise
        # Exit at once: the launcher must see this status before the other ranks fail because this one is missing.
        os._exit(memory.STATUS_BY_LAYERS if isinstance(error, memory.TooLargeForOneDevice) else memory.STATUS)
    return 0


def _train(options: argparse.Namespace, training: Training, local_rank: int) -> None:
    """Train. Torch is imported here and not at the top, because the launcher does not need it."""
    options.model = find_base(options.model)
    if options.warmup > training.target_step and local_rank == 0:
        print(f"finetune: --warmup {options.warmup} is longer than the training, so --rate is never reached")
    if options.stage in ("sft", "selftrain"):
        start = Start()
        wake_device(local_rank)
        leave_out_libraries(options)
        from .tuning import session

        session.train(options, training, local_rank, NO_CORPUS, start)
        return
    from .trainer_callback import SchedulerCallback
    from .tuning import preferences

    preferences.train(options, training, local_rank, NO_CORPUS, SchedulerCallback)


if __name__ == "__main__":
    sys.exit(main())
