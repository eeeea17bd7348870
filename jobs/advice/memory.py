"""Memory and time of a set-up: named parts with their formulas, in bytes and seconds.

h hidden size, k width of keys, i width of the MLP, L layers, V vocabulary, N parameters, P adapter parameters, T tokens
of a micro-batch, s bytes that a layer keeps per token (counted in transformers' code of Llama).
"""

from dataclasses import dataclass
from math import log2, sqrt

from jobs.advice.shape import GIB, Card, Setup

_NF4 = 0.516  # bytes per parameter in NF4 with double quantisation
_STATES = {"adamw": 2.0, "adamw-foreach": 2.0, "adamw8bit": 0.5, "sgd": 1.0, "adafactor": 0.0}  # states per parameter
_COMMUNICATION = GIB // 4  # bytes of NCCL's buffers per device
_COMPILED = 0.78  # share of s that compiled layers keep; they recompute norms, activations and casts
_BUCKET = 100_000_000  # bytes of gradients per message of DDP and ZeRO


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the memory: its bytes at the worst instant, and its formula with the numbers filled in."""

    name: str
    bytes: float
    formula: str


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a device at the worst ``instant`` of a step; the parts sum to the total."""

    parts: tuple[Part, ...]
    instant: str

    @property
    def total(self) -> float:
        """Bytes of all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def allocated(self) -> float:
        """Bytes that PyTorch's allocator counts: without context, NCCL and fragmentation."""
        return sum(part.bytes for part in self.parts if part.name not in ("context", "communication", "fragmentation"))

    @property
    def gib(self) -> float:
        """The total in GiB."""
        return self.total / GIB

    @property
    def largest(self) -> Part:
        """The largest part."""
        return max(self.parts, key=lambda part: part.bytes)


def memory_of(setup: Setup) -> Memory:
    """Return the memory of one device at the worst instant of a step."""
    weights, adapters, states, gradients = _weights(setup), _adapters(setup), _states(setup), _gradients(setup)
    kept, loss = _activations(setup), _loss(setup)
    # Temporary memory while one layer's gradient is computed.
    work = layer_bytes(setup) * setup.tokens * (1.25 if setup.checkpointing else 0.25)
    fixed = [weights, adapters, states]
    head = min(gradients.bytes, _head_gradient(setup))
    held = gradients.bytes if setup.accumulate > 1 else head  # gradients of earlier micro-batches always exist
    # Memory holds: during the loss, the values of all layers; at the start of backward, also the inner values of the
    # last layer; at its end, all gradients and one layer. Last is the optimiser step.
    at_loss = (("loss", kept.bytes, loss.bytes, gradients.bytes if setup.accumulate > 1 else 0.0),)
    at_start = (("start of backward", kept.bytes + work, 0.0, held),)
    inner = kept.bytes / setup.shape.layers + work + _tied(setup)
    at_end = (("end of backward", inner, 0.0, gradients.bytes),)
    at_step = (("optimiser step", _step_room(setup), 0.0, gradients.bytes),)
    instant, activations, logits, held = max(
        (*at_loss, *at_start, *at_end, *at_step), key=lambda moment: moment[1] + moment[2] + moment[3]
    )
    share = setup.stack.loose_again if setup.checkpointing else setup.stack.loose
    loose = share * (activations + logits + held)
    spread = setup.devices > 1
    parts = (
        *fixed,
        Part("gradients", held, gradients.formula),
        Part("activations", activations, kept.formula),
        Part("logits", logits, loss.formula),
        Part("context", setup.stack.context_gib * GIB, "CUDA's context and its libraries"),
        Part(
            "communication",
            (_COMMUNICATION + 2 * min(_BUCKET, gradients.bytes)) if spread else 0.0,
            "NCCL's buffers and two buckets of gradients" if spread else "one device",
        ),
        Part("fragmentation", loose, f"{100 * share:.0f} % of what comes and goes"),
    )
    return Memory(parts, instant)


def layer_bytes(setup: Setup) -> float:
    """Return s: the bytes that one layer keeps for each token of a forward pass."""
    shape, stack = setup.shape, setup.stack
    if setup.probed:
        return setup.probed * (_COMPILED if stack.compiled else 1.0)
    h, q, k, i = shape.hidden, shape.queries, shape.keys, shape.between
    attention = 2 * (2 * q + 2 * k)  # queries, keys, values and the output
    if setup.method == "full":
        bare = 16 * h + attention + 8 * i  # two norms: 32 bit input, normed value, output; the MLP's four
        # With AMP, values between layers have 32 bits, and each product gets a copy of its input.
        size: float = bare + (10 * h if setup.master else 0)
    else:
        each = (2 if stack.autocast else 4) + ((1 if stack.autocast else 4) if setup.dropout else 0)  # dropout's mask
        adapted = [(name, wide) for name, wide, _ in shape.products if not setup.targets or name in setup.targets]
        if not stack.autocast and stack.adapter_bytes == 2:  # nothing is cast: q, k and v share their input
            shared = {"q_proj": h, "gate_proj": h, "down_proj": i}
            inputs = sum(2 * shared.get(name, 0) for name, _ in adapted)
        else:
            inputs = sum(each * wide for _, wide in adapted)
        size = 8 * h + attention + 6 * i + inputs
    size += (8 if setup.method == "full" else 4) * shape.normed
    if stack.compiled:
        size *= _COMPILED
    return float(size)


