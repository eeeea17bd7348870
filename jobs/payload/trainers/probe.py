"""Measure the bytes that a layer of a model keeps for each token, without weights or a GPU.

``python probe.py SETUP`` takes one set-up of calibrate.py as JSON and prints the bytes. It runs the forward pass with
one and with two layers, and with two lengths, on tensors without values (FakeTensorMode), and adds up the storages that
autograd saves. The differences of these sums give the bytes that one layer keeps for one token.
"""

import contextlib
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __package__:
    from .calibrate import DEFAULTS, make_model
else:
    from calibrate import DEFAULTS, make_model

_LENGTHS = (64, 128)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the bytes per token and layer; return the exit status."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if len(words) != 1:
        print("usage: probe.py SETUP", file=sys.stderr)
        return 2
    print(json.dumps({"layer_bytes": layer_bytes({**DEFAULTS, **json.loads(words[0])})}))
    return 0


def layer_bytes(setup: dict[str, Any]) -> float:
    """Return the bytes that a layer keeps for each token of a forward pass, without gradient checkpointing."""
    short, long = _LENGTHS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from libraries about each other
        saved = {(layers, length): _saved(setup, layers, length) for layers in (1, 2) for length in _LENGTHS}
    slope = (saved[2, long] - saved[1, long]) - (saved[2, short] - saved[1, short])
    return slope / (long - short)


def _saved(setup: dict[str, Any], layers: int, length: int) -> int:
    """Return the bytes that autograd saves for a forward pass; the weights are not counted."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    probed = {**setup, "shape": {**setup["shape"], "num_hidden_layers": layers}, "image": None}
    model = make_model(probed, "meta")
    model.config.use_cache = False
    sizes: dict[int, int] = {}
    held: list[Any] = []
    with FakeTensorMode():
        # On the CPU: the meta device has no attention kernels.
        parts = {
            name: torch.empty(part.shape, dtype=part.dtype, requires_grad=part.requires_grad)
            for name, part in (*model.named_parameters(), *model.named_buffers())
        }
        weights = {_storage_id(part) for part in parts.values()}

        def pack(tensor: Any) -> Any:
            if _storage_id(tensor) not in weights:
                sizes[_storage_id(tensor)] = tensor.untyped_storage().nbytes()
                held.append(tensor)  # keep it, or its storage would be reused by the next tensor
            return tensor

        tokens = torch.zeros(1, length, dtype=torch.int64)
        with (
            _as_if_real(),
            torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
            torch.autocast("cpu", torch.bfloat16, enabled=setup["autocast"]),
        ):
            torch.func.functional_call(model, parts, (), {"input_ids": tokens, "use_cache": False})
    return sum(sizes.values())


@contextlib.contextmanager
def _as_if_real() -> Iterator[None]:
    """Let transformers treat rows as not packed. It cannot see that in fake values, and would add a mask and copies."""
    from transformers import masking_utils

    name = "find_packed_sequence_indices"
    before = getattr(masking_utils, name, None)
    if before is not None:
        setattr(masking_utils, name, lambda *_, **__: None)
    try:
        yield
    finally:
        if before is not None:
            setattr(masking_utils, name, before)


def _storage_id(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 - a fake tensor has no data_ptr


if __name__ == "__main__":
    sys.exit(main())
