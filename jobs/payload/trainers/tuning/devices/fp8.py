"""Linear layers of a frozen base in fp8: one scale per row of the activations and per row of the weight."""

from typing import Any

import torch

from ..errors import TrainingRefused

FP8_FROM = (8, 9)  # compute capability: RTX 40 and 50, L4, H100
_KIND = torch.float8_e4m3fn
_LARGEST = torch.finfo(_KIND).max
_MULTIPLE = 16  # fp8 tensor cores need dimensions that are multiples of 16


def check_fp8(device: str) -> None:
    """Raise TrainingRefused if the device has no fp8 tensor cores, or this torch no kernels for them."""
    name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
    if capability < FP8_FROM:
        raise TrainingRefused(
            f"{name} has no units for fp8 (compute capability {capability}, needed {FP8_FROM}): leave --precision out"
        )
    try:
        _product(
            *_quantized(torch.ones(_MULTIPLE, _MULTIPLE, device=device)), *_quantized(torch.ones(32, 16).to(device))
        )
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise TrainingRefused(
            f"torch {torch.__version__} cannot compute in fp8 on {name}: {why}. Leave --precision out, or name a newer "
            "torch in the job's requirements"
        ) from None


def use_fp8(layers: Any) -> int:
    """Replace the frozen linear layers in ``layers`` by Fp8Linear; return how many were replaced."""
    count = 0
    for parent in list(layers.modules()):
        for name, part in list(parent.named_children()):
            frozen = type(part) is torch.nn.Linear and not part.weight.requires_grad
            if frozen and not any(size % _MULTIPLE for size in part.weight.shape):
                setattr(parent, name, Fp8Linear(part))
                count += 1
    return count


class Fp8Linear(torch.nn.Module):  # type: ignore[misc] # torch is not there where types are checked
    """A frozen linear layer in fp8. ``weight`` (outputs, inputs) is on the meta device: only shape and dtype."""

    def __init__(self, linear: torch.nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach()
        for name, value in zip(
            ("forward_weight", "forward_scale", "backward_weight", "backward_scale"),
            (*_quantized(weight), *_quantized(weight.t().contiguous())),
            strict=True,
        ):
            self.register_buffer(name, value, persistent=False)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach(), persistent=False)
        self.weight = torch.empty(weight.shape, dtype=weight.dtype, device="meta")

    def forward(self, activations: Any) -> Any:
        """Return the output (..., outputs) for ``activations`` (..., inputs), in bf16."""
        weights = (self.forward_weight, self.forward_scale, self.backward_weight, self.backward_scale)
        flat = activations.reshape(-1, self.in_features).to(torch.bfloat16)
        result = _Fp8Product.apply(flat, *weights).reshape(*activations.shape[:-1], self.out_features)
        return result if self.bias is None else result + self.bias


class _Fp8Product(torch.autograd.Function):  # type: ignore[misc] # as above
    @staticmethod
    def forward(ctx: Any, activations: Any, weight: Any, scale: Any, back_weight: Any, back_scale: Any) -> Any:
        ctx.save_for_backward(back_weight, back_scale)
        return _product(*_quantized(activations), weight, scale)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return (_product(*_quantized(gradient), *ctx.saved_tensors), None, None, None, None)


def _quantized(matrix: Any) -> tuple[Any, Any]:
    """Return a matrix in fp8 (e4m3) and the scale of each row, (rows, 1) in fp32."""
    scale = matrix.abs().amax(dim=1, keepdim=True).float().clamp(min=1e-12) / _LARGEST
    return (matrix.float() / scale).clamp(-_LARGEST, _LARGEST).to(_KIND), scale


def _product(rows: Any, row_scale: Any, columns: Any, column_scale: Any) -> Any:
    """Return ``rows`` (m, k) times the transpose of ``columns`` (n, k), in bf16."""
    return torch._scaled_mm(  # noqa: SLF001 - torch has no public name for it
        rows, columns.t(), scale_a=row_scale, scale_b=column_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=True
    )
