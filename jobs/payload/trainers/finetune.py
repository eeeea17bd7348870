"""Fine-tune a causal language model: all its weights, or a LoRA adapter on a frozen base in 16 or 4 bits.

Needs torch, transformers and, for ``--lora``, peft, as the images of Kaggle and SageMaker bring them. Reads
``train-*.jsonl`` and ``heldout.jsonl`` (records of text, prompt and completion, or messages, one a line) below
SCHED_DATA_DIR. Uses every device that the session has, one process each, and makes the same steps on one as on four.
See docs/fine-tuning.md.
"""

from __future__ import annotations

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
from .tuning.base import find_base
from .tuning.errors import TrainingRefused, UnreadableData
from .tuning.memory import (
    CHANGES,
    STATUS,
    STATUS_BY_LAYERS,
    Fit,
    TooLargeForOneDevice,
    is_too_small,
    smaller,
    words_for,
)
from .tuning.options import by_layers, read_options, rows_at_once, unfit_devices, unshared
from .tuning.start import Start, bytecode_kept, leave_out_libraries, wake_device

_ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without a workspace of fixed size its sums depend on the moment
    "TOKENIZERS_PARALLELISM": "true",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "HF_HUB_DISABLE_TELEMETRY": "1",  # TRL tells its authors which trainer was made
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Start a process for each device; or be one of them."""
    options = read_options(arguments)
    if "RANK" in os.environ:
        return _process(options)
    devices = options.devices or devices_visible(os.environ)
    try:
        if by_layers(options) and NodeRanks(os.environ).nodes > 1:
            raise ValueError("--shard on with --use-4bit lays layers on the devices of one node: leave one of both out")
        rows_at_once(options, 1 if by_layers(options) else devices * NodeRanks(os.environ).nodes)
    except ValueError as error:
        print(f"finetune: {error}", file=sys.stderr)
        return 2
    if not by_layers(options) and (unfit := unfit_devices(options)):
        listed = ", ".join(map(str, unfit))
        print(f"finetune: a session with {listed} devices could not go on with this job (--batch x --accumulate)")
    words = [sys.executable, str(Path(__file__).resolve()), *(sys.argv[1:] if arguments is None else arguments)]
    return _until_it_fits(options, words, devices)


def _until_it_fits(options: argparse.Namespace, words: list[str], devices: int) -> int:
    """Run the processes; when memory was too small, run new ones that compute the same step in smaller parts."""
    more = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    more |= bytecode_kept(options.cache)
    nodes = NodeRanks(os.environ).nodes
    settled = devices * nodes == 1 or options.shard != "auto" or bool(options.zero or unshared(options))
    wanted = Fit(
        rows_at_once(options, 1 if by_layers(options) else devices * nodes),
        options.gradient_checkpointing,
        options.shard == "on",
        options.optimizer,
        options.length,
    )
    ranks, fit = Ranks(), wanted
    lowered: list[str] = []
    while True:
        count = 1 if fit.shared and options.bits == 4 else devices
        status = ranks.run([*words, *lowered], count, more)
        if ranks.told_to_stop or status not in (STATUS, STATUS_BY_LAYERS):
            return status
        by_halves = options.stage in ("sft", "selftrain")  # what TRL trains is checkpointed as a whole
        less = smaller(fit, by_halves=by_halves, shareable=not settled, may_change=_may_change(options, fit))
        if status == STATUS_BY_LAYERS:
            less = fit._replace(shared=True)
        if nodes > 1:  # who starts the processes of the other nodes does not know
            print(
                "finetune: out of memory; choose a smaller --rows-at-once or --gradient-checkpointing", file=sys.stderr
            )
            return 1
        if less is None:
            print(f"finetune: out of memory with one row at a time; {_remedy(options)}", file=sys.stderr)
            return 1
        fit = less
        lowered = words_for(fit, wanted)
        print(f"finetune: the memory did not hold a step; once more with {' '.join(lowered)}", file=sys.stderr)


def _may_change(options: argparse.Namespace, fit: Fit) -> set[str]:
    """Return what may be changed of the training, and can be where it runs."""
    may = set(options.may_change)
    whole_and_shared = fit.shared and not options.lora  # an optimiser in 8 bits takes whole weights only
    if options.zero or whole_and_shared or find_spec("bitsandbytes") is None:
        may -= {"optimizer"}
    return may


def _remedy(options: argparse.Namespace) -> str:
    left = [name for name in CHANGES if name not in options.may_change and options.stage == "sft"]
    also = f", or let it become another training (E2): --may-change {','.join(left)}" if left else ""
    return f"--use-4bit, --offload (for all weights) or a smaller --length need less{also}"


def _process(options: argparse.Namespace) -> int:
    """Train as one of the group's processes."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("SCHED_PROGRESS"):
        print(
            "finetune: torchrun ends at SIGUSR1, by which the agent asks for checkpoints. Start this program without "
            "it: it starts one process for each device of the session by itself",
            file=sys.stderr,
        )
        return 2

    try:
        _train(options, Training(), int(os.environ.get("LOCAL_RANK", "0")))
    except TrainingRefused as error:
        print(f"finetune: {error}", file=sys.stderr)
        return 1
    except UnreadableData as error:
        print(f"finetune: {error}", file=sys.stderr)
        return EXIT_DATA
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        where = f" in {error.filename}" if error.filename else ""
        print(
            f"finetune: {error.strerror}{where}: the disk is full. Packed rows lie in {options.cache} (--cache), and "
            "checkpoints on the session's own disk",
            file=sys.stderr,
        )
        return 1
    except (MemoryError, RuntimeError) as error:
        if not is_too_small(error):
            raise
        # At once: the process that started this one says what it means, and must hear it before the others miss us.
        os._exit(STATUS_BY_LAYERS if isinstance(error, TooLargeForOneDevice) else STATUS)
    return 0


def _train(options: argparse.Namespace, training: Training, local_rank: int) -> None:
    """Import what the stage needs, and train. Nothing of torch is loaded before: the launcher needs none."""
    options.model = find_base(options.model)
    if options.warmup > training.target_step and local_rank == 0:
        print(f"finetune: --warmup {options.warmup} is longer than the training, which never reaches its --rate")
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
