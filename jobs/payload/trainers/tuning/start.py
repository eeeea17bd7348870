"""What passes before a process' first step: which libraries it reads, and where the seconds go."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


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

    def told(self) -> str:
        """Return them in words."""
        return f"{self._last - self._began:.1f} s ({', '.join(self._parts)})"


def leave_out_libraries(options: argparse.Namespace) -> None:
    """Spare this process, before it loads any, libraries that transformers and peft load where they find them.

    They take seconds, and nothing here uses them: scikit-learn ever, bitsandbytes where no number has fewer than 16
    bits. To say None is Python's own word for a module that is not to be found.
    """
    unused = ["sklearn"]
    if options.bits == 16 and options.optimizer != "adamw8bit" and _is_plain(Path(options.model)):
        unused.append("bitsandbytes")
    for name in unused:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]


def _is_plain(model: Path) -> bool:
    """Whether a model's folder says that its weights lie there as they are; of a name on the Hub nothing is known."""
    config = model / "config.json"
    return config.is_file() and "quantization_config" not in json.loads(config.read_bytes())


def bytecode_kept(cache: Path) -> dict[str, str]:
    """Return variables that let Python keep what it compiles of libraries, where an image's settings forbid it.

    Such images mostly come without it: thousands of modules are then compiled before each first step, which
    takes ten seconds. Beside the libraries, or in ``cache`` where they are somebody else's.
    """
    if sys.pycache_prefix is not None:  # somebody has chosen a place
        return {}
    variables = {"PYTHONDONTWRITEBYTECODE": ""}
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None or found.cached is None or Path(found.cached).exists():
        return variables
    if not os.access(Path(found.origin).parent, os.W_OK):
        variables["PYTHONPYCACHEPREFIX"] = str(cache / "bytecode")
    return variables
