"""Set-ups: how a model is trained, with everything that memory and time depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from jobs.advice.shape import Shape

Method = Literal["full", "lora", "qlora"]
Optimizer = Literal["adamw", "adamw8bit", "adafactor", "sgd", "adamw-foreach"]
Parallel = Literal["none", "ddp", "fsdp", "zero1", "zero2", "zero3", "layers"]
Offload = Literal["none", "cpu", "nvme"]
METHODS: tuple[Method, ...] = get_args(Method)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
PARALLELS: tuple[Parallel, ...] = get_args(Parallel)
OFFLOADS: tuple[Offload, ...] = get_args(Offload)
RANK = 16


@dataclass(frozen=True, slots=True)
class Stack:
    """A training program: what of its habits costs memory and time.

    ``loss_bytes`` are held per logit at the loss (0: logits in pieces). ``autocast`` tells whether adapters see their
    input in 16 bits. ``context_gib`` is CUDA's context with libraries, ``loose`` the share of what comes and goes that
    the allocator holds beyond need, ``loose_again`` that with checkpointing (little where segments expand).
    ``compiled`` layers keep less and launch fewer kernels.
    """

    name: str
    loss_bytes: float = 12
    autocast: bool = True
    context_gib: float = 0.75
    loose: float = 0.1
    loose_again: float = 0.3
    compiled: bool = False
    kbit_preparation: bool = False
    in_backward: bool = False  # the optimiser steps inside the backward pass, and no gradient outlives its layer
    adapter_bytes: int = 4
    pieces: int = 2_048  # tokens whose logits are held at a time, where they are computed in pieces
    source: str = ""


STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "finetune",
            loss_bytes=0,
            loose=0.04,
            loose_again=0.04,
            source="jobs/payload/trainers/finetune.py, uncompiled",
        ),
        Stack(
            "finetune-compiled",
            loss_bytes=0,
            loose=0.05,
            loose_again=0.05,
            compiled=True,
            source="the same, each layer compiled",
        ),
        Stack("transformers", loss_bytes=12, source="transformers 5 Trainer with PEFT"),
        Stack("transformers-bare", loss_bytes=12, autocast=False, source="transformers 5 in a loop without autocast"),
    )
}


@dataclass(frozen=True, slots=True)
class Setup:
    """One way to train: ``batch`` rows of ``seq`` tokens at a time on each of ``devices``, ``accumulate`` times a step.

    ``master`` keeps full weights in 32 bits (AMP). ``image_tokens`` of each row are an image's. ``probed`` are bytes
    that a layer was found to keep for each token, in place of the formula's (0: not measured).
    """

    shape: Shape
    method: Method = "qlora"
    seq: int = 2048
    batch: int = 1
    accumulate: int = 8
    devices: int = 1
    rank: int = RANK
    targets: tuple[str, ...] = ()
    dropout: float = 0.0
    optimizer: Optimizer = "adamw"
    master: bool = True
    checkpointing: bool = True
    parallel: Parallel = "none"
    offload: Offload = "none"
    precision: str = "bf16"
    stack: Stack = STACKS["finetune"]
    image_tokens: int = 0
    probed: float = 0.0

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one device."""
        return self.seq * self.batch

    @property
    def rows(self) -> int:
        """Rows of a step on all devices."""
        return self.batch * self.accumulate * self.devices

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return self.shape.parameters if self.method == "full" else self.shape.adapters(self.rank, self.targets)

    @property
    def sharded(self) -> bool:
        """Whether states are shared out by a library (DeepSpeed, FSDP), or by layers, be it over one device."""
        return self.parallel not in ("none", "ddp")

    @property
    def shards(self) -> int:
        """Over how many devices states are shared."""
        return self.devices if self.sharded else 1

    @property
    def text(self) -> str:
        """The set-up in a few words: ``LoRA r16, bf16, 4 x 2048, checkpointing``."""
        words = {"full": "all weights", "lora": f"LoRA r{self.rank}", "qlora": f"QLoRA r{self.rank}"}[self.method]
        more = [words, self.precision, f"{self.batch} x {self.seq} tokens"]
        if self.method == "full":
            more.append(("AMP, " if self.master else "16 bit weights, ") + self.optimizer)
        if self.checkpointing:
            more.append("checkpointing")
        if self.parallel != "none":
            more.append("by layers" if self.parallel == "layers" else self.parallel.upper())
        if self.offload != "none":
            more.append(f"offload to {'RAM' if self.offload == 'cpu' else 'NVMe'}")
        return ", ".join(more)
