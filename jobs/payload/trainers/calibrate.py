"""Measure peak memory and seconds per step of training set-ups by a few real steps on this machine's device.

Weights are random, in the requested shape: nothing is downloaded or learned. Each set-up runs in its own process. A
set-up is one JSON object; only ``shape`` and ``points`` are required:

    {"name": "6.7b lora", "shape": {"model_type": "llama", "hidden_size": 4096, ...}, "trainer": "finetune",
     "method": "lora", "rank": 16, "targets": "all", "dropout": 0, "optimizer": "adamw", "weights": "bf16",
     "autocast": true, "checkpointing": true, "compile": false, "points": [[1, 512], [4, 2048]]}

A point is [rows, tokens per row]. With ``"image": [28, 28]``, each row of a vision model has an image of 28 x 28
patches. ``python calibrate.py OUT SETUPS.json [--seconds N]`` writes OUT after each set-up, so that no result is lost.
It needs torch, transformers, peft and accelerate, and for 4 and 8 bits also bitsandbytes.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

Step = Callable[[Any], None]
DEFAULTS: dict[str, Any] = {
    "name": "", "trainer": "finetune", "method": "lora", "rank": 16, "targets": "all", "dropout": 0.0,
    "optimizer": "adamw", "weights": "bf16", "autocast": True, "checkpointing": False, "compile": False, "image": None,
}  # fmt: skip
_WARM_UP_STEPS = 2  # per point, not timed
_TIMED_STEPS = 4  # per point, at most
_TIMED_SECONDS = 6.0  # per point; after two timed steps this is enough
_SETUP_SECONDS_MAX = 90.0
_MODELS = tuple(f"transformers.models.{name}.modeling_{name}" for name in ("llama", "qwen2", "qwen2_vl"))
_PACKAGES = ("torch", "transformers", "peft", "accelerate", "bitsandbytes")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the set-ups of a file; return 1 if nothing could be measured."""
    parser = argparse.ArgumentParser(prog="calibrate", description="Measure peak memory and seconds per step.")
    parser.add_argument("out", type=Path, metavar="OUT", help="file that is written after each set-up")
    parser.add_argument("setups", metavar="SETUPS", help="file with a list of set-ups, or the list itself")
    parser.add_argument("--seconds", type=float, default=420.0, help="no set-up begins later than this")
    options = parser.parse_args(arguments)
    setups_json = options.setups if options.setups.startswith("[") else Path(options.setups).read_text(encoding="utf-8")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    measurements = measure_all(json.loads(setups_json), options.out, options.seconds)
    return int(not any(row["points"] for row in measurements["setups"]))


def measure_all(setups: Sequence[dict[str, Any]], out: Path, seconds: float) -> dict[str, Any]:
    """Measure set-ups one after the other, each in its own process, for at most ``seconds``; return the report."""
    began = time.monotonic()
    context: Any = multiprocessing.get_context(_import_all())
    report: dict[str, Any] = {"versions": _versions(), "card": {}, "setups": []}
    for settings in setups:
        setup = {**DEFAULTS, **settings}
        left = began + seconds - time.monotonic()
        row: dict[str, Any] = {**setup, "points": [], "error": ""}
        if left <= 0:
            row["error"] = "not tried: no time was left (--seconds)"
        else:
            ours, theirs = context.Pipe(duplex=False)
            child = context.Process(target=_in_child, args=(setup, theirs))
            child.start()
            theirs.close()
            _listen(ours, row, report, time.monotonic() + min(_SETUP_SECONDS_MAX, left + 30))
            if child.is_alive():
                child.join(2)
            if child.is_alive():
                child.kill()
            child.join()
        report["setups"].append(row)
        report["seconds"] = round(time.monotonic() - began, 1)
        scratch = out.with_suffix(".part")
        scratch.write_text(json.dumps(report, indent=1))
        scratch.replace(out)
        results = ", ".join(
            f"{p['batch']}x{p['seq']}: {p['allocated'] / 2**30:.2f} GiB {p['seconds']:.3f} s" for p in row["points"]
        )
        print(
            f"{report['seconds']:6.1f} s  {setup['name'] or setup['method']}: {results} {row['error']}".rstrip(),
            flush=True,
        )
    return report


def _listen(pipe: Any, row: dict[str, Any], report: dict[str, Any], until: float) -> None:
    """Collect the results that a set-up's process sends, until its end or a timeout."""
    while True:
        if not pipe.poll(max(0.0, until - time.monotonic())):
            row["error"] = row["error"] or "it took too long"
            return
        try:
            part = pipe.recv()
        except EOFError:
            row["error"] = row["error"] or ("" if row.pop("done", False) else "its process ended early")
            return
        if "card" in part:
            report["card"] = part["card"]
        elif "point" in part:
            row["points"].append(part["point"])
        else:
            row.update(part)


def _in_child(setup: dict[str, Any], pipe: Any) -> None:
    warnings.simplefilter("ignore")  # deprecations inside libraries
    try:
        for message in measure(setup):
            pipe.send(message)
        pipe.send({"done": True})
    except Exception as error:  # noqa: BLE001 - reported; a failed set-up must not end the others
        pipe.send({"error": f"{type(error).__name__}: {str(error)[:300]}"})
    pipe.close()