def _activations(setup: Setup) -> Part:
    """Return the bytes that all layers keep until the backward pass."""
    shape, tokens = setup.shape, setup.tokens
    wide = 4 if (setup.method == "full" and setup.master) or setup.stack.kbit_preparation else 2
    if setup.checkpointing:
        size = float(wide * shape.layers * tokens * shape.hidden)
        formula = f"{wide} L T h: inputs of {shape.layers} layers, T = {tokens:,}; and inside one layer 1.25 s T"
    else:
        size = layer_bytes(setup) * shape.layers * tokens
        origin = "probed" if setup.probed else "by formula"
        formula = f"s L T: {layer_bytes(setup):,.0f} bytes {origin} x {shape.layers} layers x {tokens:,} tokens"
    if setup.method == "full" and setup.master and not setup.checkpointing:
        size += 2.0 * (shape.linear + shape.words * shape.hidden)  # autocast keeps a 16 bit copy of each weight
        formula += "; and 2 N: autocast's copies of the weights"
    return Part("activations", size + _tower(setup), formula + (", and the tower's" if setup.image_tokens else ""))


def _tied(setup: Setup) -> float:
    """Return the bytes of the head's and the embedding's gradients, which exist together if both are one matrix."""
    if setup.method != "full" or not setup.shape.tied:
        return 0.0
    return 2 * _head_gradient(setup)


def _tower(setup: Setup) -> float:
    """Return the bytes that the vision tower keeps; each image token stands for several patches."""
    tower = setup.shape.vision
    if tower is None or not setup.image_tokens:
        return 0.0
    patches = setup.batch * setup.image_tokens * tower.merge**2
    each = 2 * tower.hidden if setup.checkpointing else 56 * tower.hidden
    inner = 56 * tower.hidden if setup.checkpointing else 0
    return float(patches * (tower.layers * each + inner))


def _loss(setup: Setup) -> Part:
    words, stack, tokens = setup.shape.words, setup.stack, setup.tokens
    if stack.loss_bytes:
        formula = f"{stack.loss_bytes:g} V T: {stack.loss_bytes:g} x {words:,} x {tokens:,}"
        return Part("logits", stack.loss_bytes * words * tokens, formula)
    some = min(tokens, stack.pieces)
    return Part("logits", 12.0 * words * some, f"12 V x {some:,}: the head's logits are computed in chunks")


def _weights(setup: Setup) -> Part:
    shape, share = setup.shape, setup.shards if setup.parallel in ("zero3", "fsdp") else 1
    total = shape.parameters
    if setup.method == "qlora":
        rest = total - shape.linear
        each = 4 if setup.stack.kbit_preparation else 2
        # Layers are spread so that all devices hold about the same bytes, embedding and head included.
        size = (_NF4 * shape.linear + each * rest) / setup.shards
        shared = f", / {setup.shards}" if setup.shards > 1 else ""
        formula = f"{_NF4} x {shape.linear:,} in NF4 + {each} x {rest:,}: embedding, head, norms{shared}"
        return Part("weights", size, formula)
    each = 4 if setup.method == "full" and setup.master and not setup.sharded else 2
    # While a layer is computed, it and the next one are gathered; embedding and head stay.
    away = setup.offload != "none" and setup.parallel in ("zero3", "fsdp")
    gathered = 2 * shape.linear / shape.layers + shape.words * shape.hidden if share > 1 or away else 0.0
    held = 0.0 if away else total / share
    formula = f"{each} N" + (f" / {share}" if share > 1 else "") + f", N = {total:,}"
    if gathered:
        formula = f"{formula if held else 'in RAM'}; {each * gathered / 1e9:.1f} GB of layers gathered"
    return Part("weights", each * (held + gathered), formula)


def _adapters(setup: Setup) -> Part:
    if setup.method == "full":
        return Part("adapters", 0.0, "none")
    each = setup.stack.adapter_bytes
    return Part("adapters", each * setup.trained, f"{each} P, P = {setup.trained:,} at rank {setup.rank}")


