"""The command line of finetune.py: its options, their checks, and how a step's rows are divided over devices."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .data.tally import SKIP_AT_MOST
from .errors import TrainingRefused
from .memory import ALL, CHANGES, HALF, OFFLOAD

ZERO = "zero_optimization"
_PLACES = ("offload_optimizer", "offload_param")
_USUAL_RANK = 16
STAGES = ("sft", "dpo", "kto", "grpo", "selftrain")


def read_file(path: str) -> dict[str, Any]:
    """Return the ZeRO section of a ds_config.json. Raises TrainingRefused if it is missing or has no stage."""
    try:
        config = json.loads(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        raise TrainingRefused(f"--deepspeed {path}: {error}") from None
    zero = config.get(ZERO) if isinstance(config, dict) else None
    if not isinstance(zero, dict) or zero.get("stage") not in (1, 2, 3):
        raise TrainingRefused(f'--deepspeed {path}: it has no "{ZERO}" with a "stage" of 1, 2 or 3')
    for place in _PLACES:
        if (named := (zero.get(place) or {}).get("device", "none")) not in ("none", "cpu"):
            raise TrainingRefused(f"--deepspeed {path}: {place} to {named!r} is not supported; use cpu or none")
    # "auto" marks values that transformers' Trainer fills in. This trainer sets these values itself.
    return {name: value for name, value in zero.items() if value != "auto"}


def read_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed command line. If it is invalid, print the reason and exit with status 2."""
    parser = argparse.ArgumentParser(prog="finetune", description="Fine-tune a causal language model.")
    add = parser.add_argument_group("model").add_argument
    add("--model", required=True, help="folder or name of a pretrained model with its tokenizer, or input:NAME")
    add("--lora", type=int, default=0, metavar="RANK", help="train an adapter of this rank; 0: all weights")
    add("--use-lora", action="store_true", help=f"the same as --lora {_USUAL_RANK}")
    add("--alpha", type=int, metavar="N", help="scale of the adapter (default: twice its rank)")
    add("--dropout", type=float, default=0.0, help="dropout of the adapter; above 0 it needs much memory")
    add("--use-4bit", action="store_true", help="keep the frozen base in 4 bits (NF4, bitsandbytes)")
    _add_stage(parser)
    add = parser.add_argument_group("steps (--batch x --accumulate rows each, on any number of devices)").add_argument
    add("--length", type=int, default=1024, help="tokens per row")
    add("--image-tokens", type=int, default=256, metavar="N", help="maximum tokens per image")
    add("--batch", "--batch-size", type=int, default=4, help="maximum rows at a time on a device")
    add("--accumulate", "--gradient-accumulation-steps", type=int, default=8, help="batches per step on one device")
    add("--rows-at-once", type=int, metavar="N", help="maximum of --batch at a time; halved if memory is short")
    add("--rate", type=float, help="peak learning rate (sft, selftrain: 2e-4; else 1e-5)")
    add("--warmup", type=int, default=100, help="steps until --rate is reached")
    add("--schedule", choices=("cosine", "constant"), default="cosine", help="learning rate after warm-up")
    add("--optimizer", choices=("adamw", "adamw8bit"), default="adamw", help="adamw8bit: bitsandbytes")
    add("--decay", type=float, default=0.0, help="weight decay of matrices")
    add("--clip", type=float, default=1.0, help="maximum gradient norm; 0: no limit")
    _add_machine(parser)
    add = parser.add_argument
    add("--report-every", type=int, default=10, metavar="STEPS", help="steps between reported losses")
    add("--accept-inexact", action="store_true", help="resume a checkpoint of another training (class E2)")
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
    # These are set when model and device are known: whether weights are sharded, whether documents of a row are
    # separated by their ends or each has its own rows, and over how many devices layers of a 4-bit base are spread.
    options.shared = options.apart = options.alone = False
    options.spread = 1
    if options.shard == "on" and (why := unshared(options)):
        parser.error(f"--shard on: {why}")
    if options.precision == "fp8" and (not options.lora or options.bits == 4 or options.zero):
        parser.error("--precision fp8 is for a frozen base in 16 bits: set --lora, and neither --use-4bit nor --zero")
    options.rate = options.rate or (2e-4 if options.stage in ("sft", "selftrain") else 1e-5)
    _check_stage(options, parser)
    for name in ("model", "data"):
        value = getattr(options, name)
        if value and value.startswith("input:"):
            setattr(options, name, _input(name, value.removeprefix("input:"), parser))
    return options


