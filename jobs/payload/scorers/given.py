"""The inputs of a scorer, from the environment of a session or from the command line.

In an evaluation's session, variables name them: SCHED_INPUT_SET the test set, SCHED_INPUT_MODEL the checkpoint, and
SCHED_OUTPUT_DIR the folder for the scores. EVALUATION_MODEL, _CHECKPOINT and _SCORER are values for their header.
"""

import argparse
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .items import BadItems, Header, ItemSet, is_name, read_items, records, set_file
from .sandbox.sandbox import Sandbox

OUTPUTS_MAX = 20  # outputs of one item
OUTPUT_BYTES_MAX = 4 << 20
_UNNAMED = "0" * 64  # digest of the checkpoint outside a session


class NotGiven(ValueError):
    """Something that a scorer needs is missing; the message says what to add."""


@dataclass(slots=True)
class ScorerInput:
    """The inputs of a scorer: test set, outputs by item, checkpoint. ``agreement`` and ``notes`` go into the header."""

    item_set: ItemSet
    outputs: Mapping[str, Sequence[Mapping[str, Any]]]
    checkpoint: Path | None
    options: argparse.Namespace
    sandbox: Sandbox | None = None
    agreement: dict[str, list[list[int]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def texts(self, item: str) -> list[str]:
        """Return the outputs of an item as texts; one empty text if there are none."""
        texts_of_item = [
            str(record["output"]) for record in self.outputs.get(item, ()) if isinstance(record.get("output"), str)
        ]
        return texts_of_item or [""]

    def needs_checkpoint(self) -> Path:
        """Return the checkpoint's folder. Raises NotGiven if there is none."""
        if self.checkpoint is None:
            raise NotGiven("there is no checkpoint; give --checkpoint-dir FOLDER, which an evaluation sets itself")
        return self.checkpoint

    def needs_sandbox(self) -> Sandbox:
        """Return the sandbox, opened at the first call. Raises SandboxMissing."""
        if self.sandbox is None:
            from .sandbox.confine import SandboxLimits
            from .sandbox.sandbox import open_sandbox

            self.sandbox = open_sandbox(SandboxLimits(wall_seconds=self.options.wall_seconds))
            self.notes.append(f"sandbox: {self.sandbox.text}")
        return self.sandbox

    def header(self) -> Header:
        """Return the header of the scores file, with names from the environment of a session."""
        variable = os.environ.get
        scorer = variable("EVALUATION_SCORER") or shipped_digest(Path(__file__).parent)
        model, checkpoint = variable("EVALUATION_MODEL") or "model", variable("EVALUATION_CHECKPOINT") or _UNNAMED
        return Header(model, checkpoint, self.item_set.digest, scorer, self.agreement, self.notes)


def find_inputs(options: argparse.Namespace) -> ScorerInput:
    """Return the inputs; with --ask, query the model for outputs. Raises NotGiven, BadItems, NoChatAnswer, OSError."""
    items = _one_file(options.items or os.environ.get("SCHED_INPUT_SET"), "test set", "--items")
    if items is None:
        raise NotGiven("there is no test set; give --items FILE, or name it in the model's evaluation")
    folder = options.checkpoint_dir or os.environ.get("SCHED_INPUT_MODEL")
    outputs = _one_file(options.outputs or os.environ.get("SCHED_INPUT_OUTPUTS"), "outputs", "--outputs")
    item_set = read_items(items)
    outputs_by_item: Mapping[str, Sequence[Mapping[str, Any]]] = read_outputs(outputs) if outputs else {}
    if options.ask:
        from .chat import ask_all

        outputs_by_item = ask_all(item_set, options.ask, options.ask_model, output_path(options).parent)
    return ScorerInput(item_set, outputs_by_item, Path(folder) if folder else None, options)


def read_outputs(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    """Return the outputs of each item from lines ``{"id": ..., "output": ...}``; other lines are skipped."""
    result: dict[str, list[Mapping[str, Any]]] = {}
    for _, record in records(path, OUTPUT_BYTES_MAX):
        if record is not None and is_name(record.get("id")):
            of_item = result.setdefault(record["id"], [])
            if len(of_item) < OUTPUTS_MAX:
                of_item.append(record)
    return result


def output_path(options: argparse.Namespace) -> Path:
    """Return the path of the scores file."""
    return Path(options.out or Path(os.environ.get("SCHED_OUTPUT_DIR") or ".") / "scores.jsonl")


def shipped_digest(folder: Path) -> str:
    """Return the SHA-256 of all files of the shipped scorers, which identifies their version."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _one_file(path_text: str | None, content: str, option: str) -> Path | None:
    """Return the file that an option names, None without the option. Raises BadItems, NotGiven."""
    if not path_text:
        return None
    try:
        path = set_file(Path(path_text))
    except BadItems as error:
        raise BadItems(f"{error}; give {option} FILE") from None
    if not path.is_file():
        raise NotGiven(f"there is no {path} with the {content}; give {option} FILE")
    return path
