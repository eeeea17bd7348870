"""Score a test set: ``python {payload}/scorers atomicity tiki --outputs outputs.jsonl``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # Started by its folder, wherever the payload is unpacked: what runs is the package that this folder is in.
    payload = Path(__file__).resolve().parents[1]
    sys.path[0] = str(payload.parent)
    sys.exit(importlib.import_module(f"{payload.name}.scorers.commands").main())
