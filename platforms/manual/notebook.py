"""The notebook of one hand-over: instructions for a person, and the program with its order in one cell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platforms.manual import bootstrap

if TYPE_CHECKING:
    from collections.abc import Mapping

_ABOUT = """\
# {key}

Trains {jobs}. Everything is in this notebook{beside}.

1. Start a runtime with a GPU, and run the cell below. It trains until its time is over, saves and ends by itself.
2. To end earlier, interrupt the cell: it saves first.
3. Download `{key}-result.zip` and hand it in: `schedctl handover give {key} {key}-result.zip`

If the kernel dies, run the cell again: it trains nothing, and packs what was saved.
"""


def build_notebook(key: str, order: Mapping[str, Any]) -> bytes:
    """Return the notebook (nbformat 4.5) of the launch ``key``; ``order`` is what bootstrap.main is given."""
    program = Path(bootstrap.__file__).read_text(encoding="utf-8")
    objects = order["objects"]
    about = _ABOUT.format(
        key=key,
        jobs=" and ".join(str(lane["job"]) for lane in order["launch"].get("lanes", ())) or "nothing",
        beside=f", and in `{objects['name']}`, which must lie beside it" if objects else "",
    )
    call = f"main(json.loads({json.dumps(order, ensure_ascii=True)!r}))"
    document = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
        },
        "cells": [
            {"cell_type": "markdown", "id": "about", "metadata": {}, "source": _lines(about)},
            {
                "cell_type": "code",
                "id": "session",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": _lines(f"{program}\n\n{call}\n"),
            },
        ],
    }
    return json.dumps(document, indent=1).encode()


def _lines(text: str) -> list[str]:
    return text.rstrip("\n").splitlines(keepends=True)
