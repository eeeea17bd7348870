"""Score a test set: ``python {payload}/scorers atomicity tiki --outputs outputs.jsonl``."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    # This folder is started as a program. Import the package that contains it, wherever the payload was unpacked.
    payload = Path(__file__).resolve().parents[1]
    sys.path[0] = str(payload.parent)
    sys.exit(importlib.import_module(f"{payload.name}.scorers.commands").main())
