"""Load the model to train: all weights in fp32, or a LoRA adapter in fp32 on a frozen base in 16 or 4 bits."""

import argparse
import contextlib
import functools
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from .base import check_loaded
from .checkpoint import read_fingerprint
from .data.images import KINDS, PREPROCESSOR, preprocessor
from .devices.card import Device
from .devices.fp8 import use_fp8
from .devices.layers import connect, device_map
from .devices.offload import OffloadedInputs
from .errors import TrainingRefused, say
from .memory import HALF, OFFLOAD

# How packed documents are isolated from each other, per model family. Attention layers take an attention mask.
# Recurrent and convolution layers carry state from token to token, and a mask does not stop that: with those layers,
# each document gets its own row. So it does in every family that tests/training/test_families.py does not test.
MASK, POSITIONS, ALONE = "mask", "positions", "alone"
# Families whose layers respect a block-causal mask (each token attends to the earlier tokens of its document).
_OBEY_MASKS = frozenset({
    "arcee", "codegen", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "ernie4_5", "exaone4", "gemma", "gemma2",
    "gemma3_text", "gemma4_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss", "gptj",
    "granite", "granitemoe", "helium", "llama", "llama4_text", "ministral", "mistral", "mixtral", "mpt", "olmo",
    "olmo2", "olmo3", "opt", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss", "smollm3",
    "stablelm", "starcoder2",
})  # fmt: skip
# Families that build their (windowed) masks themselves, from position IDs that restart at 0 in each document.
_READ_POSITIONS = frozenset({
    "cohere2", "exaone4", "gemma2", "gemma3_text", "gemma4_text", "llama4_text", "ministral", "mistral", "mixtral",
    "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2",
})  # fmt: skip
_WINDOWED = ("sliding_attention", "chunked_attention")


def separation(config: Any, length: int) -> str:
    """Return how documents in a row of ``length`` tokens are isolated: MASK, POSITIONS, or ALONE (a row each)."""
    kind = config.model_type
    if _has_window(config, length):
        return POSITIONS if kind in _READ_POSITIONS and _masks_come_from_positions() else ALONE
    return MASK if kind in _OBEY_MASKS else ALONE


def _has_window(config: Any, length: int) -> bool:
    """Return whether an attention window is shorter than a row; our full causal mask would override such a window."""
    layers = getattr(config, "layer_types", None)
    if getattr(config, "use_sliding_window", True) is False and not set(layers or ()) & set(_WINDOWED):
        return False
    if layers is not None and not set(layers) & set(_WINDOWED):
        return False
    sizes = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    return any(size is not None and size < length for size in sizes)


def _masks_come_from_positions() -> bool:
    """Return whether this transformers detects packed documents from position IDs (4.53 and later)."""
    try:
        from transformers.masking_utils import find_packed_sequence_indices  # noqa: F401
    except ImportError:
        return False
    return True


# Keys of a config.json that change the logits or the loss. With any of them, the loss cannot be computed in chunks.
_ODD_LOGITS = (
    "final_logit_softcapping", "lm_head_multiplier", "logit_scale", "logits_scaling", "logits_soft_cap",
    "output_router_logits",
)  # fmt: skip
# Modules that peft cannot wrap: kernels of these families read the weight directly, or the layer returns a tuple.
_NOT_ADAPTED = dict.fromkeys(("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h"), r".*\.(out_proj|conv1d)")
_NOT_ADAPTED |= dict.fromkeys(("llama4_text", "phimoe"), r".*\.router")
NOT_IN_4_BITS = ("mamba", "rwkv")  # transformers reads their weights directly, without the layers that dequantise them
_TOKENS_AT_ONCE = 2_048  # chunk size of the loss: the logits of one chunk are in memory
_NAMED_MAX = 4  # kinds of weights listed in a message
EAGER = "eager"  # the attention that the model implements itself in Python


