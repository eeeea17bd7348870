"""Memory of a set-up: named parts with their formulas, on each device, in the machine and on disk. All in bytes.

h hidden size, k width of keys, i width of the MLP, L layers, V vocabulary, N parameters, P trained adapters, T tokens
of a micro-batch, s bytes that a layer keeps for each token, counted from the code of transformers' Llama.
"""

from __future__ import annotations

from dataclasses import dataclass

from jobs.advice.card import GIB
from jobs.advice.setup import Setup

_NF4 = 0.516  # bytes of a parameter in NF4 with double quantisation
_STATES = {"adamw": 2.0, "adamw-foreach": 2.0, "adamw8bit": 0.5, "sgd": 1.0, "adafactor": 0.0}  # each of a parameter
_COMMUNICATION = GIB // 4  # NCCL's buffers, each device
_COMPILED = 0.78  # of s: the compiler recomputes what is cheap, such as norms, activations and casts
_BUCKET = 100_000_000  # bytes of gradients that DDP and ZeRO send at a time


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the memory: its bytes at the worst instant, and the formula with its numbers."""

    name: str
    bytes: float
    formula: str


@dataclass(frozen=True, slots=True)
class Memory:
    """What a device holds at the worst ``instant`` of a step; the parts sum to the total."""

    parts: tuple[Part, ...]
    instant: str

    @property
    def total(self) -> float:
        """All parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def allocated(self) -> float:
        """What PyTorch's allocator counts: no context, nothing of NCCL, nothing loose."""
        return sum(part.bytes for part in self.parts if part.name not in ("context", "communication", "fragmentation"))

    @property
    def gib(self) -> float:
        """The total in GiB."""
        return self.total / GIB

    @property
    def largest(self) -> Part:
        """The part that is largest."""
        return max(self.parts, key=lambda part: part.bytes)


def memory_of(setup: Setup) -> Memory:
    """Return what one device holds at the worst instant of a step."""
    weights, adapters, states, gradients = _weights(setup), _adapters(setup), _states(setup), _gradients(setup)
    kept, loss = _kept(setup), _loss(setup)
    # What comes and goes while one layer's gradient is computed.
    work = layer_bytes(setup) * setup.tokens * (1.25 if setup.checkpointing else 0.25)
    fixed = [weights, adapters, states]
    head = min(gradients.bytes, _head_gradient(setup))
    held = gradients.bytes if setup.accumulate > 1 else head  # earlier micro-batches' are there all the time
    # While the loss is computed all layers are kept; while the last layer's gradient is, its inner values are there
    # too; at the end all gradients are, and one layer. The optimiser comes last.
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
    attention = 2 * (2 * q + 2 * k)  # queries, keys, values and what comes out
    if setup.method == "full":
        bare = 16 * h + attention + 8 * i  # two norms: 32 bit input, normed value, output; the MLP's four
        # With AMP the stream between layers has 32 bits, and each product gets a copy of its input.
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


def _kept(setup: Setup) -> Part:
    """What all layers keep until the backward pass."""
    shape, tokens = setup.shape, setup.tokens
    wide = 4 if (setup.method == "full" and setup.master) or setup.stack.kbit_preparation else 2
    if setup.checkpointing:
        size = float(wide * shape.layers * tokens * shape.hidden)
        formula = f"{wide} L T h: inputs of {shape.layers} layers, T = {tokens:,}; and inside one layer 1.25 s T"
    else:
        size = layer_bytes(setup) * shape.layers * tokens
        found_by = "probed" if setup.probed else "by formula"
        formula = f"s L T: {layer_bytes(setup):,.0f} bytes {found_by} x {shape.layers} layers x {tokens:,} tokens"
    if setup.method == "full" and setup.master and not setup.checkpointing:
        size += 2.0 * (shape.linear + shape.words * shape.hidden)  # autocast keeps a 16 bit copy of each weight
        formula += "; and 2 N: autocast's copies of the weights"
    return Part("activations", size + _tower(setup), formula + (", and the tower's" if setup.image_tokens else ""))


def _tied(setup: Setup) -> float:
    """What comes together at the end of backward: head's and embedding's gradients, where these are one matrix."""
    if setup.method != "full" or not setup.shape.tied:
        return 0.0
    return 2 * _head_gradient(setup)


def _tower(setup: Setup) -> float:
    """What the tower keeps: each image token stands for several patches."""
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
    return Part("logits", 12.0 * words * some, f"12 V x {some:,}: the head's logits are computed in pieces")


def _weights(setup: Setup) -> Part:
    shape, share = setup.shape, setup.shards if setup.parallel in ("zero3", "fsdp") else 1
    total = shape.parameters
    if setup.method == "qlora":
        rest = total - shape.linear
        each = 4 if setup.stack.kbit_preparation else 2
        # Layers are laid so that devices hold the same, and one of them has the embedding, another the head.
        size = (_NF4 * shape.linear + each * rest) / setup.shards
        shared = f", / {setup.shards}" if setup.shards > 1 else ""
        formula = f"{_NF4} x {shape.linear:,} in NF4 + {each} x {rest:,}: embedding, head, norms{shared}"
        return Part("weights", size, formula)
    each = 4 if setup.method == "full" and setup.master and not setup.sharded else 2
    # While a layer is computed it and the next are there whole, and embedding and head stay.
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
    # DeepSpeed and FSDP keep the 32 bit copy of 16 bit weights among the shared states.
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
    """What the optimiser needs while it steps: nothing where it is fused."""
    wide = 4.0 if setup.method != "full" or setup.master else 2.0
    room = wide if setup.optimizer == "adamw-foreach" else 0.0
    return room * setup.trained / setup.shards


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes beside the devices: ``ram`` of the machine, ``checkpoint`` (one), ``disk`` (weights, three checkpoints)."""

    ram: float
    checkpoint: float
    disk: float


def storage_of(setup: Setup) -> Storage:
    """Return what the machine and its disk must hold. Offloaded states count 1.5 times, as DeepSpeed plans them."""
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
