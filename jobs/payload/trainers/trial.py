"""One set-up made ready to be tried: a model with random weights, its optimiser, a step, and rows to learn from.

What calibrate.py measures. A set-up is the object that it explains, with every value given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Step = Callable[[Any], None]


def make_step(setup: dict[str, Any], card: dict[str, Any]) -> tuple[Any, list[Any], Step]:
    """Return the model, what is trained of it, and a function that makes one step of the optimiser."""
    import torch

    model = make_model(setup, card["device"])
    if setup["checkpointing"]:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = _optimizer(setup["optimizer"], trained, fused=card["device"] != "cpu")
    if setup["trainer"] == "finetune":
        return model, trained, _own_step(setup, model, trained, optimizer, card)
    if setup["compile"]:
        for layer in (model.get_base_model() if setup["method"] != "full" else model).model.layers:
            layer.compile()
    if not setup["autocast"]:

        def plain(batch: dict[str, Any]) -> None:
            model(**batch, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return model, trained, plain
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=card["device"] == "cpu")
    wrapped, steps = accelerator.prepare(model, optimizer)

    def theirs(batch: dict[str, Any]) -> None:
        accelerator.backward(wrapped(**batch, use_cache=False).loss)
        accelerator.clip_grad_norm_(trained, 1.0)
        steps.step()
        steps.zero_grad()

    return wrapped, trained, theirs


def make_model(setup: dict[str, Any], device: str) -> Any:
    """Return a model with random weights, and an adapter unless all are trained."""
    model = _model(setup, device)
    if setup["method"] != "full":
        model = _adapted(setup, model)
        model.enable_input_require_grads()  # as Trainer's users do; a layer's input asks for a gradient
    model.train()
    return model


def _own_step(setup: dict[str, Any], whole: Any, trained: list[Any], optimizer: Any, card: dict[str, Any]) -> Step:
    """Return a step as finetune.py makes it."""
    import torch

    if TYPE_CHECKING or __package__:
        from .tuning.model import CausalLM
    else:
        pass

    accelerated = card["device"] != "cpu"
    if accelerated:
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")  # noqa: SLF001 - too late for a variable
    model = CausalLM(whole, adapter=setup["method"] != "full")
    if setup["compile"]:
        for layer in model.layers:
            layer.compile()
    kind = "cuda" if accelerated else "cpu"

    def step(batch: dict[str, Any]) -> None:
        tokens = batch["input_ids"]
        with torch.autocast(kind, torch.bfloat16 if card["bf16"] else torch.float16):
            loss = model.summed_loss(tokens, batch["labels"], None, None) / tokens.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _model(setup: dict[str, Any], device: str) -> Any:
    """Return a model with random weights, its frozen products in 4 bits for ``qlora``."""
    import torch
    import transformers

    shape = dict(setup["shape"])
    config = transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)
    kind = transformers.AutoModelForImageTextToText if setup["image"] else transformers.AutoModelForCausalLM
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[setup["weights"]]
    with torch.device(device):  # random numbers for 6.7B take a processor minutes
        model = kind.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    if setup["method"] == "qlora":
        _to_four_bits(model, device)
    return model


def _to_four_bits(model: Any, device: str) -> None:
    """Put NF4 with double quantisation in place of each product but the head, as loading in 4 bits does."""
    import bitsandbytes as bnb
    import torch

    for name, old in [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]:
        if name.endswith("lm_head"):
            continue
        new = bnb.nn.Linear4bit(
            old.in_features, old.out_features, bias=old.bias is not None, compute_dtype=torch.bfloat16, device="meta"
        )
        new.weight = bnb.nn.Params4bit(
            old.weight.data, requires_grad=False, compress_statistics=True, quant_type="nf4", module=new
        )
        new.bias = old.bias
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent) if parent else model, own, new.to(device))
    model.is_loaded_in_4bit = True


def _adapted(setup: dict[str, Any], model: Any) -> Any:
    from peft import LoraConfig, get_peft_model

    model.requires_grad_(requires_grad=False)
    targets = "all-linear" if setup["targets"] == "all" else list(setup["targets"])
    return get_peft_model(
        model,
        LoraConfig(
            r=setup["rank"],
            lora_alpha=2 * setup["rank"],
            lora_dropout=setup["dropout"],
            target_modules=targets,
            task_type="CAUSAL_LM",
        ),
    )


def _optimizer(name: str, trained: list[Any], *, fused: bool) -> Any:
    import torch

    match name:
        case "adamw":
            return torch.optim.AdamW(trained, lr=1e-5, fused=fused)
        case "adamw-foreach":
            return torch.optim.AdamW(trained, lr=1e-5, foreach=True)
        case "sgd":
            return torch.optim.SGD(trained, lr=1e-5, momentum=0.9)
        case "adafactor":
            return torch.optim.Adafactor(trained, lr=1e-5)
        case "adamw8bit":
            from bitsandbytes.optim import AdamW8bit

            return AdamW8bit(trained, lr=1e-5)
    raise ValueError(f"there is no optimizer {name!r}")


def make_batch(setup: dict[str, Any], model: Any, rows: int, length: int, device: str) -> dict[str, Any]:
    """Return random rows that a model of text, or of text and images, learns from."""
    import torch

    config = model.config
    words = config.get_text_config().vocab_size
    tokens = torch.randint(10, words - 10, (rows, length), device=device)
    batch = {"input_ids": tokens, "labels": tokens.clone()}
    if setup["image"]:
        high, wide = setup["image"]
        vision = config.vision_config
        count = high * wide // vision.spatial_merge_size**2
        if count + 2 > length:
            raise ValueError(f"an image of {high} x {wide} patches is {count} tokens, and a row has {length}")
        tokens[:, 0], tokens[:, 1 : count + 1] = config.vision_start_token_id, config.image_token_id
        patch = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
        batch["pixel_values"] = torch.randn(rows * high * wide, patch, device=device)
        batch["image_grid_thw"] = torch.tensor([[1, high, wide]] * rows, device=device)
        batch["mm_token_type_ids"] = (tokens == config.image_token_id).int()
    return batch
