"""The command line of finetune.py."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .data.tally import SKIP_AT_MOST
from .errors import TrainingRefused
from .memory import ALL, CHANGES, HALF, OFFLOAD

# DeepSpeed's configuration, made from the command line; a file of one's own may say more of ZeRO, and nothing else.
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


_USUAL_RANK = 16
STAGES = ("sft", "dpo", "kto", "grpo", "selftrain")


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; ends the program with status 2 and a reason where it means nothing."""
    parser = argparse.ArgumentParser(prog="finetune", description="Fine-tune a causal language model.")
    add = parser.add_argument_group("model").add_argument
    add("--model", required=True, help="folder or name of a pretrained model with its tokenizer, or input:NAME")
    add("--lora", type=int, default=0, metavar="RANK", help="train an adapter of this rank; 0: all weights")
    add("--use-lora", action="store_true", help=f"the same as --lora {_USUAL_RANK}")
    add("--alpha", type=int, metavar="N", help="scale of the adapter (default: twice its rank)")
    add("--dropout", type=float, default=0.0, help="dropout of the adapter; above 0 it takes much memory")
    add("--use-4bit", action="store_true", help="keep the frozen base in 4 bits (NF4, bitsandbytes)")
    _add_stage(parser)
    add = parser.add_argument_group("steps (--batch x --accumulate rows each, on however many devices)").add_argument
    add("--length", type=int, default=1024, help="tokens a row")
    add("--image-tokens", type=int, default=256, metavar="N", help="of each image of a row, at most")
    add("--batch", "--batch-size", type=int, default=4, help="rows at a time on a device, at most")
    add("--accumulate", "--gradient-accumulation-steps", type=int, default=8, help="batches a step on one device")
    add(
        "--rows-at-once",
        type=int,
        metavar="N",
        help="at most so many of --batch at a time; halved when memory is short",
    )
    add("--rate", type=float, help="highest learning rate (sft, selftrain: 2e-4; else 1e-5)")
    add("--warmup", type=int, default=100, help="steps until it is reached")
    add("--schedule", choices=("cosine", "constant"), default="cosine", help="the rate afterwards")
    add("--optimizer", choices=("adamw", "adamw8bit"), default="adamw", help="8 bit: bitsandbytes")
    add("--decay", type=float, default=0.0, help="weight decay of matrices")
    add("--clip", type=float, default=1.0, help="highest norm of the gradients; 0: any")
    _add_machine(parser)
    parser.add_argument("--report-every", type=int, default=10, metavar="STEPS", help="steps between losses")
    parser.add_argument(
        "--accept-inexact", action="store_true", help="go on from a checkpoint that was made otherwise (class E2)"
    )
    options = parser.parse_args(arguments)
    options.changed = dict(options.changed)
    options.bits = 4 if options.use_4bit else 16
    options.gradient_checkpointing = options.gradient_checkpointing == ALL or options.gradient_checkpointing
    if (options.use_lora or options.use_4bit) and not options.lora:
        options.lora = _USUAL_RANK
    options.alpha = options.alpha or 2 * options.lora
    if options.rows_at_once is not None and options.rows_at_once < 1:
        parser.error("--rows-at-once must be at least 1")
    counts = ("length", "image_tokens", "batch", "accumulate", "report_every", "new_tokens", "prompts", "round_steps")
    for name in counts:
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    _read_zero(options, parser)
    # Known with the model and the device: whether weights are shared out, documents of a row are kept apart by their
    # ends, or each has rows of its own; and on how many devices the layers of a base in 4 bits lie.
    options.shared = options.apart = options.alone = False
    options.spread = 1
    if options.shard == "on" and (why := unshared(options)):
        parser.error(f"--shard on: {why}")
    if options.precision == "fp8" and (not options.lora or options.bits == 4 or options.zero):
        parser.error("--precision fp8 is for a frozen base in 16 bits: say --lora, and neither --use-4bit nor --zero")
    options.rate = options.rate or (2e-4 if options.stage in ("sft", "selftrain") else 1e-5)
    _check_stage(options, parser)
    for name in ("model", "data"):
        value = getattr(options, name)
        if value and value.startswith("input:"):
            setattr(options, name, _input(name, value.removeprefix("input:"), parser))
    return options


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("machine").add_argument
    add("--devices", type=int, metavar="N", help="use so many (default: all that the session has)")
    add(
        "--precision",
        choices=("auto", "bf16", "fp16", "fp32", "fp8"),
        default="auto",
        help="of products (fp8: of a frozen base's, under an adapter; another training, class E2)",
    )
    add(
        "--gradient-checkpointing",
        nargs="?",
        const=ALL,
        choices=(ALL, HALF, OFFLOAD),
        default=False,
        metavar="LAYERS",
        help="less memory for more time: all layers, half of them, or offload: all, with their inputs in the machine's "
        "memory",
    )
    add(
        "--compile", choices=("auto", "on", "off"), default="auto", help="compile each layer (auto: where Triton works)"
    )
    add("--deterministic", action="store_true", help="the same bits each time, some steps slower")
    add(
        "--background-saves",
        choices=("auto", "on", "off"),
        default="auto",
        help="copy what is saved to memory, and train on while it is written (auto: what is big, where it fits)",
    )
    add(
        "--may-change",
        type=_names,
        default=(),
        metavar="WHAT",
        help="optimizer,length: where memory is short and nothing else is left, an optimiser in 8 bits, then rows half "
        "as long. Another training (class E2), which it stays",
    )
    # Of it, by the launcher: what was asked for.
    add("--changed", type=_was, action="append", default=[], help=argparse.SUPPRESS)
    add("--cache", type=Path, default=_cache(), help="folder for packed rows, and what fitted here")
    add(
        "--shard",
        choices=("auto", "on", "off"),
        default="auto",
        help="share weights out over the devices (auto: where they do not fit one)",
    )
    add(
        "--zero",
        "--zero-stage",
        type=int,
        choices=(0, 1, 2, 3),
        default=0,
        help="share out all weights' states (1), gradients (2), weights (3) by DeepSpeed",
    )
    add(
        "--offload",
        action="store_true",
        help="keep what --zero (2, if it is not said) shares out in the machine's memory",
    )
    add("--deepspeed", "--deepspeed-config", metavar="FILE", help="take --zero, --offload and more of ZeRO from it")
    add("--no-deepspeed", action="store_true", help="the same as --zero 0")
    add("--local_rank", action=_Launched, nargs="?", help=argparse.SUPPRESS)


