"""Merge LoRA adapters into their base: one 16-bit model for transformers, vLLM and llama.cpp's converter.

``python merge.py FOLDER --base BASE --adapter CHECKPOINT``. An adapter trained on a 4-bit base is merged into the same
base in 16 bit. An adapter that was initialised from another adapter includes it. Adapters of one base that were trained
independently are added up; that sum has not been evaluated. It needs torch, transformers and peft.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

if not __package__:  # started as a script, wherever the payload is unpacked
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    __package__ = "trainers"

from .tuning.base import base_digest
from .tuning.errors import TrainingRefused

_ADAPTER, _FINGERPRINT = "adapter_config.json", "fingerprint.json"
_TEXTS = (".json", ".txt", ".model", ".jinja", ".tiktoken")  # files of a tokenizer and of generation settings
_TERMS = ("LICENSE", "NOTICE")
_NOT_COPIED = ("config.json", "version.json", _FINGERPRINT)
_INDEX = ".index.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Merge by the options of the command line; return 0, or print the reason and return 1 if that is impossible."""
    parser = argparse.ArgumentParser(prog="merge", description="Merge LoRA adapters into their base, in 16 bit.")
    parser.add_argument("folder", type=Path, help="new or empty: the model is written there")
    parser.add_argument("--base", required=True, help="folder, or name on the Hub, of the 16 bit base")
    parser.add_argument(
        "--adapter", required=True, action="append", type=Path, help="folder of a checkpoint; may be repeated"
    )
    parser.add_argument("--precision", choices=("bf16", "fp16"), help="of the merged weights (default: the base's)")
    options = parser.parse_args(arguments)
    try:
        merge(options.folder, options.base, options.adapter, options.precision)
    except TrainingRefused as error:
        print(f"merge: {error}", file=sys.stderr)
        return 1
    return 0


def merge(folder: Path, base: str, adapters: Sequence[Path], precision: str | None = None) -> None:
    """Write the merged model into ``folder``. Raises TrainingRefused if a base or an adapter cannot be used."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TrainingRefused(f"{folder} exists and is not an empty folder: name another folder")
    base_folder = _fetched(base)
    config = json.loads((base_folder / "config.json").read_bytes())
    if "quantization_config" in config:
        raise TrainingRefused(
            f"{base} is a base in few bits, and an adapter cannot be merged into it: name the 16 bit model"
        )
    try:
        import peft  # noqa: F401 - a missing library is reported before anything is read
        import torch
        import transformers
    except ImportError as error:
        raise TrainingRefused(
            f"{error}: take a Python with torch, transformers and peft (schedctl: --python)"
        ) from None
    for adapter in adapters:
        _check(adapter, base, str(base_folder))
    dtype_name = precision or {"float16": "fp16"}.get(config.get("dtype", config.get("torch_dtype")), "bf16")
    dtype = torch.float16 if dtype_name == "fp16" else torch.bfloat16
    kind = getattr(transformers, next(iter(config.get("architectures") or ()), ""), transformers.AutoModelForCausalLM)
    model = kind.from_pretrained(str(base_folder), dtype=dtype, use_safetensors=any(base_folder.glob("*.safetensors")))
    for adapter in adapters:
        model = _merged(model, adapter, base)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    _copy_texts(base_folder, folder)
    # The base's own config.json: a newer library writes names that older servers and converters do not know.
    config["dtype" if "dtype" in config else "torch_dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _merged(model: Any, adapter: Path, base: str) -> Any:
    """Return a model with an adapter added to its weights. The sum is made in 32 bit: each weight is rounded once."""
    import torch
    from peft import PeftModel, get_peft_model_state_dict, load_peft_weights
    from peft.tuners.lora import LoraLayer

    try:
        both = PeftModel.from_pretrained(model, str(adapter), use_safetensors=True)
    except (RuntimeError, ValueError, OSError) as error:
        raise TrainingRefused(f"the adapter in {adapter} does not fit {base}: {str(error).strip()[:500]}") from None
    if lost := load_peft_weights(str(adapter), device="cpu").keys() - get_peft_model_state_dict(both).keys():
        raise TrainingRefused(f"the adapter in {adapter} does not fit {base}, which has no place for its {min(lost)}")
    for name, layer in both.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        inner = layer.get_base_layer()
        kept = inner.weight.dtype
        inner.to(torch.float32)
        layer.merge()
        inner.to(kept)
        if not torch.isfinite(inner.weight).all():
            raise TrainingRefused(
                f"merged with {adapter}, {name} holds values that are not finite: choose --precision bf16"
            )
    return both.unload()


def _check(adapter: Path, base: str, base_folder: str) -> None:
    """Raise TrainingRefused for a folder that is not an adapter, or whose fingerprint names another base."""
    if not (adapter / _ADAPTER).is_file():
        raise TrainingRefused(f"{adapter} has no {_ADAPTER}: a whole model needs no merging")
    path = adapter / _FINGERPRINT
    if not path.is_file():
        print(f"merge: {adapter} does not name the base that it was trained on; {base} is used", file=sys.stderr)
        return
    trained_on, actual = str(json.loads(path.read_bytes())["job"]["model"]), base_digest(base_folder)
    if trained_on not in (base, actual):
        raise TrainingRefused(
            f"the adapter in {adapter} was trained on another base (digest {trained_on[:16]}) than {base} (digest "
            f"{actual[:16]}). Name a folder with the same config.json and exactly the same weight files"
        )


def _fetched(base: str) -> Path:
    """Return the folder of the base, downloaded from the Hub unless ``base`` is a folder."""
    if Path(base).is_dir():
        base_folder = Path(base).resolve()
    else:
        try:
            from huggingface_hub import snapshot_download

            base_folder = Path(snapshot_download(base))
        except (ImportError, OSError, ValueError) as error:
            raise TrainingRefused(f"{base} is not a folder, and the Hub did not provide it: {error}"[:500]) from None
    if not (base_folder / "config.json").is_file():
        raise TrainingRefused(f"{base} has no config.json, so it is not a model")
    return base_folder


def _copy_texts(base: Path, folder: Path) -> None:
    """Copy tokenizer, generation settings and licence unchanged. A library that rewrites them may change them."""
    for path in base.iterdir():
        wanted = path.name in _TERMS or path.suffix in _TEXTS
        if path.is_file() and wanted and path.name not in _NOT_COPIED and not path.name.endswith(_INDEX):
            shutil.copyfile(path, folder / path.name)


if __name__ == "__main__":
    sys.exit(main())