def _states(setup: Setup) -> Part:
    wide = float(setup.stack.adapter_bytes) if setup.method != "full" else 4.0 if setup.master else 2.0
    each = 2.0 if setup.optimizer == "adamw8bit" else _STATES[setup.optimizer] * wide
    # DeepSpeed and FSDP keep the fp32 copy of 16-bit weights among the sharded states.
    copy = 4.0 if setup.method == "full" and setup.sharded and setup.master else 0.0
    if setup.offload != "none":
        return Part("optimiser", 0.0, f"in {'RAM' if setup.offload == 'cpu' else 'NVMe'}")
    shared = f" / {setup.shards}" if setup.shards > 1 else ""
    formula = f"{each + copy:g} x {setup.trained:,}{shared} ({setup.optimizer})"
    return Part("optimiser", (each + copy) * setup.trained / setup.shards, formula)


def _gradients(setup: Setup) -> Part:
    if setup.stack.in_backward:
        return Part("gradients", _head_gradient(setup), "one layer's: the optimiser steps inside the backward pass")
    each = setup.stack.adapter_bytes if setup.method != "full" else 4 if setup.master and not setup.sharded else 2
    if setup.offload != "none" and setup.method == "full":
        return Part("gradients", 2.0 * _BUCKET, "two buckets; the rest goes to RAM")
    shared = setup.shards if setup.parallel in ("zero2", "zero3", "fsdp", "layers") else 1
    formula = f"{each} x {setup.trained:,}" + (f" / {shared}" if shared > 1 else "")
    return Part("gradients", each * setup.trained / shared, formula)


def _head_gradient(setup: Setup) -> float:
    if setup.method != "full":
        return 0.0
    return (4.0 if setup.master else 2.0) * setup.shape.words * setup.shape.hidden


def _step_room(setup: Setup) -> float:
    """Return the bytes that the optimiser needs during its step; 0 if it is fused."""
    wide = 4.0 if setup.method != "full" or setup.master else 2.0
    room = wide if setup.optimizer == "adamw-foreach" else 0.0
    return room * setup.trained / setup.shards


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes of host memory (``ram``), of one ``checkpoint``, and on ``disk``: weights and three checkpoints."""

    ram: float
    checkpoint: float
    disk: float


def storage_of(setup: Setup) -> Storage:
    """Return the bytes for host memory and disk. Offloaded states count 1.5 times, as in DeepSpeed's estimate."""
    states = _STATES[setup.optimizer] * 4 if setup.optimizer != "adamw8bit" else 2.0
    weights = 4 if setup.method != "full" or setup.master else 2
    checkpoint = (weights + states) * setup.trained
    loaded = 2.0 * setup.shape.parameters
    ram = 4 * GIB * setup.devices + min(loaded, 8 * GIB)
    if setup.offload == "cpu":
        moved = 16.0 if setup.parallel in ("zero3", "fsdp") else 12.0
        ram += 1.5 * moved * setup.shape.parameters
    disk = loaded + 3 * checkpoint
    if setup.offload == "nvme":
        disk += 16.0 * setup.shape.parameters
    return Storage(ram, checkpoint, disk)