def _add_machine(parser: argparse.ArgumentParser) -> None:
    add, choice = parser.add_argument_group("machine").add_argument, ("auto", "on", "off")
    add("--devices", type=int, metavar="N", help="number of devices (default: all of the session)")
    add(
        "--precision", choices=("auto", "bf16", "fp16", "fp32", "fp8"), default="auto",
        help="of matrix products (fp8: of a frozen base under an adapter; another training, class E2)",
    )  # fmt: skip
    add(
        "--gradient-checkpointing", nargs="?", const=ALL, choices=(ALL, HALF, OFFLOAD), default=False, metavar="LAYERS",
        help="less memory, more time: all layers, half of them, or offload: all, with layer inputs in host memory",
    )  # fmt: skip
    add("--compile", choices=choice, default="auto", help="compile each layer (auto: if Triton works)")
    add("--deterministic", action="store_true", help="bit-identical results in each run; some steps are slower")
    add(
        "--background-saves", choices=choice, default="auto",
        help="copy the state to host memory and write it while training goes on (auto: a large state that fits)",
    )  # fmt: skip
    add(
        "--may-change", type=_names, default=(), metavar="WHAT",
        help="optimizer,length: if memory is short and nothing else helps, use an 8-bit optimiser, then rows half as "
        "long; this is another training (class E2), and stays so",
    )  # fmt: skip
    add("--changed", type=_was, action="append", default=[], help=argparse.SUPPRESS)  # by the launcher: old values
    add("--cache", type=Path, default=_cache(), help="folder for packed rows, and for the settings that fitted")
    add("--shard", choices=choice, default="auto", help="shard weights over the devices (auto: if one is too small)")
    add(
        "--zero", "--zero-stage", type=int, choices=(0, 1, 2, 3), default=0,
        help="shard optimiser states (1), gradients (2) and weights (3) of a whole model by DeepSpeed",
    )  # fmt: skip
    add("--offload", action="store_true", help="keep the shards of --zero (default with it: 2) in host memory")
    add("--deepspeed", "--deepspeed-config", metavar="FILE", help="read --zero, --offload and more of ZeRO from it")
    add("--no-deepspeed", action="store_true", help="the same as --zero 0")
    add("--local_rank", action=_Launched, nargs="?", help=argparse.SUPPRESS)


