"""Split a JSONL file of your own into the files that the trainer reads.

    python split.py mine.jsonl data

Writes ``data/train-0.jsonl`` and, of every twentieth record, ``data/heldout.jsonl``, by which checkpoints are judged.
The choice depends on the record alone, so that a record never moves from one file to the other when the file grows.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

FORMS = {"text", "prompt", "messages", "instruction", "conversations"}  # one of these keys makes a record usable
HELD_OUT = 20


def main(source: str, target: str) -> int:
    """Write both files and return an exit status."""
    train: list[str] = []
    held_out: list[str] = []
    for number, line in enumerate(Path(source).read_text(encoding="utf-8-sig").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            print(f"{source}, line {number}: no JSON: {error}", file=sys.stderr)
            return 1
        if not isinstance(record, dict) or not FORMS & set(record):
            print(f"{source}, line {number}: a record needs one of the keys {sorted(FORMS)}", file=sys.stderr)
            return 1
        chosen = int(hashlib.sha256(line.strip().encode()).hexdigest(), 16) % HELD_OUT == 0
        (held_out if chosen else train).append(line.strip())
    if not held_out and len(train) > 1:
        held_out.append(train.pop())
    folder = Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train-0.jsonl").write_text("".join(f"{text}\n" for text in train), encoding="utf-8")
    (folder / "heldout.jsonl").write_text("".join(f"{text}\n" for text in held_out), encoding="utf-8")
    print(f"{len(train)} records to train on, {len(held_out)} held out: {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
