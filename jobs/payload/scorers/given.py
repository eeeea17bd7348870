"""What a scorer is given, found by what a session's environment says or by the words of its command.

An evaluation's session has the test set in SCHED_INPUT_SET, the checkpoint in SCHED_INPUT_MODEL, and leaves its scores
in SCHED_OUTPUT_DIR. EVALUATION_MODEL, _CHECKPOINT and _SCORER are what the header of the scores must say.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..bounded_file import open_regular
from .items import BadItems, Header, ItemSet, is_name, read_items, records
from .sandbox.sandbox import Sandbox

OUTPUTS_MAX = 20  # of one item
OUTPUT_BYTES_MAX = 4 << 20
_UNNAMED = "0" * 64  # at a desk, where nothing is named


class NotGiven(ValueError):
    """Something that a scorer needs is not there; the message says what to give."""


@dataclass(slots=True)
class ScorerInput:
    """The test set, what the model wrote (records by item's id), the folder of its checkpoint, and the sandbox, if any.

    ``agreement`` and ``notes`` are what scorers add to the header.
    """

    item_set: ItemSet
    outputs: Mapping[str, Sequence[Mapping[str, Any]]]
    checkpoint: Path | None
    options: argparse.Namespace
    sandbox: Sandbox | None = None
    agreement: dict[str, list[list[int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def texts(self, item: str) -> list[str]:
        """Return what the model wrote for an item as texts; one empty text when it wrote nothing."""
        texts_of_item = [
            str(record["output"]) for record in self.outputs.get(item, ()) if isinstance(record.get("output"), str)
        ]
        return texts_of_item or [""]

    def needs_checkpoint(self) -> Path:
        """Return the checkpoint's folder. Raises NotGiven."""
        if self.checkpoint is None:
            raise NotGiven("there is no checkpoint; give --checkpoint-dir FOLDER, which an evaluation does by itself")
        return self.checkpoint

    def needs_sandbox(self) -> Sandbox:
        """Return the sandbox, which is opened with the first who needs one. Raises SandboxMissing."""
        if self.sandbox is None:
            from .sandbox.confine import SandboxLimits
            from .sandbox.sandbox import open_sandbox

            self.sandbox = open_sandbox(SandboxLimits(wall_seconds=self.options.wall_seconds))
            self.notes.append(f"sandbox: {self.sandbox.text}")
        return self.sandbox

    def header(self) -> Header:
        """Return the header of the scores."""
        variable = os.environ.get
        scorer = variable("EVALUATION_SCORER") or shipped_digest(Path(__file__).parent)
        model, checkpoint = variable("EVALUATION_MODEL") or "model", variable("EVALUATION_CHECKPOINT") or _UNNAMED
        return Header(model, checkpoint, self.item_set.digest, scorer, self.agreement, self.notes)


def find_given(options: argparse.Namespace) -> ScorerInput:
    """Return what there is to be scored. Raises NotGiven, BadItems, NoChatAnswer and OSError."""
    items = _one_file(options.items or os.environ.get("SCHED_INPUT_SET"), "test set", "--items")
    if items is None:
        raise NotGiven("there is no test set; give --items FILE, or name it in the model's evaluation")
    folder = options.checkpoint_dir or os.environ.get("SCHED_INPUT_MODEL")
    outputs = _one_file(options.outputs or os.environ.get("SCHED_INPUT_OUTPUTS"), "outputs", "--outputs")
    item_set = read_items(items)
    written: Mapping[str, Sequence[Mapping[str, Any]]] = read_outputs(outputs) if outputs else {}
    if options.ask:
        from .chat import ask_all

        written = ask_all(item_set, options.ask, options.ask_model, output_path(options).parent)
    return ScorerInput(item_set, written, Path(folder) if folder else None, options)


def read_outputs(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Read what a model wrote: ``{"id": ..., "output": ...}`` a line, several of an item for several samples.

    What is no such line is passed over: an item without output is worth nothing, and that is what it gets.
    """
    result: dict[str, list[Mapping[str, Any]]] = {}
    with open_regular(path) as stream:
        for _, record in records(stream, OUTPUT_BYTES_MAX):
            if record is not None and is_name(record.get("id")):
                of_item = result.setdefault(record["id"], [])
                if len(of_item) < OUTPUTS_MAX:
                    of_item.append(record)
    return result


def output_path(options: argparse.Namespace) -> Path:
    """Return where the scores go."""
    return Path(options.out or Path(os.environ.get("SCHED_OUTPUT_DIR") or ".") / "scores.jsonl")


def shipped_digest(folder: Path) -> str:
    """Return what names the shipped scorers in a folder: the digest of all their files."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _one_file(path_text: str | None, what: str, option: str) -> Path | None:
    if not path_text:
        return None
    path = Path(path_text)
    if path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if len(files) != 1:
            raise BadItems(f"{path} has {len(files)} files of JSON lines (.jsonl), not one; give {option} FILE")
        path = files[0]
    if not path.is_file():
        raise NotGiven(f"there is no {path} with the {what}; give {option} FILE")
    return path