def _add_stage(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is learned").add_argument
    add(
        "--stage",
        choices=STAGES,
        default="sft",
        help="sft: to write the records; dpo, kto: what is preferred; grpo: what --reward scores best; selftrain: to "
        "write what it wrote itself and --reward let pass",
    )
    add("--data", metavar="FOLDER", help="of train-*.jsonl, or input:NAME (default: the job's corpus, SCHED_DATA_DIR)")
    add(
        "--skip-at-most",
        type=_percent,
        default=SKIP_AT_MOST,
        metavar="PERCENT",
        help="of the records may be left out, since nothing can be learned from them (default: 1)",
    )
    add("--beta", type=float, help="how much leaving the first model costs (dpo, kto: 0.1, grpo: 0)")
    add(
        "--reward",
        action="append",
        default=[],
        metavar="COMMAND",
        help='scores what was written, as an evaluation does: "{python} {payload}/scorers generation"; may be repeated',
    )
    add("--reward-seconds", type=float, default=600.0, metavar="S", help="a command may take for a step")
    add("--generations", type=int, default=8, metavar="N", help="texts that are compared for a prompt")
    add("--new-tokens", type=int, default=256, metavar="N", help="of a text that is written, at most")
    add("--prompts", type=int, default=64, metavar="N", help="selftrain: of a round")
    add("--round-steps", type=int, default=50, metavar="N", help="selftrain: on what passed, till a next")
    add("--least", type=float, default=1.0, metavar="REWARD", help="selftrain: with which a text passes")
    add("--temperature", type=float, default=1.0, help="at which texts are written")


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no percentage from 0 to 100")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in CHANGES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(CHANGES)}")
    return names


def _was(text: str) -> tuple[str, str | int]:
    name, _, was = text.partition("=")
    return name, int(was) if name == "length" else was


class _Launched(argparse.Action):
    """Refuses what only DeepSpeed's launcher says."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            f"{self.option_strings[0]}: start this program without a launcher: it starts one process for each device "
            "of the session by itself, and passes on the signals by which the agent asks for checkpoints"
        )


def _read_zero(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Settle ``zero``, ``offload`` and ``zero_more``: what a file says of ZeRO beside them."""
    options.zero_more = {}
    if options.no_deepspeed:
        if options.zero or options.offload or options.deepspeed:
            parser.error("--no-deepspeed contradicts --zero, --offload and --deepspeed")
        return
    if options.deepspeed:
        try:
            more = read_file(options.deepspeed)
        except TrainingRefused as error:
            parser.error(str(error))
        stage = more.pop("stage")
        if options.zero not in (0, stage):
            parser.error(f"--zero {options.zero} contradicts {options.deepspeed}, whose stage is {stage}")
        options.zero, options.zero_more = stage, more
        options.offload = options.offload or (more.get("offload_optimizer") or {}).get("device") == "cpu"
    elif options.offload and not options.zero:
        options.zero = 2
    if options.zero and (why := unzeroed(options)):
        parser.error(f"--zero: {why}")
    if options.zero and options.compile == "auto":  # its hooks would break each layer in pieces
        options.compile = "off"


