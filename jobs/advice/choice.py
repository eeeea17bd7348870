"""Choices: the options for training a model on a device, with their costs, and the recommended one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from math import ceil, log10
from typing import Any, Literal

from jobs.advice.memory import Memory, Pace, Storage, memory_of, storage_of
from jobs.advice.seen import Measurement, memory_seen, pace_seen
from jobs.advice.shape import GIB, RANK, STACKS, Card, Method, Offload, Optimizer, Parallel, Setup, Shape, Stack, cards

MARGIN = 0.08
"""Share by which a peak may exceed the prediction and still fit; the worst published peak is 7 % above."""

_HARDLY_FASTER = 1.03  # a micro-batch that is faster by less than this factor is not worth its memory

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """A user's request: ``rows`` of ``seq`` tokens per step on all devices, ``tokens`` in total (0: not given).

    Only ``methods`` are recommended (empty: all but full). ``usd_per_hour`` is the machine's price; without it the cost
    is electricity, at ``usd_kwh``. ``probed`` are pairs of a method and its measured bytes per token and layer.
    """

    seq: int = 2048
    rows: int = 16
    tokens: float = 0
    methods: tuple[Method, ...] = ()
    batch: int = 0
    rank: int = RANK
    stack: Stack = STACKS["finetune-compiled"]
    image: tuple[int, int] = (0, 0)
    ram_gib: float = 128.0
    usd_per_hour: float | None = None
    usd_kwh: float = 0.30
    parallel: Parallel | None = None
    offload: Offload | None = None
    optimizer: Optimizer | None = None
    checkpointing: bool | None = None
    probed: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One option (``rung``) on a card: its set-up, its memory, its speed, and its hours, kWh and dollars."""

    rung: str
    setup: Setup
    card: Card
    memory: Memory
    storage: Storage
    pace: Pace
    verdict: Verdict
    why: str
    hours: float
    hours_p90: float
    kwh: float
    usd: float

    @property
    def margin(self) -> float:
        """The share of the device memory that stays free."""
        return 1 - self.memory.gib / self.card.usable_gib


@dataclass(frozen=True, slots=True)
class Advice:
    """All options, and the recommended one (``best``). If none fits, ``nearest`` describes the nearest that would."""

    shape: Shape
    card: Card
    devices: int
    wishes: Wishes
    rungs: tuple[Choice, ...]
    best: Choice | None
    nearest: str = ""


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    method: Method
    parallel: Parallel = "none"
    offload: Offload = "none"
    optimizer: Optimizer = "adamw"
    master: bool = True
    least: int = 1  # devices


_OPTIONS = (
    _Option("QLoRA", "qlora"),
    _Option("LoRA", "lora"),
    _Option("LoRA, base shared out", "lora", "fsdp", least=2),
    _Option("QLoRA, layers shared out", "qlora", "layers", least=2),
    _Option("full, 8 bit Adam", "full", optimizer="adamw8bit", master=False),
    _Option("full, 16 bit weights", "full", master=False),
    _Option("full, AMP", "full"),
    _Option("full, ZeRO-1", "full", "zero1", least=2),
    _Option("full, ZeRO-2", "full", "zero2", least=2),
    _Option("full, ZeRO-2, RAM", "full", "zero2", "cpu"),
    _Option("full, ZeRO-3", "full", "zero3", least=2),
    _Option("full, FSDP2", "full", "fsdp", least=2),
    _Option("full, ZeRO-3, RAM", "full", "zero3", "cpu"),
    _Option("full, ZeRO-3, NVMe", "full", "zero3", "nvme"),
)
_BETTER: tuple[Method, ...] = ("full", "lora", "qlora")


def advise(shape: Shape, card: Card, devices: int, wishes: Wishes, measurements: Sequence[Measurement] = ()) -> Advice:
    """Return all options for a model on so many ``devices`` of a card, and the recommended one."""
    methods = wishes.methods or ("qlora", "lora", "full")
    choices = []
    for option in _OPTIONS:
        if option.method not in methods or devices < option.least:
            continue
        if option.method == "qlora" and not card.four_bits:
            continue
        if _is_ours(wishes.stack) and not option.master and option.optimizer == "adamw":
            continue  # our trainer keeps fp32 weights
        if wishes.parallel not in (None, option.parallel, "ddp" if option.parallel == "none" else None):
            continue
        if wishes.offload not in (None, option.offload):
            continue
        if wishes.optimizer and option.optimizer == "adamw8bit" != wishes.optimizer:
            continue
        chosen = replace(option, optimizer=wishes.optimizer or option.optimizer)
        choices.append(_best(chosen, shape, card, devices, wishes, measurements))
    wanted = wishes.methods or ("lora", "qlora")
    fit = [choice for choice in choices if choice.verdict == "fits" and choice.setup.method in wanted]
    fit = fit or [choice for choice in choices if choice.verdict == "tight" and choice.setup.method in wanted]
    best = min(fit, key=_preference, default=None)
    would_fit = "" if best else nearest(shape, card, devices, wishes)
    return Advice(shape, card, devices, wishes, tuple(choices), best, would_fit)


