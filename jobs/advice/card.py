"""Cards: what an accelerator has, and what follows from its compute capability."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from jobs.problem import NotFound, did_you_mean

GIB = 1 << 30
_COUNT = re.compile(r"^(?P<name>.*?)(?:\s+x\s*|\s*[x*]\s*)(?P<count>[1-9]\d?)$")


@dataclass(frozen=True, slots=True)
class Card:
    """An accelerator, as cards.toml explains it."""

    name: str
    usable_gib: float
    gb_s: float
    tflops: float
    capability: float
    link_gb_s: float
    watts: int
    sustained: float = 1.0
    source: str = ""

    @property
    def precision(self) -> str:
        """What products are computed in: bf16 from Ampere on, decided by nothing but the compute capability."""
        return "bf16" if self.capability >= 8.0 else "fp16"

    @property
    def attention(self) -> str:
        """Which attention PyTorch's SDPA takes."""
        return "flash" if self.capability >= 8.0 else "memory-efficient"

    @property
    def four_bits(self) -> bool:
        """Whether bitsandbytes has NF4 and 8 bit optimisers for it."""
        return self.capability >= 6.0

    @property
    def compiles(self) -> bool:
        """Whether it has Triton, which torch.compile needs."""
        return self.capability >= 7.0

    @property
    def wheel(self) -> str:
        """Which builds of torch run on it."""
        if self.capability < 7.5:
            return "torch 2.6 to 2.14 from the cu126 index"
        return "torch 2.7 or later, CUDA 12.8 or later" if self.capability >= 12.0 else "torch's default build"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know before they rely on it."""
        lines = []
        if not self.compiles:
            lines.append("no Triton, hence no torch.compile, Liger or Unsloth; DeepSpeed refuses fp16 below 7.0")
        if self.capability < 8.0:
            lines.append(
                "no bf16: fp16 with a GradScaler, trained weights in fp32; torch.cuda.is_bf16_supported() lies"
            )
        return tuple(lines)


@lru_cache(maxsize=1)
def cards() -> dict[str, Card]:
    """Return the cards by name."""
    result = {}
    for name, entry in _table().items():
        result[name] = Card(name=name, **{key: value for key, value in entry.items() if key != "names"})
    return result


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))


def find_cards(words: str) -> tuple[Card, int]:
    """Return the card and how many of it ``5060ti x2`` or ``T4`` names. Raises NotFound."""
    plain = " ".join(words.lower().split())
    recognised_card = recognised(plain)
    if recognised_card is not None:
        return recognised_card
    card_names = cards()
    near = did_you_mean(_key(_COUNT.sub(r"\g<name>", plain)), list(card_names))
    raise NotFound(words, "no such card is known", near)


def recognised(words: str) -> tuple[Card, int] | None:
    """Return the card and number that a name, a pool's accelerator or a device's own name means; None if unknown."""
    plain = " ".join(words.lower().split())
    names = {_key(alias): name for name, entry in _table().items() for alias in (name, *entry["names"])}
    if (exact := names.get(_key(plain))) is not None:
        return cards()[exact], 1
    many = _COUNT.match(plain)
    if many and (name := names.get(_key(many["name"]))) is not None:
        return cards()[name], int(many["count"])
    return None


def _key(name: str) -> str:
    """Return a name without makers, series and punctuation."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9.]", "", name)