def measure(setup: dict[str, Any]) -> Any:
    """Yield the device, the model's size, then each point (peak bytes, seconds) by size, until one does not fit."""
    import torch

    card = _card()
    yield {"card": card}
    accelerated = card["device"] != "cpu"
    torch.manual_seed(0)
    model, trained, step = make_step(setup, card)
    yield {"trained": sum(map(torch.numel, trained)), "held": torch.cuda.memory_allocated() if accelerated else 0}
    for rows, length in sorted(setup["points"], key=lambda point: (point[0] * point[1], point[1])):
        try:
            yield {"point": _measure_point(setup, model, step, rows, length, card)}
        except torch.OutOfMemoryError:
            yield {"error": f"{rows}x{length} does not fit"}
            return


def _measure_point(setup: dict[str, Any], model: Any, step: Step, rows: int, length: int, card: dict[str, Any]) -> Any:
    import torch

    accelerated = card["device"] != "cpu"
    batch = make_batch(setup, model, rows, length, card["device"])
    seconds: list[float] = []
    for number in range(_WARM_UP_STEPS + _TIMED_STEPS):
        if number == 1 and accelerated:  # the first step compiles, and creates the optimiser states
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        step(batch)
        if accelerated:
            torch.cuda.synchronize()
        if number >= _WARM_UP_STEPS:
            seconds.append(time.perf_counter() - began)
        if sum(seconds) > _TIMED_SECONDS and len(seconds) > 1:
            break
    point = {"batch": rows, "seq": length, "seconds": sorted(seconds)[len(seconds) // 2], "steps": len(seconds)}
    if not accelerated:
        return {**point, "allocated": 0, "reserved": 0, "used": 0, "context": 0}
    free, total = torch.cuda.mem_get_info()
    return {
        **point,
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "used": total - free,
        "context": total - free - torch.cuda.memory_reserved(),
    }


def _card() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"device": "cpu", "name": "cpu", "bf16": True}
    torch.cuda.init()
    free, total = torch.cuda.mem_get_info()
    about = torch.cuda.get_device_properties(0)
    return {
        "device": "cuda:0",
        "name": about.name,
        "total": total,
        "context": total - free,
        "capability": [about.major, about.minor],
        "bf16": (about.major, about.minor) >= (8, 0),
    }


def _import_all() -> str:
    """Import what every set-up needs; return "fork", or "spawn" if CUDA is already initialised."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # detect a GPU without initialising CUDA
    import torch

    # bitsandbytes, which peft imports, initialises CUDA, which a forked process cannot use afterwards.
    names = ["accelerate", *_MODELS, *(["peft"] if importlib.util.find_spec("bitsandbytes") is None else [])]
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"calibrate: {name}: {error}", file=sys.stderr)
    return "spawn" if torch.cuda.is_initialized() else "fork"


def _versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def make_step(setup: dict[str, Any], card: dict[str, Any]) -> tuple[Any, list[Any], Step]:
    """Return the model, its trained parameters, and a function that makes one optimiser step on a batch."""
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

        def plain_step(batch: dict[str, Any]) -> None:
            model(**batch, use_cache=False).loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return model, trained, plain_step
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="bf16", cpu=card["device"] == "cpu")
    wrapped, wrapped_optimizer = accelerator.prepare(model, optimizer)

    def accelerated_step(batch: dict[str, Any]) -> None:
        accelerator.backward(wrapped(**batch, use_cache=False).loss)
        accelerator.clip_grad_norm_(trained, 1.0)
        wrapped_optimizer.step()
        wrapped_optimizer.zero_grad()

    return wrapped, trained, accelerated_step


def make_model(setup: dict[str, Any], device: str) -> Any:
    """Return a model with random weights; with an adapter, unless all weights are trained."""
    model = _model(setup, device)
    if setup["method"] != "full":
        model = _adapted(setup, model)
        model.enable_input_require_grads()  # as users of Trainer do
    model.train()
    return model


def _own_step(setup: dict[str, Any], whole: Any, trained: list[Any], optimizer: Any, card: dict[str, Any]) -> Step:
    """Return a step like that of finetune.py."""
    import torch

    if TYPE_CHECKING or __package__:
        from .tuning.model import CausalLM
    else:
        from tuning.model import CausalLM

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
    """Return a model with random weights. For ``qlora``, its frozen linear layers are in 4 bits."""
    import torch
    import transformers

    shape = dict(setup["shape"])
    config = transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)
    kind = transformers.AutoModelForImageTextToText if setup["image"] else transformers.AutoModelForCausalLM
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[setup["weights"]]
    with torch.device(device):  # random weights of 6.7B take minutes on a CPU
        model = kind.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    if setup["method"] == "qlora":
        _to_four_bits(model, device)
    return model


def _to_four_bits(model: Any, device: str) -> None:
    """Convert all linear layers but the head to NF4 with double quantisation, as transformers loads 4-bit models."""
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
    """Return a batch of random rows for a model of text, or of text and images."""
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


if __name__ == "__main__":
    sys.exit(main())
