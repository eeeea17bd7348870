"""DeepSpeed's configuration, made from the command line; a file of one's own may say more of ZeRO, and nothing else."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from .errors import TrainingRefused

_ZERO = "zero_optimization"
_PLACES = ("offload_optimizer", "offload_param")
_BUCKET = 50_000_000  # values that travel together; DeepSpeed's own number takes 1 GB of a device twice


def read_file(path: str) -> dict[str, Any]:
    """Return what a ds_config.json says of ZeRO. Raises TrainingRefused for another file or no stage."""
    try:
        config = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise TrainingRefused(f"--deepspeed {path}: {error}") from None
    zero = config.get(_ZERO) if isinstance(config, dict) else None
    if not isinstance(zero, dict) or zero.get("stage") not in (1, 2, 3):
        raise TrainingRefused(f'--deepspeed {path}: it has no "{_ZERO}" with a "stage" of 1, 2 or 3')
    for place in _PLACES:
        if (named := (zero.get(place) or {}).get("device", "none")) not in ("none", "cpu"):
            raise TrainingRefused(f"--deepspeed {path}: {place} to {named!r} is not known here; cpu or none")
    # What Trainer would fill in ("auto") has its value here anyway.
    return {name: value for name, value in zero.items() if value != "auto"}


def zero_config(
    options: argparse.Namespace, precision: str, weights: int, processes: int, rows_at_once: int
) -> dict[str, Any]:
    """Return the whole configuration for a model of so many weights, trained by so many processes.

    Each of them takes ``rows_at_once`` of a step's rows.
    """
    rows = options.batch * options.accumulate
    bucket = min(weights, _BUCKET)
    zero: dict[str, Any] = {"stage": options.zero, "reduce_bucket_size": bucket, "allgather_bucket_size": bucket}
    if options.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
        if options.zero == 3:
            zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    zero |= options.zero_more
    if options.deterministic:
        zero["overlap_comm"] = False  # sums must not depend on the moment
    return {
        "train_micro_batch_size_per_gpu": rows_at_once,
        "gradient_accumulation_steps": rows // (processes * rows_at_once),
        "gradient_clipping": options.clip,
        "bf16": {"enabled": precision == "bf16"},
        # As torch's own scaler, whose state a checkpoint keeps.
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": 16, "loss_scale_window": 2000, "hysteresis": 1},
        # torch's AdamW steps on processors as quickly as DeepSpeed's, and needs no compiler where it runs.
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        _ZERO: zero,
    }