def _is_ours(stack: Stack) -> bool:
    return stack.name.startswith("finetune")


def _preference(choice: Choice) -> tuple[bool, int, float]:
    """Return a sort key: unsharded before sharded weights, then 16 bits before 4, then fast before slow."""
    return choice.setup.sharded, _BETTER.index(choice.setup.method), choice.hours


def _best(
    option: _Option, shape: Shape, card: Card, devices: int, wishes: Wishes, measurements: Sequence[Measurement]
) -> Choice:
    """Return about the fastest micro-batch of an option that fits; the smallest if none fits."""
    setups = _setups(option, shape, card, devices, wishes)
    choices = [priced(option.name, setup, card, wishes, measurements) for setup in setups]
    fit = [each for each in choices if each.verdict == "fits"] or [each for each in choices if each.verdict == "tight"]
    if not fit:
        return min(choices, key=lambda choice: choice.memory.total)
    longest = _HARDLY_FASTER * min(choice.pace.step for choice in fit)
    return min((choice for choice in fit if choice.pace.step <= longest), key=lambda choice: choice.memory.total)


def _setups(option: _Option, shape: Shape, card: Card, devices: int, wishes: Wishes) -> Iterator[Setup]:
    parallel: Parallel = option.parallel if option.parallel != "none" else "ddp" if devices > 1 else "none"
    stack = wishes.stack
    if _is_ours(stack) and option.parallel not in ("none", "layers"):
        stack = STACKS["transformers"]  # the memory of our sharding was not measured
    elif stack.compiled and not card.compiles:
        stack = STACKS["finetune"]
    vision = shape.vision
    image = vision.tokens(*wishes.image) if vision is not None and all(wishes.image) else 0
    most = max(1, wishes.rows // devices)
    for checkpointing in (False, True) if wishes.checkpointing is None else (wishes.checkpointing,):
        batch = wishes.batch or 1
        while batch <= max(most, wishes.batch):
            accumulate = max(1, -(-wishes.rows // (devices * batch)))
            yield Setup(
                shape=shape,
                method=option.method,
                seq=wishes.seq,
                batch=batch,
                accumulate=accumulate,
                devices=devices,
                rank=wishes.rank,
                optimizer=option.optimizer,
                master=option.master or _is_ours(stack),
                checkpointing=checkpointing,
                parallel=parallel,
                offload=option.offload,
                precision=card.precision,
                stack=stack,
                image_tokens=image,
                probed=dict(wishes.probed).get(option.method, 0.0),
            )
            if wishes.batch:
                break
            batch *= 2


def priced(option: str, setup: Setup, card: Card, wishes: Wishes, measurements: Sequence[Measurement] = ()) -> Choice:
    """Return a set-up on a card as a choice of this option name, with its memory, time and cost."""
    memory = memory_seen(memory_of(setup), setup, card, measurements)
    storage, pace = storage_of(setup), pace_seen(setup, card, measurements)
    tokens = wishes.tokens or 1e6
    hours, late = pace.hours(tokens), pace.hours(tokens, 0.9)
    kwh = hours * card.watts * setup.devices / 1_000
    usd = kwh * wishes.usd_kwh if wishes.usd_per_hour is None else hours * wishes.usd_per_hour
    verdict, why = judged(memory, storage, card, wishes)
    return Choice(option, setup, card, memory, storage, pace, verdict, why, hours, late, kwh, usd)


def judged(memory: Memory, storage: Storage, card: Card, wishes: Wishes) -> tuple[Verdict, str]:
    """Return whether a device and its machine can hold a set-up, and the figures that decide."""
    have = card.usable_gib
    if memory.gib > have:
        part = memory.largest
        return "does not fit", (
            f"{memory.gib:.1f} GiB of {have:g}; largest part: {part.name}, {part.bytes / GIB:.1f} GiB ({part.formula})"
        )
    if storage.ram / GIB > wishes.ram_gib:
        return "does not fit", f"{storage.ram / GIB:.0f} GiB of RAM are needed, and the machine has {wishes.ram_gib:g}"
    if memory.gib * (1 + MARGIN) > have:
        return "tight", f"{memory.gib:.1f} GiB of {have:g} leave less than {100 * MARGIN:.0f} %: try a few steps first"
    return "fits", f"{memory.gib:.1f} GiB of {have:g}"


def nearest(shape: Shape, card: Card, devices: int, wishes: Wishes) -> str:
    """Return the smallest change after which a training fits, as text; "" if there is none."""
    relaxed = replace(wishes, batch=0, checkpointing=None, parallel=None, offload=None, optimizer=None)
    if relaxed != wishes:
        choice = advise_once(shape, card, devices, relaxed)
        if choice is not None:
            return f"with {choice.setup.text}: {choice.why}"
    seq = wishes.seq
    while seq > 256:
        seq //= 2
        if (choice := advise_once(shape, card, devices, replace(relaxed, seq=seq))) is not None:
            return f"with rows of {seq} tokens ({choice.setup.text}): {choice.why}"
    easier: tuple[tuple[Method, ...], ...] = (("lora",), ("qlora",))
    for methods in easier:
        if wishes.methods and methods[0] not in wishes.methods:
            choice = advise_once(shape, card, devices, replace(relaxed, methods=methods))
            if choice is not None:
                return f"with {choice.setup.text}: {choice.why}"
    for other in sorted(cards().values(), key=lambda other: other.usable_gib):
        if other.usable_gib > card.usable_gib and (choice := advise_once(shape, other, devices, relaxed)) is not None:
            return f"on {other.name} x{devices} with {choice.setup.text}: {choice.why}"
    return ""


def advise_once(shape: Shape, card: Card, devices: int, wishes: Wishes) -> Choice | None:
    """Return the choice of the first option that fits; None if none fits."""
    for option in _OPTIONS:
        if option.method not in (wishes.methods or ("lora", "qlora")) or devices < option.least:
            continue
        choice = _best(option, shape, card, devices, wishes, ())
        if choice.verdict == "fits":
            return choice
    return None


_WIDE, _HIGH, _LEFT, _TOP = 720, 420, 70, 30  # pixels of the picture, and of the margins of its axes


def compare(
    shape: Shape,
    machines: Sequence[tuple[Card, int, float | None]],
    wishes: Wishes,
    measurements: Sequence[Measurement],
) -> list[Advice]:
    """Return the advice for each machine (card, number, dollars per hour or None), in order."""
    return [
        advise(shape, card, count, wishes if price is None else replace(wishes, usd_per_hour=price), measurements)
        for card, count, price in machines
    ]


def picture(advices: Sequence[Advice]) -> str:
    """Return an SVG of hours (P50, line to P90) against dollars (electricity if a machine has no price), log axes."""
    choices = [(advice, advice.best) for advice in advices if advice.best is not None]
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" '
            'font-family="sans-serif" font-size="12" role="img" aria-label="Money against hours on each machine">'
        ),
        f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
    ]
    if choices:
        across = _Axis([hours for _, best in choices for hours in (best.hours, best.hours_p90)], _LEFT, _WIDE - 30)
        up = _Axis([max(0.01, best.usd) for _, best in choices], _HIGH - 60, _TOP)
        lines += _axes(across, up)
        for advice, best in choices:
            lines += _mark(advice, best, across, up)
    if unfit := [f"{advice.card.name} x{advice.devices}" for advice in advices if advice.best is None]:
        unfit_text = f"does not fit: {escape(', '.join(unfit))}"
        lines.append(f'<text x="{_LEFT}" y="{_HIGH - 6}" fill="#b3352a">{unfit_text}</text>')
    return "\n".join([*lines, "</svg>", ""])


class _Axis:
    """A logarithmic axis that is a little longer than the range of its values."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = log10(max(1e-4, min(values))) - 0.15
        self.high = log10(max(1e-4, *values)) + 0.25
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        return self._start + (log10(max(1e-4, value)) - self.low) / (self.high - self.low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Return round values within the axis."""
        every = [step * 10.0**power for power in range(-4, 8) for step in (1, 2, 5)]
        return [value for value in every if self.low <= log10(value) <= self.high]


def _axes(across: _Axis, up: _Axis) -> list[str]:
    bottom = _HIGH - 60
    lines = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDE - 30}" fill="none" stroke="#59616b"/>']
    for value in across.ticks():
        x = across.at(value)
        lines.append(f'<text x="{x:.0f}" y="{bottom + 16}" text-anchor="middle" fill="#59616b">{value:g} h</text>')
    lines += [
        f'<text x="{_LEFT - 6}" y="{up.at(value):.0f}" text-anchor="end" fill="#59616b">${value:g}</text>'
        for value in up.ticks()
    ]
    lines.append(f'<text x="{_LEFT}" y="18" fill="#59616b">money against time (P50); the line ends at P90</text>')
    return lines


