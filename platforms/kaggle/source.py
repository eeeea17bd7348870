"""The kernel's source: the bootstrap program and its order in one text, small enough for Kaggle, and provably ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platforms.base import Refused
from platforms.kaggle import bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE_BYTES_MAX = 900_000  # 0.93 MB was seen to pass and 1.14 MB to fail, without a reason


def build_source(key: str, order: Mapping[str, Any]) -> str:
    """Return the text to push for the launch ``key``. Raises Refused when the launch document is too large."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    text = f"{_first_line(key)}\n{program}\n\nmain(json.loads({json.dumps(order, ensure_ascii=True)!r}))\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        why = f"the kernel's source has {len(text.encode())} bytes, at most {SOURCE_BYTES_MAX} are taken"
        raise Refused("kaggle", "launch", why, "Shorten the job's command and environment", permanent=True)
    return text


def is_source_of(key: str, source: str) -> bool:
    """Tell whether a kernel with this source was pushed for the launch ``key``."""
    return source.partition("\n")[0].strip() == _first_line(key)


def _first_line(key: str) -> str:
    return f"# uff-scheduler launch {key}"
