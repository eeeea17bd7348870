"""Choose the device and the precision of a process, by the compute capability alone.

``torch.cuda.is_bf16_supported()`` does not decide: it is True on T4 and V100 too, which emulate bf16 very slowly.
"""

from typing import Any, NamedTuple

import torch

from ..errors import TrainingRefused
from .fp8 import check_fp8

_BF16_FROM = (8, 0)  # compute capability of the first devices with units for bf16
_TRITON_FROM = (7, 0)  # torch.compile needs Triton
_OLD_BUILDS_UNTIL = (7, 5)  # for older devices, only builds for CUDA 12.6 have kernels
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Device(NamedTuple):
    """A device: torch's and the product's name, precision (bf16, fp16 or fp32), and whether torch.compile works."""

    device: str
    name: str
    precision: str
    compiles: bool

    @property
    def dtype(self) -> Any:
        """The torch dtype of matrix products (autocast)."""
        return _TYPES[self.precision]

    @property
    def accelerated(self) -> bool:
        """Whether this is a GPU and not the CPU."""
        return self.device != "cpu"


def find_card(local_rank: int, precision: str = "auto") -> Device:
    """Return the device of a process. Raises TrainingRefused if it lacks the precision or cannot be used."""
    if not torch.cuda.is_available():
        if precision in ("fp16", "fp8"):
            raise TrainingRefused(
                f"{precision} needs an accelerator, and torch finds none: omit --precision, or choose fp32 or bf16"
            )
        return Device("cpu", "cpu", "fp32" if precision == "auto" else precision, compiles=False)
    if local_rank >= torch.cuda.device_count():
        raise TrainingRefused(
            f"process {local_rank + 1} of this machine has no device: torch sees {torch.cuda.device_count()}"
        )
    torch.cuda.set_device(local_rank)
    capability, name = torch.cuda.get_device_capability(), torch.cuda.get_device_name()
    _check(name, capability, precision)
    if precision == "auto":
        precision = "bf16" if capability >= _BF16_FROM else "fp16"
    if precision == "fp8":
        check_fp8(f"cuda:{local_rank}")
        precision = "bf16"  # for everything but the products of the frozen base
    if precision == "bf16" and capability < _BF16_FROM:
        raise TrainingRefused(f"{name} has no units for bf16 (compute capability {capability}): leave --precision out")
    return Device(f"cuda:{local_rank}", name, precision, compiles=capability >= _TRITON_FROM)


def _check(name: str, capability: tuple[int, int], precision: str) -> None:
    """Raise TrainingRefused if torch has no kernels for a device, or if it is too slow (P100) and none is chosen."""
    own = ".".join(map(str, capability))
    kernels = torch.cuda.get_arch_list()
    if not any(_serves(one, capability) for one in kernels):
        remedy = "2.6 to 2.14 built for CUDA 12.6" if capability < _OLD_BUILDS_UNTIL else "built for CUDA 12.8 or later"
        raise TrainingRefused(
            f"this device cannot be used: {name} has the compute capability {own}, and torch {torch.__version__} has "
            f"kernels for {', '.join(kernels) or 'none'}. Use a torch {remedy} (requirements of the job), or another "
            "pool"
        )
    if capability < _TRITON_FROM and precision == "auto":
        raise TrainingRefused(
            f"this device cannot be used: {name} (compute capability {own}) has neither tensor cores nor Triton, and "
            "takes many times the hours of a T4. Choose another pool, or set --precision fp16 to train on it anyway"
        )


def _serves(kernel: str, capability: tuple[int, int]) -> bool:
    """Return whether kernels (such as sm_86) run on a device. compute_86 is PTX, which the driver compiles for it."""
    kind, _, number = kernel.partition("_")
    digits = "".join(character for character in number if character.isdecimal())
    if len(digits) < 2:
        return False
    built = int(digits[:-1]), int(digits[-1])
    return built <= capability and (kind == "compute" or built[0] == capability[0])
