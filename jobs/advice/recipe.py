"""Recipes: the files and lines with which a choice is carried out, by our trainer or by a script of one's own."""

from __future__ import annotations

import json
from math import ceil
from typing import Any

from jobs.advice.choice import MARGIN, Choice
from jobs.advice.setup import Setup

_ZERO = {"zero1": 1, "zero2": 2, "zero3": 3}
_REQUIREMENTS = "requirements.txt"


def flags(setup: Setup) -> str:
    """Return the flags of train_ds.py and finetune.py: the same words for both."""
    words = {"qlora": ["--use-4bit", "--use-lora"], "lora": ["--use-lora"], "full": []}[setup.method]
    words += [f"--batch-size {setup.batch}", f"--gradient-accumulation-steps {setup.accumulate}"]
    return " ".join([*words, *([] if setup.sharded else ["--no-deepspeed"])])


def command(choice: Choice, model: str) -> list[str]:
    """Return our trainer's command line, which starts one process for each device by itself."""
    setup = choice.setup
    words = ["{python}", "{payload}/trainers/finetune.py", "--model", model, "--length", str(setup.seq)]
    # --batch x --accumulate are the rows of a step on however many devices.
    words += ["--batch", str(setup.batch), "--accumulate", str(setup.accumulate * setup.devices)]
    words += {"qlora": ["--use-4bit"], "lora": [], "full": []}[setup.method]
    words += ["--lora", str(setup.rank)] if setup.method != "full" else []
    words += ["--gradient-checkpointing"] if setup.checkpointing else []
    words += ["--image-tokens", str(setup.image_tokens)] if setup.image_tokens else []
    words += ["--optimizer", "adamw8bit"] if setup.optimizer == "adamw8bit" else []
    words += ["--shard", "on"] if setup.parallel in ("fsdp", "layers") else []
    if setup.parallel in _ZERO:
        words += ["--zero", str(_ZERO[setup.parallel]), *(["--offload"] if setup.offload == "cpu" else [])]
    return words


def job_table(choice: Choice, model: str, source: str, steps: int) -> str:
    """Return a job's TOML; ``source`` is where its base model comes from, such as ``hf:owner/name``."""
    setup, zero = choice.setup, choice.setup.parallel in _ZERO
    why = f"Its speed is that on {choice.card.name}" if zero else "Its needs and its speed are left out"
    written = [
        f"# Written by schedctl advise. {why}: {'the adviser knows no other' if zero else 'the adviser knows both'}.",
        f"name = {_text(model)}",
        f"command = [{', '.join(map(_text, command(choice, 'input:base')))}]",
        f"inputs = {{ base = {_text(source)} }}",
        f"target_step = {steps}",
        "mixture = {}",
    ]
    if setup.sharded:  # what is read off the command is what one device would need
        gib = ceil(10 * choice.memory.gib * (1 + MARGIN)) / 10
        written += [f"needs = {{ devices = {setup.devices}, vram_gib = {gib:g} }}"]
    if zero:
        written += [f"steps_per_hour = {3_600 / choice.pace.step / gains_of(choice)[-1]:.3g}"]
        written += [f"requirements = {_text(_REQUIREMENTS)}"]
    if setup.devices > 1:
        gains = ", ".join(f"{gain:.2f}" for gain in gains_of(choice))
        written += [f"device_speedup = [{gains}]"]
    return "\n".join(written) + "\n"


def gains_of(choice: Choice) -> list[float]:
    """Return how much quicker one device, two devices and so on are than one."""
    pace, setup = choice.pace, choice.setup
    if setup.parallel == "layers":
        return [1.0] * setup.devices
    alone = (pace.step - pace.link) * setup.devices
    return [1.0, *(alone / (alone / count + pace.link) for count in range(2, setup.devices + 1))]


def deepspeed(setup: Setup) -> dict[str, Any]:
    """Return DeepSpeed's configuration; of a set-up that needs none, the stage 0 that changes nothing."""
    stage = {**_ZERO, "fsdp": 3}.get(setup.parallel, 0)
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    if setup.offload != "none":
        place: dict[str, Any] = {"device": setup.offload, "pin_memory": True}
        place |= {"nvme_path": "/local_nvme"} if setup.offload == "nvme" else {}
        zero["offload_optimizer"] = place
        if stage == 3:
            zero["offload_param"] = place
    if stage == 3:
        zero |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "train_micro_batch_size_per_gpu": setup.batch,
        "gradient_accumulation_steps": setup.accumulate,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": setup.precision == "bf16"},
        "fp16": {"enabled": setup.precision == "fp16"},
        "zero_optimization": zero,
    }


def files(choice: Choice, model: str, source: str, steps: int) -> dict[str, str]:
    """Return what is needed to run a choice, by the name of the file."""
    setup = choice.setup
    launch = [
        "# One process a card. Two visible cards without torchrun are nn.DataParallel, which is slower than one.",
        f"torchrun --standalone --nproc_per_node {setup.devices} train.py {flags(setup)}",
        (
            f"accelerate launch --num_processes {setup.devices} --mixed_precision {setup.precision} "
            f"train.py {flags(setup)}"
        ),
    ]
    if setup.parallel == "layers":
        launch = [f"# One process for all cards: device_map in the script.\npython train.py {flags(setup)}"]
    elif setup.sharded:
        launch.append(f"deepspeed --num_gpus={setup.devices} train_ds.py {flags(setup)}")
    launch += ["# The flags of train_ds.py:", flags(setup)]
    written = {"launch.sh": "\n".join(launch) + "\n", "ds_config.json": json.dumps(deepspeed(setup), indent=2) + "\n"}
    # Our trainer keeps nothing on NVMe, and its ZeRO no states in 8 bits.
    eight = setup.parallel in _ZERO and setup.optimizer != "adamw"
    if setup.offload != "nvme" and not eight:
        written["job.toml"] = job_table(choice, model, source, steps)
        if setup.parallel in _ZERO:
            written[_REQUIREMENTS] = "deepspeed\n"
    return written


def _text(text: str) -> str:
    return json.dumps(text)  # a TOML basic string is a JSON string as long as nothing lies beyond ASCII
