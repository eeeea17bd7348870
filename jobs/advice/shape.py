"""The inputs of the formulas: GPUs, shapes of models (from config.json) with parameter counts, and set-ups."""

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from jobs.payload.bounded_file import read_bounded
from jobs.payload.bounds import read_json
from jobs.problem import NotFound, did_you_mean

GIB = 1 << 30
_COUNT = re.compile(r"^(?P<name>.*?)(?:\s+x\s*|\s*[x*]\s*)(?P<count>[1-9]\d?)$")


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU; cards.toml explains the fields."""

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
        """Number format of matrix products: bf16 from Ampere on, by compute capability."""
        return "bf16" if self.capability >= 8.0 else "fp16"

    @property
    def attention(self) -> str:
        """The attention kernel that PyTorch's SDPA uses."""
        return "flash" if self.capability >= 8.0 else "memory-efficient"

    @property
    def four_bits(self) -> bool:
        """Whether bitsandbytes has NF4 and 8-bit optimisers for this GPU."""
        return self.capability >= 6.0

    @property
    def compiles(self) -> bool:
        """Whether Triton, which torch.compile needs, supports this GPU."""
        return self.capability >= 7.0

    @property
    def wheel(self) -> str:
        """The builds of torch that run on this GPU, as text."""
        if self.capability < 7.5:
            return "torch 2.6 to 2.14 from the cu126 index"
        return "torch 2.7 or later, CUDA 12.8 or later" if self.capability >= 12.0 else "torch's default build"

    @property
    def warnings(self) -> tuple[str, ...]:
        """Limitations of the GPU that a user should know before using it."""
        lines = []
        if not self.compiles:
            lines.append("no Triton, hence no torch.compile, Liger or Unsloth; no fp16 in DeepSpeed (needs 7.0)")
        if self.capability < 8.0:
            lines.append(
                "no bf16: use fp16 with a GradScaler and fp32 weights; torch.cuda.is_bf16_supported() is wrong here"
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
    """Return the card and the number of cards in words such as ``5060ti x2`` or ``T4``. Raises NotFound."""
    plain = " ".join(words.lower().split())
    recognised_card = recognised(plain)
    if recognised_card is not None:
        return recognised_card
    near = did_you_mean(_plain_name(_COUNT.sub(r"\g<name>", plain)), list(cards()))
    raise NotFound(words, "no such card is known", near)


def recognised(words: str) -> tuple[Card, int] | None:
    """Return the card and the number of cards for a name, a pool's accelerator or a driver's name; None if unknown."""
    plain = " ".join(words.lower().split())
    names = {_plain_name(alias): name for name, entry in _table().items() for alias in (name, *entry["names"])}
    if (exact := names.get(_plain_name(plain))) is not None:
        return cards()[exact], 1
    many = _COUNT.match(plain)
    if many and (name := names.get(_plain_name(many["name"]))) is not None:
        return cards()[name], int(many["count"])
    return None


def _plain_name(name: str) -> str:
    """Return a name without maker, series and punctuation."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[^a-z0-9.]", "", name)


@dataclass(frozen=True, slots=True)
class Vision:
    """The vision tower of Qwen2-VL: one image token stands for ``merge`` squared patches."""

    hidden: int
    layers: int
    patch: int = 14
    merge: int = 2

    def tokens(self, wide: int, high: int) -> int:
        """Return the tokens of an image in pixels, its sides rounded to whole tokens."""
        side = self.patch * self.merge
        return max(1, round(wide / side)) * max(1, round(high / side))

    def parameters(self, text_hidden: int) -> int:
        """Return the parameters of patches, blocks and merger."""
        h, wide = self.hidden, self.hidden * self.merge**2
        block = 4 * h + (4 * h * h + 4 * h) + (8 * h * h + 5 * h)
        return 6 * self.patch**2 * h + self.layers * block + 2 * h + wide * wide + wide + (wide + 1) * text_hidden


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder like Llama; ``between`` is the width of the MLP.

    ``inside`` counts parameters of a block except products, two norms and biases, ``outside`` those outside the blocks,
    ``normed`` the values per token of a block's other norms.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv: int
    between: int
    words: int
    tied: bool = False
    bias: bool = False
    head_dim: int = 0
    gated: bool = True
    inside: int = 0
    outside: int = 0
    normed: int = 0
    vision: Vision | None = None
    source: str = ""
    hub: str = ""  # a repository of the Hub that has the model

    @property
    def queries(self) -> int:
        """Width of all queries of a token."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def keys(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv * (self.head_dim or self.hidden // self.heads)

    @property
    def products(self) -> tuple[tuple[str, int, int], ...]:
        """The linear layers of a block: name, input width, output width."""
        h, q, k, i = self.hidden, self.queries, self.keys, self.between
        return (
            ("q_proj", h, q), ("k_proj", h, k), ("v_proj", h, k), ("o_proj", q, h),
            *((("gate_proj", h, i),) if self.gated else ()), ("up_proj", h, i), ("down_proj", i, h),
        )  # fmt: skip

    @property
    def linear(self) -> int:
        """Parameters in the linear layers of all blocks, which QLoRA keeps in 4 bits."""
        tower = self.vision
        tower_weights = 0 if tower is None else tower.layers * 12 * tower.hidden**2
        return self.layers * sum(wide * out for _, wide, out in self.products) + tower_weights

    @property
    def parameters(self) -> int:
        """All parameters: embedding, head, blocks, norms, biases, the tower."""
        block = 2 * self.hidden + (self.queries + 2 * self.keys if self.bias else 0) + self.inside
        text = self.layers * (sum(wide * out for _, wide, out in self.products) + block) + self.hidden + self.outside
        tower = 0 if self.vision is None else self.vision.parameters(self.hidden)
        return self.words * self.hidden * (1 if self.tied else 2) + text + tower

    def adapters(self, rank: int, targets: tuple[str, ...] = ()) -> int:
        """Return the parameters of adapters of a rank on the ``targets`` (empty: all layers, the tower's included)."""
        text = sum(rank * (wide + out) for name, wide, out in self.products if not targets or name in targets)
        tower = self.vision
        tower_weights = 0 if tower is None or targets else tower.layers * rank * (4 + 2 + 5 + 5) * tower.hidden
        return self.layers * text + tower_weights


def find_shape(name: str, cache: Path | None = None) -> Shape:
    """Return the shape of a shipped name, a folder or config.json, or ``owner/name[@revision]`` of the Hub.

    A repository is searched in the Hub's cache (``cache``, else HF_HOME's), then in the shipped table; nothing is
    downloaded. Raises NotFound.
    """
    bare = name.removeprefix("hf:")
    shapes = shipped()
    if (match := shapes.get(bare.lower())) is not None:
        return match
    path = Path(bare).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        return _read(path, bare)
    repository, _, revision = bare.partition("@")
    if repository.count("/") == 1 and not repository.startswith("."):
        if (cached := _cached(repository, revision, cache)) is not None:
            return replace(_read(cached, bare), hub=bare)
        if (match := shapes.get(repository.lower())) is not None:
            return replace(match, hub=bare)
        raise NotFound(name, "its config.json is not on this machine and its shape is not shipped", _REMEDY)
    near = did_you_mean(bare.lower(), [key for key in shapes if "/" not in key])
    raise NotFound(name, "no model of this name is shipped, and there is no such folder or file", f"{near}. {_REMEDY}")


_REMEDY = "Name a folder with its config.json, or fetch that file first: hf download OWNER/NAME config.json"


@lru_cache(maxsize=1)
def shipped() -> dict[str, Shape]:
    """Return the shipped shapes by lower-case name and repository."""
    result: dict[str, Shape] = {}
    for name, entry in tomllib.loads(Path(__file__).with_name("shapes.toml").read_text(encoding="utf-8")).items():
        vision = Vision(**entry["vision"]) if "vision" in entry else None
        shape = Shape(name=name, vision=vision, source=entry["source"], hub=entry["hub"][0], **entry["shape"])
        result |= dict.fromkeys([name, *(hub.lower() for hub in entry["hub"])], shape)
    return result


def _cached(repository: str, revision: str, cache: Path | None) -> Path | None:
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    folder = (cache or home / "hub") / f"models--{repository.replace('/', '--')}"
    if revision and (folder / "refs" / revision).is_file():
        revision = read_bounded(folder / "refs" / revision).decode("ascii", "replace").strip()
    named = sorted((folder / "snapshots").glob(f"{revision or '*'}/config.json"))
    return named[-1] if named else None


def _read(path: Path, name: str) -> Shape:
    try:
        config = read_json(read_bounded(path))
    except (OSError, ValueError) as error:
        raise NotFound(name, f"{path} cannot be read: {error}", "It must be the model's config.json") from None
    if not isinstance(config, dict):
        raise NotFound(name, f"{path} is not a JSON object", "It must be the model's config.json")
    return from_config(config, name, str(path))


def from_config(config: Mapping[str, Any], name: str, source: str = "config.json") -> Shape:
    """Return the shape by a config.json. Raises NotFound if the formulas do not cover the model."""
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    assert text is not None  # noqa: S101 - the other branch is the config itself

    def number(key: str, default: int | None = None) -> int:
        value = text.get(key, config.get(key, default))
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 31:
            raise NotFound(name, f"{source} says {key} = {value!r}", "Formulas are for decoders of Llama's kind")
        return value

    if any(text.get(key) for key in ("num_experts", "num_local_experts", "n_routed_experts")):
        raise NotFound(
            name, "it is a mixture of experts", "Formulas are for dense decoders; schedctl advise --calibrate"
        )
    kind = str(text.get("model_type") or config.get("model_type") or "")
    family = _family(kind, text, name, source)
    vision = config.get("vision_config")
    if vision is not None and kind not in _WITH_TOWER:
        raise NotFound(name, f"its vision_config is of {config.get('model_type', kind)}", f"{_TOWERS}. {_TRY}")
    between = number("intermediate_size")
    heads = number("num_attention_heads")
    head_dim = text.get("head_dim") or family.head_dim
    shape = Shape(
        name=name,
        hidden=number("hidden_size"),
        layers=number("num_hidden_layers"),
        heads=heads,
        kv=number("num_key_value_heads", heads),
        between=between // 2 if kind == "qwen" else between,  # the first Qwen counts gate and up together
        words=number("vocab_size"),
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", family.tied))),
        bias=family.is_on(text, family.qkv_bias),
        head_dim=head_dim if isinstance(head_dim, int) and head_dim > 0 else 0,
        gated=family.gated,
        vision=_vision(vision, name),
        source=source,
    )
    inside = family.inside(text, shape.hidden, shape.queries, shape.keys, heads, shape.between)
    normed = family.normed(shape.hidden, shape.queries + shape.keys)
    return replace(shape, inside=inside, outside=family.outside(shape.hidden, shape.words), normed=normed)


_TRY = "Measure it on the machine that will train it: schedctl advise --calibrate"
_WITH_TOWER = frozenset({"qwen2_vl", "qwen2_vl_text"})
_TOWERS = "Formulas are for towers of Qwen2-VL's kind"


def _family(kind: str, config: Mapping[str, Any], name: str, source: str) -> "Family":
    """Return the family of a ``model_type``. Raises NotFound if its parameters would be counted wrongly."""
    family = FAMILIES.get(kind)
    if family is None:
        what = f"its model_type is {kind}" if kind else f"{source} names no model_type"
        raise NotFound(name, f"{what}, for which there is no formula", f"Known: {', '.join(sorted(FAMILIES))}. {_TRY}")
    if unlike := [key for key in family.unlike if config.get(key)]:
        raise NotFound(name, f"{source} says {unlike[0]} = {config[unlike[0]]!r}, for which there is no formula", _TRY)
    return family


def _vision(config: Any, name: str) -> Vision | None:
    if not isinstance(config, dict):
        return None
    try:
        return Vision(
            hidden=int(config.get("embed_dim") or config["hidden_size"]),
            layers=int(config.get("depth") or config["num_hidden_layers"]),
            patch=int(config.get("patch_size", 14)),
            merge=int(config.get("spatial_merge_size", 2)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotFound(name, f"its vision_config lacks {error}", _TOWERS) from None


# A test compares the counts with a small model of each family on the meta device. Other families are refused: counted
# as Llama, Qwen3.5 would have three quarters of its parameters, and StarCoder2 137 %.
@dataclass(frozen=True, slots=True)
class Family:
    """How a family differs from Llama. Norms are counted in vectors of the hidden width; a norm's bias is one more."""

    gated: bool = True  # the MLP has three products
    norms: int = 2  # in a block
    last: int = 1  # after the last block
    query_norms: str = ""  # norms of queries and keys: "head" (of the width of a head) or "all" (of their full width)
    qkv_bias: str = "attention_bias"  # the key that switches biases of queries, keys and values on; "yes": always
    out_bias: str = "attention_bias"  # of the attention's output
    mlp_bias: str = ""
    head_bias: bool = False
    biased: tuple[str, ...] = ()  # keys of biases that are on if the config lacks the key
    tied: bool = False  # value of tie_word_embeddings if the config lacks it
    head_dim: int = 0  # width of a head if the config lacks it; 0: hidden / heads
    unlike: tuple[str, ...] = ()  # keys that must be off: with them the formula is not exact

    def inside(self, config: Mapping[str, Any], hidden: int, queries: int, keys: int, heads: int, between: int) -> int:
        """Return the parameters of a block apart from its linear layers, query biases and two norms."""
        head = queries // heads
        count = (self.norms - 2) * hidden
        count += {"": 0, "head": 2 * head, "all": queries + keys}[self.query_norms]
        count += hidden if self.is_on(config, self.out_bias) else 0
        if self.is_on(config, self.mlp_bias):
            count += hidden + between * (2 if self.gated else 1)
        return count

    def outside(self, hidden: int, words: int) -> int:
        """Return the parameters outside the blocks apart from embedding, head and one norm."""
        return (self.last - 1) * hidden + (words if self.head_bias else 0)

    def normed(self, hidden: int, heads: int) -> int:
        """Return the values per token of norms beyond two; ``heads``: widths of queries and keys."""
        more = (self.norms - 2) * hidden if self.last == 1 and self.norms > 2 else 0  # otherwise they are biases
        return more + (heads if self.query_norms else 0)

    def is_on(self, config: Mapping[str, Any], key: str) -> bool:
        """Return whether a config switches a bias on."""
        return key == "yes" or bool(key and config.get(key, key in self.biased))


_LLAMA = Family(mlp_bias="mlp_bias")
_PLAIN = Family(qkv_bias="", out_bias="")
_QWEN2 = Family(qkv_bias="yes", out_bias="")

FAMILIES: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _PLAIN,
    "ministral3": Family(qkv_bias="", out_bias="", head_dim=128),
    "qwen": _QWEN2,
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_vl_text": _QWEN2,
    "qwen3": Family(query_norms="head", head_dim=128),
    "gemma": Family(tied=True, head_dim=256),
    "gemma2": Family(norms=4, tied=True, head_dim=256, unlike=("attn_logit_softcapping",)),
    "gemma3_text": Family(norms=4, query_norms="head", tied=True, head_dim=256),
    "phi": Family(
        gated=False, norms=2, last=2, qkv_bias="yes", out_bias="yes", mlp_bias="yes", head_bias=True,
        unlike=("qk_layernorm",),
    ),
    "phi3": _PLAIN,
    "starcoder2": Family(
        gated=False, norms=4, last=2, tied=True,
        qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", biased=("use_bias",),
    ),
    "gpt_neox": Family(gated=False, norms=4, last=2, mlp_bias="yes", biased=("attention_bias",)),
    "stablelm": Family(
        norms=4, last=2, qkv_bias="use_qkv_bias", out_bias="", unlike=("qk_layernorm", "use_parallel_residual")
    ),
    "granite": _LLAMA,
    "olmo": Family(norms=0, last=0),
    "olmo2": Family(query_norms="all"),
    "olmo3": Family(query_norms="all"),
    "cohere": Family(norms=1, tied=True, unlike=("use_qk_norm",)),
    "cohere2": Family(norms=1, tied=True),
    "glm": Family(out_bias="", biased=("attention_bias",), head_dim=128),
    "glm4": Family(norms=4, out_bias="", biased=("attention_bias",), head_dim=128),
    "exaone4": Family(query_norms="head", qkv_bias="", out_bias=""),
    "smollm3": Family(mlp_bias="mlp_bias", tied=True),
    "seed_oss": Family(
        out_bias="attention_out_bias", mlp_bias="mlp_bias", biased=("attention_bias",), head_dim=128,
        unlike=("attention_dropout", "residual_dropout"),
    ),
    "ernie4_5": Family(qkv_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias", tied=True, head_dim=128),
    "arcee": Family(gated=False, mlp_bias="mlp_bias"),
    "nemotron": Family(gated=False, norms=4, last=2, mlp_bias="mlp_bias"),
    "cwm": Family(qkv_bias="", out_bias="", head_dim=128),
}  # fmt: skip
"""The families by the ``model_type`` of their config.json."""


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
    """A training program, with the properties that determine its memory and time.

    ``loss_bytes`` are the bytes per logit at the loss (0: logits in chunks). ``autocast``: adapters get 16-bit inputs.
    ``context_gib`` is the CUDA context with libraries. ``loose`` is the allocator's overhead as a share of temporary
    memory, ``loose_again`` the same with gradient checkpointing. ``compiled`` layers keep less memory and launch fewer
    kernels.
    """

    name: str
    loss_bytes: float = 12
    autocast: bool = True
    context_gib: float = 0.75
    loose: float = 0.1
    loose_again: float = 0.3
    compiled: bool = False
    kbit_preparation: bool = False
    in_backward: bool = False  # the optimiser steps inside the backward pass: one layer's gradient exists at a time
    adapter_bytes: int = 4
    pieces: int = 2_048  # tokens per chunk of logits
    source: str = ""


STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack("finetune", loss_bytes=0, loose=0.04, loose_again=0.04, source="finetune.py, not compiled"),
        Stack(
            "finetune-compiled", loss_bytes=0, loose=0.05, loose_again=0.05, compiled=True,
            source="finetune.py, each layer compiled",
        ),
        Stack("transformers", loss_bytes=12, source="transformers 5 Trainer with PEFT"),
        Stack("transformers-bare", loss_bytes=12, autocast=False, source="transformers 5 in a loop without autocast"),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setup:
    """A way to train: micro-batches of ``batch`` rows of ``seq`` tokens per device, ``accumulate`` per step.

    ``master``: if all weights are trained, they are in fp32 (AMP). ``image_tokens`` of each row belong to an image.
    ``probed`` are measured bytes per layer and token, used instead of the formula (0: not measured).
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
        """Number of trained parameters."""
        return self.shape.parameters if self.method == "full" else self.shape.adapters(self.rank, self.targets)

    @property
    def sharded(self) -> bool:
        """Whether states are sharded by a library (DeepSpeed, FSDP) or layers spread, even over one device."""
        return self.parallel not in ("none", "ddp")

    @property
    def shards(self) -> int:
        """Number of devices over which states are sharded."""
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
