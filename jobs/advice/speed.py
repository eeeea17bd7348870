"""Time of a set-up on a card: max(floor, a + b T) a micro-batch, from products, bandwidth and links between cards.

b is FLOP a token over what products reach, plus the bytes that everything beside products moves over the card's
bandwidth. a is what each micro-batch pays whatever its length (4 bit weights are unpacked), floor what launching its
kernels takes. Constants come from published and measured runs (benchmarks/bench_advice.py); measurements of one's own
replace them by and by (jobs/advice/seen.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log2, sqrt

from jobs.advice.card import Card
from jobs.advice.setup import Setup

PRODUCTS = 0.76  # share of a card's rate that large products reach
# Bytes moved beside products for each token, layer and value of h: forward and backward, and forward again.
_MOVED = {"full": (885.0, 225.0), "lora": (1_455.0, 595.0), "qlora": (1_455.0, 595.0)}
_MASTER = 1.3  # times as many where the stream between layers has 32 bits
_COMPILED = 0.45  # times as many where the compiler fuses what is beside products
_LAUNCH = {"full": 0.0030, "lora": 0.0045, "qlora": 0.0080}  # seconds a layer, to launch the kernels of a micro-batch
_AGAIN = 1.8  # times as many launches with checkpointing
_UNPACK = 13.5  # bytes moved for each 4 bit weight and micro-batch: read, written and read again, three times
_WAITING = 0.05  # share of a step that cards wait for the slowest, each time their number doubles
_PRECISE = {"h100": 0.15, "h200": 0.15, "a100-80": 0.15, "a100-40": 0.2, "4090": 0.25, "t4": 0.35}
_PRIOR = 0.3  # relative error of a prior on a card without measurements
_BETWEEN_LOSSES_SECONDS = 30 * 3_600
Z90 = 1.2816


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds of one micro-batch and one optimiser step, and how sure that is (``sigma``, relative).

    ``limits`` are the shares of a step that products, bandwidth, fixed costs and links take.
    """

    floor: float
    fixed: float
    per_token: float
    link: float
    step: float
    tokens: int
    sigma: float
    limits: dict[str, float]
    samples: int = 0  # steps of one's own that it rests on

    def micro(self, tokens: int) -> float:
        """Return the seconds of a micro-batch of so many tokens."""
        return max(self.floor, self.fixed + self.per_token * tokens)

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together."""
        return self.tokens / self.step

    @property
    def limit(self) -> str:
        """What takes most of a step."""
        return max(self.limits, key=lambda name: self.limits[name])

    def hours(self, tokens: float, share: float = 0.5) -> float:
        """Return the hours that so many tokens take in half of all cases, or nine in ten (``share`` 0.9)."""
        return tokens / self.tokens_per_second / 3_600 * (1 + (Z90 * self.sigma if share > 0.5 else 0.0))


def flops_per_token(setup: Setup) -> float:
    """Return FLOP of a token: forward, backward, and forward again with checkpointing."""
    shape = setup.shape
    used = shape.parameters - (0 if shape.tied else shape.words * shape.hidden)
    passes = (6 if setup.method == "full" else 4) + (2 if setup.checkpointing else 0)
    attention = (6 + (2 if setup.checkpointing else 0)) * shape.layers * shape.queries * setup.seq
    return passes * used + attention


def pace_of(setup: Setup, card: Card) -> Pace:
    """Return how fast a set-up goes on a card, before anything of it was measured."""
    shape, tokens = setup.shape, setup.tokens
    reached = PRODUCTS * card.tflops * 1e12 * card.sustained
    products = flops_per_token(setup) / reached
    once, again = _MOVED[setup.method]
    moved = (once + (again if setup.checkpointing else 0.0)) * (_COMPILED if setup.stack.compiled else 1.0)
    moved *= _MASTER if setup.method == "full" and setup.master else 1.0
    bandwidth = moved * shape.layers * shape.hidden / (card.gb_s * 1e9)
    fixed = _UNPACK * shape.linear / (card.gb_s * 1e9) if setup.method == "qlora" else 0.0
    floor = shape.layers * _LAUNCH[setup.method] * (_AGAIN if setup.checkpointing else 1.0)
    floor *= 0.6 if setup.stack.compiled else 1.0
    micro = max(floor, fixed + (products + bandwidth) * tokens)
    states = {"adamw8bit": 12.0}.get(setup.optimizer, 28.0 if setup.master or setup.method != "full" else 16.0)
    update = states * setup.trained / setup.shards / (card.gb_s * 1e9)
    # Where layers are shared out, the first and the last device wait while a step's batches reach and leave them.
    waiting = 1 - 1 / setup.devices if setup.parallel == "layers" else _WAITING * log2(setup.devices)
    link = _link(setup, card) + setup.accumulate * micro * waiting
    if setup.offload != "none":  # the processor steps: DeepSpeed's CPU Adam does about a billion values a second
        update = setup.trained / setup.shards / 1e9 * (1 if setup.offload == "cpu" else 3)
    step = setup.accumulate * micro + update + link
    return Pace(
        floor=floor,
        fixed=fixed,
        per_token=products + bandwidth,
        link=link,
        step=step,
        tokens=setup.rows * setup.seq,
        sigma=_PRECISE.get(card.name, _PRIOR) + (0.1 if setup.shards > 1 or setup.offload != "none" else 0.0),
        limits={
            "products": setup.accumulate * products * tokens / step,
            "bandwidth": setup.accumulate * bandwidth * tokens / step,
            "fixed costs": (setup.accumulate * (micro - (products + bandwidth) * tokens) + update) / step,
            "links": link / step,
        },
    )


def _link(setup: Setup, card: Card) -> float:
    """Seconds a step that gradients, and gathered weights, travel between cards: an all-reduce each, in a ring."""
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
    """Return seconds between checkpoints: Young's interval, and no more than a quarter of an hour."""
    return int(min(900.0, max(60.0, sqrt(2 * save_seconds * _BETWEEN_LOSSES_SECONDS))))
