"""A JSON decoder for data of unknown care: what it returns can always be written back as JSON."""

from __future__ import annotations

import json
import math


def _finite(number: str) -> float | None:
    # 1e999 is valid JSON, but infinity cannot be written back.
    value = float(number)
    return value if math.isfinite(value) else None


# Not strict: raw control characters inside strings are reported and removed later, the record is kept.
DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=lambda _name: None, strict=False)


def wants_more(error: json.JSONDecodeError, length: int) -> bool:
    """Whether the text (of `length` characters) stopped too early rather than being wrong."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - len("false")