class CausalLM:
    """A causal language model for the training loop.

    ``whole`` is the model to save (a PeftModel with an adapter); ``root`` is the model inside it that computes.
    ``named`` and ``trained`` are the trainable parameters, with and without names.
    """

    def __init__(self, whole: Any, *, adapter: bool) -> None:
        self.whole, self.adapter = whole, adapter
        self._causal = whole.get_base_model() if adapter else whole
        self._masks_are_bool = getattr(self._causal.config, "_attn_implementation", "sdpa") != EAGER
        self._odd = any(getattr(self._causal.config, name, None) for name in _ODD_LOGITS)
        self.compute: Callable[..., Any] = self._summed_loss
        self.inputs: contextlib.AbstractContextManager[None] = (
            contextlib.nullcontext()
        )  # entered around the forward pass; offloads layer inputs with --gradient-checkpointing offload
        self.beside: dict[str, bytes] = {}  # extra files of a checkpoint, by name
        self.collect()

    def collect(self) -> None:
        """List the trainable parameters. Call it again after parameters are replaced, as FSDP2 does."""
        self.named = [(name, part) for name, part in self.whole.named_parameters() if part.requires_grad]
        self.trained = [part for _, part in self.named]

    @property
    def root(self) -> Any:
        """The base model, without the wrapper of the adapter."""
        return self._causal

    @property
    def unreached(self) -> str:
        """A text about the weights without an adapter (share and largest kinds); "" if they are less than 1 %."""
        from peft.tuners.tuners_utils import BaseTunerLayer

        adapted = [layer for layer in self._causal.modules() if isinstance(layer, BaseTunerLayer)]
        ends = (self._causal.get_input_embeddings(), self._causal.get_output_embeddings())
        reached = {id(part) for layer in (*adapted, *ends) if layer is not None for part in layer.parameters()}
        total, left = 0, dict[str, int]()
        for name, part in self._causal.named_parameters():
            total += (size := part.numel() * (1 + (part.dtype == torch.uint8)))  # a byte holds two 4-bit weights
            if part.ndim > 1 and id(part) not in reached and "visual" not in name:
                kind = re.sub(r"\.\d+\.", ".*.", name)
                left[kind] = left.get(kind, 0) + size
        if 100 * sum(left.values()) < total:
            return ""
        named = sorted(left, key=lambda name: -left[name])[:_NAMED_MAX]
        return f"{100 * sum(left.values()) / total:.0f} % of the weights, most of all {', '.join(named)}"

    @property
    def layers(self) -> Any:
        """The decoder's list of equal layers, whose name differs between model families."""
        decoder = getattr(self._decoder, "language_model", self._decoder)
        return next(part for part in decoder.modules() if isinstance(part, torch.nn.ModuleList))

    @property
    def _decoder(self) -> Any:
        return getattr(self._causal, self._causal.base_model_prefix, None) or self._causal.model  # Llama 4's is wrong

    def summed_loss(self, tokens: Any, targets: Any, positions: Any, documents: Any, **more: Any) -> Any:
        """Return the cross entropy in nats, summed over all targets of a batch; targets of -100 are ignored.

        No document attends to another: ``documents`` numbers the documents of each row, or ``document_ends`` has the
        offsets where they end. Logits are computed in chunks and recomputed in the backward pass, as the logits of the
        whole batch would be the largest tensor in memory.
        """
        with self.inputs:
            return self.compute(tokens, targets, positions, documents, **more)

    def _summed_loss(self, tokens: Any, targets: Any, positions: Any, documents: Any, **more: Any) -> Any:
        extra: dict[str, Any] = more
        if "document_ends" in extra:
            extra = {**extra, "position_ids": positions}
        elif documents is not None and (how := separation(self._causal.config, tokens.shape[1])) != ALONE:
            extra = {"position_ids": positions}
            if how == MASK:
                extra["attention_mask"] = self._mask(documents)
        if self._odd:
            out = self._causal(input_ids=tokens, use_cache=False, **extra)
            loss = functional.cross_entropy(out.logits.float().flatten(0, 1), targets.flatten(), reduction="sum")
            balance = getattr(out, "aux_loss", None) if self._causal.training else None
            if balance is None:
                return loss
            # Load-balancing loss of a mixture of experts, a mean: times the number of targets, as the loss is a sum.
            return loss + self._causal.config.router_aux_loss_coef * balance * (targets >= 0).sum()
        hidden = self._decoder(input_ids=tokens, use_cache=False, **extra).last_hidden_state.flatten(0, 1)
        head, flat = self._causal.get_output_embeddings(), targets.flatten()
        total = torch.zeros((), device=tokens.device)
        for some, wanted in zip(hidden.split(_TOKENS_AT_ONCE), flat.split(_TOKENS_AT_ONCE), strict=True):
            total = total + checkpoint(_piece, head, some, wanted, use_reentrant=False).to(total.device)
        return total

    def _mask(self, documents: Any) -> Any:
        """Return the block-causal mask, (rows, 1, length, length): bool, or additive as eager attention needs it."""
        length = documents.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
        mask = ((documents[:, :, None] == documents[:, None, :]) & before)[:, None]
        if self._masks_are_bool:
            return mask
        kind = self._causal.dtype
        return torch.zeros_like(mask, dtype=kind).masked_fill(~mask, torch.finfo(kind).min)


