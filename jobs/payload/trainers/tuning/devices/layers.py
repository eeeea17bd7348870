"""A 4-bit base with its layers spread over several devices, used by one process.

Results do not depend on the device of a layer, so a job can move to one device and back (E1). All rows of a step pass
through all devices. As many batches as devices are in flight, so that no device waits for long.
"""

import functools
from typing import Any

import torch

from ..errors import TrainingRefused

_QUANTIZED_BYTES = 0.53  # per weight of a layer: 4 bits, and quantised scales
_ADAPTER_BYTES = 16  # per weight: itself, its gradient and two optimiser states
_HEAD_BYTES = 2  # per weight of head and embeddings
_LOGIT_BYTES = 12  # per logit, with loss and gradient


def device_map(model: Any, devices: int, rank: int, tokens: int, logits: int) -> dict[str, int]:
    """Return the device of each part of a causal language model, by name.

    ``model`` is on the meta device. All devices get about the same number of bytes. The bytes are those of layers with
    adapters of ``rank`` and inputs of ``tokens`` per batch, of embeddings (first device), and of head and logits of
    ``logits`` tokens (last device). Raises TrainingRefused if there are fewer layers than devices.
    """
    names = {id(part): name for name, part in model.named_modules()}
    parts = list(getattr(model, model.base_model_prefix).children())
    at = next((at for at, part in enumerate(parts) if isinstance(part, torch.nn.ModuleList)), None)
    if at is None or len(parts[at]) < devices:
        what = "its layers are not known" if at is None else f"it has {len(parts[at])} layers"
        raise TrainingRefused(f"--shard on with --use-4bit cannot spread this model over {devices} devices: {what}")
    layers, head, embeddings = parts[at], model.get_output_embeddings(), model.get_input_embeddings()
    tied = head.weight is embeddings.weight
    weights = list(layers[0].parameters())
    layer = _QUANTIZED_BYTES * sum(weight.numel() for weight in weights)
    layer += _ADAPTER_BYTES * rank * sum(sum(weight.shape) for weight in weights if weight.ndim == 2)
    layer += 2 * devices * tokens * head.weight.shape[1]
    of_logits = _LOGIT_BYTES * logits * head.weight.shape[0]
    first = _HEAD_BYTES * embeddings.weight.numel() + (of_logits if tied else 0)
    last = 0 if tied else _HEAD_BYTES * head.weight.numel() + of_logits
    each = (first + len(layers) * layer + last) / devices
    end = 0 if tied else devices - 1
    places = {names[id(part)]: 0 if [*part.parameters()] == [] else end for part in parts[at + 1 :]}
    places |= {names[id(part)]: 0 for part in parts[:at]} | {names[id(head)]: end}
    for number, part in enumerate(layers):
        middle = first + (number + 0.5) * layer
        # Each device has at least one layer.
        least, most = number + devices - len(layers), min(number, devices - 1)
        places[names[id(part)]] = max(least, min(int(middle / each), most))
    return places


def connect(model: Any, places: dict[str, int]) -> None:
    """Add hooks that move the inputs of each part to its device. accelerate's hooks would make layers compile again."""
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(model, recurse=True)
    for name, place in places.items():
        hook = functools.partial(_move_inputs, torch.device("cuda", place))
        model.get_submodule(name).register_forward_pre_hook(hook, with_kwargs=True)


def _move_inputs(device: Any, _: Any, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return _moved(values, device), {name: _moved(value, device) for name, value in named.items()}


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_moved(part, device) for part in value)
    return value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
