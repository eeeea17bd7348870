"""The time before the first step of a process: which libraries it loads, and where the seconds go."""

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
        """Note that the time since the last note went to ``name``."""
        now = perf_counter()
        self._parts.append(f"{name} {now - self._last:.1f}")
        self._last = now

    def text(self) -> str:
        """Return the times as text."""
        return f"{self._last - self._began:.1f} s ({', '.join(self._parts)})"


def leave_out_libraries(options: argparse.Namespace) -> None:
    """Block libraries that transformers and peft would load if installed, and that are not used here.

    They take seconds: scikit-learn and torchvision always, bitsandbytes and SciPy unless something has 8 or 4 bits. A
    module that is None in ``sys.modules`` cannot be imported.
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
    """Return variables that let Python store bytecode of libraries if the image forbids it.

    Most such images have none: each start would compile thousands of modules, which takes ten seconds. It is stored
    beside the libraries, or in ``cache`` if that folder is read-only.
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