# The time of a micro-batch is max(floor, a + b T), from matrix products, bandwidth and links between devices.
PRODUCTS = 0.76  # share of the peak rate that large matrix products reach
# Bytes moved outside products, per token, layer and value of h: for forward and backward, and for another forward.
_MOVED = {"full": (885.0, 225.0), "lora": (1_455.0, 595.0), "qlora": (1_455.0, 595.0)}
_MASTER = 1.3  # factor on _MOVED if the values between layers are fp32
_FUSED = 0.45  # factor on _MOVED if layers are compiled
_LAUNCH = {"full": 0.0030, "lora": 0.0045, "qlora": 0.0080}  # seconds per layer to launch a micro-batch's kernels
_AGAIN = 1.8  # factor on launches with gradient checkpointing
_UNPACK = 13.5  # bytes moved per 4-bit weight and micro-batch: read, written and read again, three times
_WAITING = 0.05  # share of a step that devices wait for the slowest, per doubling of their number
_ERRORS = {"h100": 0.15, "h200": 0.15, "a100-80": 0.15, "a100-40": 0.2, "4090": 0.25, "t4": 0.35}
_ERROR = 0.3  # relative error of the formulas on a card that is not in _ERRORS
_BETWEEN_LOSSES_SECONDS = 30 * 3_600  # assumed mean time between two lost sessions
Z90 = 1.2816  # standard normal quantile of P90


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of a micro-batch and of a step, their relative error ``sigma``, and the shares of a step (``limits``)."""

    floor: float
    fixed: float
    per_token: float
    link: float
    step: float
    tokens: int
    sigma: float
    limits: dict[str, float]
    samples: int = 0  # measured steps that the pace is based on

    def micro(self, tokens: int) -> float:
        """Return the seconds of a micro-batch of so many tokens."""
        return max(self.floor, self.fixed + self.per_token * tokens)

    @property
    def tokens_per_second(self) -> float:
        """Speed of all devices together."""
        return self.tokens / self.step

    @property
    def limit(self) -> str:
        """The name of the part that takes the largest share of a step."""
        return max(self.limits, key=lambda name: self.limits[name])

    def hours(self, tokens: float, share: float = 0.5) -> float:
        """Return the hours for so many tokens: P50, or P90 if ``share`` is above 0.5."""
        return tokens / self.tokens_per_second / 3_600 * (1 + (Z90 * self.sigma if share > 0.5 else 0.0))


def flops_per_token(setup: Setup) -> float:
    """Return the FLOP per token: forward, backward, and forward again with gradient checkpointing."""
    shape = setup.shape
    used = shape.parameters - (0 if shape.tied else shape.words * shape.hidden)
    passes = (6 if setup.method == "full" else 4) + (2 if setup.checkpointing else 0)
    attention = (6 + (2 if setup.checkpointing else 0)) * shape.layers * shape.queries * setup.seq
    return passes * used + attention


def pace_of(setup: Setup, card: Card) -> Pace:
    """Return the pace of a set-up on a card by the formulas alone, without measurements."""
    shape, tokens = setup.shape, setup.tokens
    reached = PRODUCTS * card.tflops * 1e12 * card.sustained
    products = flops_per_token(setup) / reached
    once, again = _MOVED[setup.method]
    moved = (once + (again if setup.checkpointing else 0.0)) * (_FUSED if setup.stack.compiled else 1.0)
    moved *= _MASTER if setup.method == "full" and setup.master else 1.0
    bandwidth = moved * shape.layers * shape.hidden / (card.gb_s * 1e9)
    fixed = _UNPACK * shape.linear / (card.gb_s * 1e9) if setup.method == "qlora" else 0.0
    floor = shape.layers * _LAUNCH[setup.method] * (_AGAIN if setup.checkpointing else 1.0)
    floor *= 0.6 if setup.stack.compiled else 1.0
    micro = max(floor, fixed + (products + bandwidth) * tokens)
    states = {"adamw8bit": 12.0}.get(setup.optimizer, 28.0 if setup.master or setup.method != "full" else 16.0)
    update = states * setup.trained / setup.shards / (card.gb_s * 1e9)
    # With layers spread over devices, the last device waits for the first batch, and the first device for the last.
    waiting = 1 - 1 / setup.devices if setup.parallel == "layers" else _WAITING * log2(setup.devices)
    link = _link(setup, card) + setup.accumulate * micro * waiting
    if setup.offload != "none":  # the CPU computes the update: DeepSpeed's Adam does about a billion values a second
        update = setup.trained / setup.shards / 1e9 * (1 if setup.offload == "cpu" else 3)
    step = setup.accumulate * micro + update + link
    return Pace(
        floor=floor,
        fixed=fixed,
        per_token=products + bandwidth,
        link=link,
        step=step,
        tokens=setup.rows * setup.seq,
        sigma=_ERRORS.get(card.name, _ERROR) + (0.1 if setup.shards > 1 or setup.offload != "none" else 0.0),
        limits={
            "products": setup.accumulate * products * tokens / step,
            "bandwidth": setup.accumulate * bandwidth * tokens / step,
            "fixed costs": (setup.accumulate * (micro - (products + bandwidth) * tokens) + update) / step,
            "links": link / step,
        },
    )


def _link(setup: Setup, card: Card) -> float:
    """Return the seconds per step for sending gradients and gathered weights between devices (ring all-reduce)."""
    if setup.devices < 2 or setup.parallel == "layers":
        return 0.0
    share = (setup.devices - 1) / setup.devices
    wide = 2 if setup.method == "full" and not setup.master else 4
    gradients = 2 * share * wide * setup.trained
    gathered = 0.0
    if setup.parallel in ("zero3", "fsdp"):  # weights travel twice for each micro-batch, and gradients once
        gathered = 2 * share * 2 * setup.shape.parameters * setup.accumulate
        gradients /= 2
    return (gradients + gathered) / (card.link_gb_s * 1e9)


def cadence(save_seconds: float) -> int:
    """Return the seconds between checkpoints: Young's interval, at most 15 minutes."""
    return int(min(900.0, max(60.0, sqrt(2 * save_seconds * _BETWEEN_LOSSES_SECONDS))))