def _mark(advice: Advice, choice: Choice, across: _Axis, up: _Axis) -> list[str]:
    x, y = across.at(choice.hours), up.at(max(0.01, choice.usd))
    name = escape(f"{advice.card.name} x{advice.devices} ({choice.rung})")
    return [
        f'<path d="M{x:.0f} {y:.0f}H{across.at(choice.hours_p90):.0f}" stroke="#1d5fbf" stroke-opacity=".4"/>',
        f'<circle cx="{x:.0f}" cy="{y:.0f}" r="5" fill="#1d5fbf"><title>{name}</title></circle>',
        f'<text x="{x + 8:.0f}" y="{y - 6:.0f}" fill="#1b1e22">{name}</text>',
    ]


# Recipes for a choice: files and command lines, for our trainer or a user's own script.
_ZERO = {"zero1": 1, "zero2": 2, "zero3": 3}
_REQUIREMENTS = "requirements.txt"


def flags(setup: Setup) -> str:
    """Return the flags that train_ds.py and finetune.py share."""
    words = {"qlora": ["--use-4bit", "--use-lora"], "lora": ["--use-lora"], "full": []}[setup.method]
    words += [f"--batch-size {setup.batch}", f"--gradient-accumulation-steps {setup.accumulate}"]
    return " ".join([*words, *([] if setup.sharded else ["--no-deepspeed"])])