def _add_stage(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("what is learned").add_argument
    add(
        "--stage", choices=STAGES, default="sft",
        help="sft: to write the records; dpo, kto: what is preferred; grpo: what --reward scores best; selftrain: to "
        "write its own texts that pass --reward",
    )  # fmt: skip
    add("--data", metavar="FOLDER", help="of train-*.jsonl, or input:NAME (default: the job's corpus, SCHED_DATA_DIR)")
    add(
        "--skip-at-most", type=_percent, default=SKIP_AT_MOST, metavar="PERCENT",
        help="of the records may be left out because nothing can be learned from them (default: 1)",
    )  # fmt: skip
    add("--beta", type=float, help="penalty for leaving the first model (dpo, kto: 0.1, grpo: 0)")
    add(
        "--reward", action="append", default=[], metavar="COMMAND",
        help='scores texts, as in an evaluation: "{python} {payload}/scorers generation"; may be repeated',
    )  # fmt: skip
    add("--reward-seconds", type=float, default=600.0, metavar="S", help="time limit of a command for one step")
    add("--generations", type=int, default=8, metavar="N", help="texts per prompt that are compared")
    add("--new-tokens", type=int, default=256, metavar="N", help="maximum length of a generated text")
    add("--prompts", type=int, default=64, metavar="N", help="selftrain: prompts per round")
    add("--round-steps", type=int, default=50, metavar="N", help="selftrain: steps per round")
    add("--least", type=float, default=1.0, metavar="REWARD", help="selftrain: reward with which a text passes")
    add("--temperature", type=float, default=1.0, help="of generation")


def _percent(text: str) -> float:
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if unknown := [name for name in names if name not in CHANGES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(CHANGES)}")
    return names


def _was(text: str) -> tuple[str, str | int]:
    name, _, was = text.partition("=")
    return name, int(was) if name == "length" else was


class _Launched(argparse.Action):
    """Refuses an option that only DeepSpeed's launcher sets."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        parser.error(
            f"{self.option_strings[0]}: start this program without a launcher. It starts one process for each device "
            "of the session by itself, and forwards the signals by which the agent requests checkpoints"
        )


def _read_zero(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Set ``zero``, ``offload`` and ``zero_more``: further values of ZeRO, from the file of --deepspeed."""
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
    if options.zero and options.compile == "auto":  # ZeRO's hooks would split each compiled layer
        options.compile = "off"


def unzeroed(options: argparse.Namespace) -> str:
    """Return why DeepSpeed's ZeRO does not help a training; "" if it does."""
    if options.lora:
        return (
            "it shards the states of trained weights, and an adapter has a hundredth of them. Omit it (each device has "
            "the base, in 4 bits with --use-4bit), or set --shard on, which shards the base"
        )
    if options.optimizer == "adamw8bit":
        return "its states are those of --optimizer adamw. Omit one of them"
    if options.shard == "on":
        return "--shard on shards weights without DeepSpeed. Omit one of them"
    return _not_in_stage(options)


def _not_in_stage(options: argparse.Namespace) -> str:
    if options.stage == "sft":
        return ""
    return f"it is for --stage sft. With {options.stage} every device has the whole model; --use-4bit makes it small"


def by_layers(options: argparse.Namespace) -> bool:
    """Return whether one process uses all devices, with the layers of a 4-bit base spread over them."""
    return bool(options.bits == 4 and options.shard == "on")


def unshared(options: argparse.Namespace) -> str:
    """Return why FSDP2 cannot shard the weights with these options; "" if it can."""
    if options.precision == "fp8":
        return "products in fp8 need whole weights. Omit one of them"
    if options.optimizer == "adamw8bit" and not options.lora:
        return "an optimiser in 8 bits takes whole weights only, and its state would be sharded as well. Omit it"
    return _not_in_stage(options)


def _check_stage(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with a reason if an option has no meaning in this stage."""
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
        parser.error(f"--may-change is for --stage sft; {options.stage} compares with the model before the change")
    if options.background_saves == "on":
        parser.error(f"--background-saves on is for --stage sft; {options.stage} saves between its steps")
    options.background_saves = "off"
    if options.compile == "auto":  # layers would be compiled for each length of a row
        options.compile = "off"


def _input(option: str, named: str, parser: argparse.ArgumentParser) -> str:
    folder = os.environ.get(f"SCHED_INPUT_{named.upper().replace('-', '_')}")
    if not folder:
        parser.error(f"--{option}: the job has no input {named!r}. Add inputs = {{ {named} = ... }} to its definition")
    return folder


def rows_at_once(options: argparse.Namespace, devices: int) -> int:
    """Return the largest micro-batch up to --batch that divides a device's share. Raises ValueError if none does."""
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
    """Return which of 1, 2, 4 and 8 devices cannot share the rows of a step."""
    unfit = []
    for devices in (1, 2, 4, 8):
        try:
            rows_at_once(options, devices)
        except ValueError:
            unfit.append(devices)
    return unfit


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uff-scheduler" / "rows"