def _piece(head: Any, hidden: Any, targets: Any) -> Any:
    logits = head(hidden).float()
    return functional.cross_entropy(logits, targets.to(logits.device), reduction="sum")


def load_libraries(options: argparse.Namespace, card: Device) -> None:
    """Import transformers, peft and the compiler now rather than on first use, so that their time can be reported."""
    from transformers import AutoModelForCausalLM  # noqa: F401 - transformers imports lazily

    if options.lora:
        import peft  # noqa: F401
    if _compiles(options, card):
        import torch._dynamo
        import torch._inductor.compile_fx  # noqa: F401


def _compiles(options: argparse.Namespace, card: Device) -> bool:
    return bool(options.compile == "on" or (options.compile == "auto" and card.compiles))


def make_model(
    options: argparse.Namespace,
    source: str,
    parent: Path | None,
    resume: Path | None,
    card: Device,
    share_out: Callable[[CausalLM], None] | None = None,
) -> CausalLM:
    """Return the model on its device, with the weights of ``resume``, else of ``parent``, else of ``source``.

    ``share_out`` shards the model over the processes; until then it is in host memory. None means no sharding. Raises
    TrainingRefused if the weights do not fit the options.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    _check_parent(parent, options)
    start = resume or parent
    if options.lora and start is not None:
        _check_adapter(start, options, resumed=resume is not None)
    sees = AutoConfig.from_pretrained(source).model_type in KINDS
    kind = AutoModelForImageTextToText if sees else AutoModelForCausalLM
    origin = start if start and not options.lora else source
    loading = _loading(options, source, kind, card)
    whole, loading_info = kind.from_pretrained(origin, output_loading_info=True, **loading)
    check_loaded(str(origin), loading_info["missing_keys"])
    if options.spread > 1:
        connect(whole, loading["device_map"])
    _keep_gradients(whole)
    whole.config.use_cache = False
    if sees:
        whole.model.visual.requires_grad_(requires_grad=False)
    if options.lora:
        whole = _with_adapter(whole, options, start, resumed=resume is not None)
    whole.train()
    model = CausalLM(whole, adapter=bool(options.lora))
    if options.gradient_checkpointing:
        _compute_again(model, half=options.gradient_checkpointing == HALF)
    if options.gradient_checkpointing == OFFLOAD and card.accelerated and options.spread == 1:
        model.inputs = OffloadedInputs(model.root.config.get_text_config().hidden_size)
    if sees:
        model.beside[PREPROCESSOR] = preprocessor(source)
    odd = {name: part.dtype for name, part in model.named if part.dtype != torch.float32}
    if odd and not options.zero:  # ZeRO keeps an fp32 copy beside the 16-bit weights
        raise TrainingRefused(
            f"weights to be trained must have 32 bits, but some do not: {odd}. Update peft (0.15 or later)"
        )
    if share_out is not None:
        share_out(model)
    if model.adapter and os.environ.get("RANK", "0") == "0" and (left := model.unreached):
        say(f"peft's adapter of all linear layers does not reach {left}: they are not trained")
    _make_faster(model, options, card)
    return model


def _loading(options: argparse.Namespace, source: str, kind: Any, card: Device) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained``: dtype, device map, attention, and quantisation."""
    from transformers import AutoConfig

    held = card.dtype if options.lora or options.zero else torch.float32
    loading: dict[str, Any] = {"dtype": held, "attn_implementation": attention_kind(source)}
    if (card.accelerated and not options.shared) or options.bits == 4:
        loading["device_map"] = {"": card.device}
    config = AutoConfig.from_pretrained(source)
    if options.bits == 4:
        loading["quantization_config"] = _four_bits(held, config.model_type)
    if options.spread > 1:
        tokens = options.length * (options.rows_at_once or options.batch)
        with torch.device("meta"):
            empty = kind.from_config(config)
        loading["device_map"] = device_map(empty, options.spread, options.lora, tokens, min(tokens, _TOKENS_AT_ONCE))
    return loading


def _make_faster(model: CausalLM, options: argparse.Namespace, card: Device) -> None:
    if options.precision == "fp8":
        count = use_fp8(model.layers)
        say(f"{count} linear layers of the base compute in fp8")
    if _compiles(options, card):
        for layer in model.layers:
            layer.compile()