def command(choice: Choice, model: str) -> list[str]:
    """Return the command line of our trainer, which starts one process per device."""
    setup = choice.setup
    words = ["{python}", "{payload}/trainers/finetune.py", "--model", model, "--length", str(setup.seq)]
    # --batch x --accumulate are the rows of a step on all devices.
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
    """Return a job's TOML; ``source`` is its base model, such as ``hf:owner/name``."""
    setup, zero = choice.setup, choice.setup.parallel in _ZERO
    speed = (
        f"on {choice.card.name}; no other is known" if zero else "and the needs are computed where they are left out"
    )
    lines = [
        f"# Written by schedctl advise. The speed {'is that ' if zero else ''}{speed}.",
        f"name = {_text(model)}",
        f"command = [{', '.join(map(_text, command(choice, 'input:base')))}]",
        f"inputs = {{ base = {_text(source)} }}",
        f"target_step = {steps}",
        "mixture = {}",
    ]
    if setup.sharded:  # without this line, the needs would be computed for one device
        gib = ceil(10 * choice.memory.gib * (1 + MARGIN)) / 10
        lines += [f"needs = {{ devices = {setup.devices}, vram_gib = {gib:g} }}"]
    if zero:
        lines += [f"steps_per_hour = {3_600 / choice.pace.step / gains_of(choice)[-1]:.3g}"]
        lines += [f"requirements = {_text(_REQUIREMENTS)}"]
    if setup.devices > 1:
        gains = ", ".join(f"{gain:.2f}" for gain in gains_of(choice))
        lines += [f"device_speedup = [{gains}]"]
    return "\n".join(lines) + "\n"


def gains_of(choice: Choice) -> list[float]:
    """Return the speed-up over one device, for one device, two devices and so on."""
    pace, setup = choice.pace, choice.setup
    if setup.parallel == "layers":
        return [1.0] * setup.devices
    alone = (pace.step - pace.link) * setup.devices
    return [1.0, *(alone / (alone / count + pace.link) for count in range(2, setup.devices + 1))]


def deepspeed(setup: Setup) -> dict[str, Any]:
    """Return DeepSpeed's configuration. A set-up that does not need DeepSpeed gets stage 0, which changes nothing."""
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
    """Return the files needed to run a choice, by name."""
    setup = choice.setup
    launch = [
        "# One process per card. Without torchrun, two visible cards use nn.DataParallel, which is slower than one.",
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
    # Our trainer has no offload to NVMe, and its ZeRO has only AdamW.
    other_optimizer = setup.parallel in _ZERO and setup.optimizer != "adamw"
    if setup.offload != "nvme" and not other_optimizer:
        written["job.toml"] = job_table(choice, model, source, steps)
        if setup.parallel in _ZERO:
            written[_REQUIREMENTS] = "deepspeed\n"
    return written


def _text(text: str) -> str:
    return json.dumps(text)  # a TOML basic string is a JSON string if it is ASCII
