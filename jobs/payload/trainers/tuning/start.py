"""What passes before a process' first step: which libraries it reads, and where the seconds go."""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

_DRIVER = "libcuda.so.1"


class Start:
    """The seconds from the beginning of a process to the end of its first step, by what they went to."""

    def __init__(self) -> None:
        """Begin to count."""
        self._began = self._last = perf_counter()
        self._parts: list[str] = []

    def passed(self, name: str) -> None:
        """Note that all since the last note went to ``name``."""
        now = perf_counter()
        self._parts.append(f"{name} {now - self._last:.1f}")
        self._last = now

    def text(self) -> str:
        """Return them in words."""
        return f"{self._last - self._began:.1f} s ({', '.join(self._parts)})"


def leave_out_libraries(options: argparse.Namespace) -> None:
    """Spare this process, before it loads any, libraries that transformers and peft load where they find them.

    They take seconds, and nothing here uses them: scikit-learn and torchvision ever, bitsandbytes, and SciPy that it
    may ask for, where no number has fewer than 16 bits. To say None is Python's own word for a module that is not to be
    found.
    """
    unused = ["sklearn", "torchvision"]
    if options.bits == 16 and options.optimizer != "adamw8bit" and _is_plain(Path(options.model)):
        unused += ["bitsandbytes", "scipy"]
    for name in unused:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _is_plain(model: Path) -> bool:
    """Whether a model's folder says that its weights lie there as they are; of a name on the Hub nothing is known."""
    config = model / "config.json"
    return config.is_file() and "quantization_config" not in json.loads(config.read_bytes())


def wake_device(local_rank: int, load: Callable[[str], Any] = ctypes.CDLL) -> threading.Thread:
    """Let the driver make what this process computes in on its device while libraries are read, and return who waits.

    Torch finds it there, and does not wait for it. Where there is no driver, or no such device, nothing happens here:
    torch looks for itself, and says what is wrong.
    """

    def wake() -> None:
        try:
            driver = load(_DRIVER)
        except OSError:
            return
        device, context = ctypes.c_int(), ctypes.c_void_p()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), local_rank) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)

    thread = threading.Thread(target=wake, name="wake-device", daemon=True)
    thread.start()
    return thread


def bytecode_kept(cache: Path) -> dict[str, str]:
    """Return variables that let Python keep what it compiles of libraries, where an image's settings forbid it.

    Such images mostly come without it: thousands of modules are then compiled before each first step, which
    takes ten seconds. Beside the libraries, or in ``cache`` where they are somebody else's.
    """
    if sys.pycache_prefix is not None:  # somebody has chosen a place
        return {}
    variables = {"PYTHONDONTWRITEBYTECODE": ""}
    module = importlib.util.find_spec("torch")
    if module is None or module.origin is None or module.cached is None or Path(module.cached).exists():
        return variables
    if not os.access(Path(module.origin).parent, os.W_OK):
        variables["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    return variables