@functools.cache
def attention_kind(source: str) -> str:
    """Return "sdpa", or "eager" if the model does not support that. Raises TrainingRefused if neither works."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    config = AutoConfig.from_pretrained(source)
    kind = AutoModelForImageTextToText if config.model_type in KINDS else AutoModelForCausalLM
    why = ""
    # SDPA has no soft cap on attention logits; transformers would drop the model's cap without a warning.
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    for name in (EAGER,) if capped else ("sdpa", EAGER):
        try:
            with torch.device("meta"):
                kind.from_config(config, attn_implementation=name)
        except (ValueError, ImportError) as error:
            why = " ".join(str(error).split())[:300]
        else:
            return name
    raise TrainingRefused(
        f"the model in {source} ({config.model_type}) cannot be created with torch's attention (sdpa) or with its own "
        f"(eager): {why}. Name another model, or another version of transformers in the job's requirements"
    )


def _keep_gradients(whole: Any) -> None:
    """Use the usual 4-bit layout on CPUs with AVX512-BF16 too: the special layout for them has no backward pass."""
    for part in whole.modules():
        if hasattr(part, "support_avx512bf16_for_cpu"):
            part.support_avx512bf16_for_cpu = False


def _compute_again(model: CausalLM, *, half: bool) -> None:
    """Turn on gradient checkpointing for all layers, or for the first half of them."""
    model.whole.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if half:
        for layer in model.layers[len(model.layers) // 2 :]:
            layer.gradient_checkpointing = False


def _with_adapter(base: Any, options: argparse.Namespace, adapter: Path | None, *, resumed: bool) -> Any:
    from peft import LoraConfig, PeftModel, get_peft_model

    base.requires_grad_(requires_grad=False)
    if adapter is not None:
        config = LoraConfig.from_pretrained(adapter)
        config.inference_mode = False
        if _old_options(adapter, resumed=resumed).get("dropout") != options.dropout:
            config.lora_dropout = options.dropout
        return PeftModel.from_pretrained(base, adapter, is_trainable=True, config=config)
    # The vision tower stays frozen, without an adapter.
    seeing = hasattr(getattr(base, "model", None), "visual")
    return get_peft_model(
        base,
        LoraConfig(
            r=options.lora,
            lora_alpha=options.alpha,
            lora_dropout=options.dropout,
            target_modules="all-linear",
            exclude_modules=r".*\bvisual\..*" if seeing else _NOT_ADAPTED.get(base.config.model_type),
            task_type="CAUSAL_LM",
        ),
    )


def _four_bits(computed_in: Any, kind: str) -> Any:
    if kind in NOT_IN_4_BITS:
        raise TrainingRefused(
            f"--use-4bit: transformers cannot compute {kind} from 4 bits. Omit --use-4bit: it is small in 16 bits"
        )
    try:
        import bitsandbytes  # noqa: F401 - the error of transformers is less clear
    except ImportError:
        raise TrainingRefused(
            "--use-4bit needs bitsandbytes, which is not installed here: name it in the job's requirements"
        ) from None
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=computed_in
    )


def _check_parent(parent: Path | None, options: argparse.Namespace) -> None:
    """Raise TrainingRefused unless parent and job both train an adapter, or both all weights."""
    if parent is None:
        return
    kind = "an adapter" if (parent / "adapter_config.json").exists() else "a whole model"
    if (kind == "an adapter") != bool(options.lora):
        remedy = "with --lora 0" if kind == "a whole model" else "with --lora and its rank"
        raise TrainingRefused(f"the parent's checkpoint is {kind}. Train this job {remedy} as well")


def _old_options(adapter: Path, *, resumed: bool) -> dict[str, Any]:
    """Return the options that a resumed checkpoint was trained with; {} if not resumed or without a fingerprint."""
    fingerprint = read_fingerprint(adapter) if resumed else None
    return dict(fingerprint["job"]) if fingerprint else {}


def _check_adapter(adapter: Path, options: argparse.Namespace, *, resumed: bool) -> None:
    """Raise TrainingRefused if an adapter's rank or alpha differ from the options: peft would keep the adapter's."""
    config, before = json.loads((adapter / "adapter_config.json").read_bytes()), _old_options(adapter, resumed=resumed)
    for option, name in (("lora", "r"), ("alpha", "lora_alpha")):
        if config[name] != (wanted := getattr(options, option)) and before.get(option) != wanted:
            raise TrainingRefused(
                f"the first adapter, in {adapter}, has --{option} {config[name]}, but this training sets --{option} "
                f"{wanted}. A trained adapter cannot change it. Set --{option} {config[name]}, or train a new adapter "
                "without that parent"
            )