def unzeroed(options: argparse.Namespace) -> str:
    """Return why DeepSpeed's ZeRO is of no use to a training, or ""."""
    if options.lora:
        return (
            "it shares out what all weights need to be trained. Of an adapter that is a hundredth: leave it out (each "
            "device has the base, in 4 bits with --use-4bit), or say --shard on, which shares the base out"
        )
    if options.optimizer == "adamw8bit":
        return "its states are those of --optimizer adamw. Leave one of both out"
    if options.shard == "on":
        return "--shard on shares weights out without DeepSpeed. Leave one of both out"
    if options.stage != "sft":
        return f"it is for --stage sft; for {options.stage} every device has the model, in 4 bits if need be"
    return ""


def by_layers(options: argparse.Namespace) -> bool:
    """Return whether one process computes on all devices, each of which has some layers of a base in 4 bits."""
    return bool(options.bits == 4 and options.shard == "on")


def unshared(options: argparse.Namespace) -> str:
    """Return why weights cannot be shared out, whatever their size, or ""."""
    if options.precision == "fp8":
        return "products in fp8 need whole weights. Leave one of both out"
    if options.optimizer == "adamw8bit" and not options.lora:
        return (
            "an optimiser in 8 bits takes whole weights only, and its state would be shared out as well. Leave it out"
        )
    if options.stage != "sft":
        return f"it is for --stage sft; for {options.stage} every device has the model, in 4 bits if need be"
    return ""


def _check_stage(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End with a reason where what is asked for means nothing in this stage."""
    if options.stage not in ("grpo", "selftrain") and options.reward:
        parser.error(f"--reward is for --stage grpo and selftrain; {options.stage} learns from records alone")
    if options.stage in ("grpo", "selftrain") and not options.reward:
        example = "{python} {payload}/scorers generation"
        parser.error(f'--stage {options.stage} needs --reward COMMAND, such as "{example}"')
    if options.stage == "selftrain" and options.new_tokens >= options.length:
        parser.error(f"--new-tokens {options.new_tokens} leave no room for a prompt in --length {options.length}")
    rows = options.batch * options.accumulate
    if options.stage == "grpo" and (options.generations < 2 or rows % options.generations):
        parser.error(
            f"--generations {options.generations}: a step writes --batch x --accumulate = "
            f"{rows} texts, which must be whole groups of two or more for a prompt"
        )
    if options.stage == "sft":
        return
    if options.may_change:
        parser.error(f"--may-change is for --stage sft; {options.stage} compares with what it was before")
    if options.background_saves == "on":
        parser.error(f"--background-saves on is for --stage sft; {options.stage} saves between its steps")
    options.background_saves = "off"
    if options.compile == "auto":  # rows of all lengths come here, and each would be compiled
        options.compile = "off"


def _input(option: str, named: str, parser: argparse.ArgumentParser) -> str:
    folder = os.environ.get(f"SCHED_INPUT_{named.upper().replace('-', '_')}")
    if not folder:
        parser.error(
            f"--{option}: the job has no input {named!r}; its definition would say inputs = {{ {named} = ... }}"
        )
    return folder


def rows_at_once(options: argparse.Namespace, devices: int) -> int:
    """Return how many rows a device takes at a time, so that a step has its rows on so many devices.

    The largest number up to --batch that divides a device's share. Raises ValueError when the rows cannot be shared.
    """
    rows = options.batch * options.accumulate
    share, rest = divmod(rows, devices)
    if rest:
        raise ValueError(
            f"the {rows} rows of a step (--batch {options.batch} x --accumulate {options.accumulate}) cannot be "
            f"shared by {devices} devices: choose a number that {devices} divides, or fewer --devices"
        )
    most = min(options.batch, share, options.rows_at_once or share)
    count = next(number for number in range(most, 0, -1) if share % number == 0)
    if options.stage == "kto" and count < 2:
        raise ValueError(
            f"--stage kto compares the answers of a device with each other, and of the {rows} rows of a step "
            f"(--batch {options.batch} x --accumulate {options.accumulate}) each of {devices} devices would take one "
            f"at a time: choose a --batch of 2 or more and {2 * devices} rows a step, or fewer --devices"
        )
    return count


def unfit_devices(options: argparse.Namespace) -> list[int]:
    """Return up to eight the numbers of devices that a step of these options cannot be shared by."""
    unfit = []
    for devices in (1, 2, 4, 8):
        try:
            rows_at_once(options, devices)
        except ValueError:
            unfit.append(devices)
    return unfit


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uff-scheduler" / "rows"
