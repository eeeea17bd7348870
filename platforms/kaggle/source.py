"""The kernel's source: the bootstrap program and its order in one text, small enough for Kaggle, and provably ours."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platforms.base import Refused
from platforms.kaggle import bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCE_BYTES_MAX = 900_000  # 0.93 MB was seen to pass and 1.14 MB to fail, without a reason

_CALL, _CALL_END = "main(json.loads(", "))"


def build_source(key: str, order: Mapping[str, Any]) -> str:
    """Return the text to push for the launch ``key``. Raises Refused when the launch document is too large."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    text = f"{_first_line(key)}\n{program}\n\n{_CALL}{json.dumps(order, ensure_ascii=True)!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        why = f"the kernel's source has {len(text.encode())} bytes, at most {SOURCE_BYTES_MAX} are taken"
        raise Refused("kaggle", "launch", why, "Shorten the job's command and environment", permanent=True)
    return text


def is_source_of(key: str, source: str) -> bool:
    """Tell whether a kernel with this source was pushed for the launch ``key``."""
    return source.partition("\n")[0].strip() == _first_line(key)


def order_of(source: str) -> Mapping[str, Any]:
    """Return the order that a source of ours was built with. Raises ValueError when it was cut or changed."""
    call = source.rstrip().rpartition("\n")[2]
    if not (call.startswith(_CALL) and call.endswith(_CALL_END)):
        raise ValueError("the last line of the kernel's source is not ours")
    try:
        order = json.loads(ast.literal_eval(call.removeprefix(_CALL).removesuffix(_CALL_END)))
    except SyntaxError as error:
        raise ValueError("the last line of the kernel's source is not ours") from error
    if not isinstance(order, dict):
        raise ValueError("the kernel's source has no order")
    return order


def _first_line(key: str) -> str:
    return f"# uff-scheduler launch {key}"
