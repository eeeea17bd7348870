"""The code in what a model wrote: what stands between fences, or all of it when there are none."""

from __future__ import annotations

import re

_FENCED = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[ \t]*\r?\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def code_in(text: str) -> str:
    """Return the longest fenced block of a text; the text when there is none."""
    blocks = [found[1] for found in _FENCED.findall(text)]
    return max(blocks, key=len) if blocks else text
