"""The kernel's source: the bootstrap program and its order in one text, small enough for Kaggle, and provably ours.

An order with the signed addresses of thousands of objects is written packed: their common parts cost nothing then.
"""

from __future__ import annotations

import ast
import base64
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from platforms.base import Refused
from platforms.kaggle.kernel import bootstrap

SOURCE_BYTES_MAX = 900_000  # 0.93 MB was seen to pass and 1.14 MB to fail, without a reason

_CALL, _PACKED_CALL, _CALL_END = "main(json.loads(", "main(unpacked(", "))"


def build_source(key: str, order: Mapping[str, Any]) -> str:
    """Return the text to push for the launch ``key``. Raises Refused when the launch document is too large."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    document = json.dumps(order, ensure_ascii=True)
    text = f"{_first_line(key)}\n{program}\n\n{_CALL}{document!r}{_CALL_END}\n"
    if len(text.encode()) > SOURCE_BYTES_MAX:
        packed = base64.b85encode(zlib.compress(document.encode(), 9)).decode()
        text = f"{_first_line(key)}\n{program}\n\n{_PACKED_CALL}{packed!r}{_CALL_END}\n"
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
    opening = next((opening for opening in (_CALL, _PACKED_CALL) if call.startswith(opening)), None)
    if opening is None or not call.endswith(_CALL_END):
        raise ValueError("the last line of the kernel's source is not ours")
    try:
        document = ast.literal_eval(call.removeprefix(opening).removesuffix(_CALL_END))
        order = json.loads(document) if opening == _CALL else bootstrap.unpacked(document)
    except (SyntaxError, TypeError, zlib.error) as error:
        raise ValueError("the last line of the kernel's source is not ours") from error
    if not isinstance(order, dict):
        raise ValueError("the kernel's source has no order")
    return order


def _first_line(key: str) -> str:
    return f"# uff-scheduler launch {key}"
