"""Measure and shorten the start of a process, from its beginning to the first step: libraries, device, bytecode."""

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
    """Measures the seconds from the start of a process to the end of its first step, by part."""

    def __init__(self) -> None:
        """Start the clock."""
        self._began = self._last = perf_counter()
        self._parts: list[str] = []

    def passed(self, name: str) -> None:
        """Record that the time since the last call was spent on ``name``."""
        now = perf_counter()
        self._parts.append(f"{name} {now - self._last:.1f}")
        self._last = now

    def text(self) -> str:
        """Return the times as text."""
        return f"{self._last - self._began:.1f} s ({', '.join(self._parts)})"


def leave_out_libraries(options: argparse.Namespace) -> None:
    """Block libraries that transformers and peft load if they are installed, although a training does not use them.

    That saves seconds. scikit-learn and torchvision are always blocked, bitsandbytes and SciPy unless something has 8
    or 4 bits. A module that is None in ``sys.modules`` cannot be imported.
    """
    unused = ["sklearn", "torchvision"]
    if options.bits == 16 and options.optimizer != "adamw8bit" and _is_plain(Path(options.model)):
        unused += ["bitsandbytes", "scipy"]
    for name in unused:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _is_plain(model: Path) -> bool:
    """Return whether a model's folder has unquantised weights; False for a name on the Hub."""
    config = model / "config.json"
    return config.is_file() and "quantization_config" not in json.loads(config.read_bytes())


def wake_device(local_rank: int, load: Callable[[str], Any] = ctypes.CDLL) -> threading.Thread:
    """Create the device's CUDA context in a thread while libraries load, if possible; return the thread."""

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
    """Return environment variables that let Python store the bytecode of libraries even if the image forbids it.

    Most such images lack bytecode, so each start would compile thousands of modules for ten seconds. Bytecode is stored
    beside the libraries, or in ``cache`` if their folder is read-only.
    """
    if sys.pycache_prefix is not None:  # the user has chosen a folder
        return {}
    variables = {"PYTHONDONTWRITEBYTECODE": ""}
    module = importlib.util.find_spec("torch")
    if module is None or module.origin is None or module.cached is None or Path(module.cached).exists():
        return variables
    if not os.access(Path(module.origin).parent, os.W_OK):
        variables["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    return variables
