"""A report of training data before a job is submitted, made by the trainer's own reader. It does not need torch."""

import hashlib
import json
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .documents import BEGIN, END, Piece, TokenDocument, document_of, named_images
from .forms import ASSISTANT, THOUGHTS, OddRecord, TrainingRecord, read_record
from .reader import records
from .tally import MORE, Tally, shortened

_SAMPLES, _SAMPLE_MAX = 3, 1_000  # number of samples, and characters of each
_PLACES = 3  # places that are listed for each reason
_CHARACTERS_A_TOKEN = 4  # in English; code has fewer


class PlainTemplate:
    """Writes conversations as ``role: content``, instead of a model's tokenizer."""

    chat_template = "role: content"

    def apply_chat_template(self, messages: list[Any], *, add_generation_prompt: bool, **variables: Any) -> str:
        """Return messages and tools as text."""
        tools = f"tools: {_json(variables['tools'])}\n" if variables.get("tools") else ""
        return tools + "".join(map(_line, messages)) + f"{ASSISTANT}: " * add_generation_prompt


def _line(message: dict[str, Any]) -> str:
    parts = [message[name] for name in (*THOUGHTS, "content", "tool_calls") if message.get(name)]
    texts = (part if isinstance(part, str) else _json(part) for part in parts)
    return f"{message['role']}: {' '.join(texts)}\n"


_json = partial(json.dumps, ensure_ascii=False)


class PlacedTally(Tally):
    """The counts of the trainer, with the first places for each reason, and the counts of copies and images."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, list[str]] = {}
        self.copies = self.images = 0
        self._digests: set[bytes] = set()

    def leave(self, place: str, cause: str, form: str | None = None) -> None:
        """Count a record that is left out, and keep its place if it is one of the first."""
        super().leave(place, cause, form)
        places = self.places.setdefault(cause if cause in self.left_out else MORE, [])
        places += [place] * (len(places) < _PLACES)

    def compare(self, record: dict[str, Any], read: TrainingRecord) -> None:
        """Count a record if it has images, and if all its fields that are read equal those of an earlier record."""
        self.images += any(True for _ in named_images(record))
        digest = hashlib.blake2b(json.dumps(read.fields, sort_keys=True).encode(), digest_size=8).digest()
        self.copies += digest in self._digests
        self._digests.add(digest)


def preview(
    paths: Sequence[Path], tokenizer: Any, stops: Collection[int] | None, length: int | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a report for JSON, and the facts of the trainer's tally.

    Sizes are in tokens; in characters if ``tokenizer`` is None. For ``stops`` see rows.encoded. ``longer`` counts the
    records of more than ``length`` tokens; None without a length. Raises UnreadableData, also for a missing library.
    """
    tally, sizes = PlacedTally(), array("L")
    samples: list[str] = []
    for size, text in _measured(_documents(paths, tokenizer, tally), tokenizer, tally, stops):
        sizes.append(size)
        if len(samples) < _SAMPLES:
            samples.append(shortened(text(), _SAMPLE_MAX))
    ordered, facts = sorted(sizes), tally.facts()
    most = None if length is None else length * (1 if tokenizer else _CHARACTERS_A_TOKEN)
    report = {
        "records": facts["records"],
        "left_out": [
            {"why": why, "records": count, "places": tally.places[why]} for why, count, _ in facts["left_out"]
        ],
        "unit": "tokens" if tokenizer else "characters",
        "sizes": {name: ordered[len(ordered) * share // 100] for name, share in (("median", 50), ("p90", 90))}
        | {"largest": ordered[-1]}
        if ordered
        else {},
        "longer": None if most is None else sum(size > most for size in ordered),
        "copies": tally.copies,
        "images": tally.images,
        "samples": samples,
    }
    return report, facts


def _documents(paths: Sequence[Path], tokenizer: Any, tally: PlacedTally) -> Iterator[TokenDocument]:
    """Yield the documents of all stages. That of a preference has the prompt and the chosen answer."""
    writer = tokenizer or PlainTemplate()
    for record, place in records(paths, tally):
        try:
            read = read_record(record)
        except OddRecord as odd:
            tally.leave(place, str(odd))
            continue
        is_pair = read.form == "preference"
        answer = {"completion": read.fields.get("chosen", record.get("completion"))}
        learned = {"prompt": read.fields["prompt"], **answer} if is_pair else record
        if (document := document_of(learned, writer, place, tally)) is None:
            continue
        tally.forms[document.form] -= is_pair
        tally.forms["preference"] += is_pair
        tally.compare(record, read)
        yield document


def _measured(
    source: Iterator[TokenDocument], tokenizer: Any, tally: Tally, stops: Collection[int] | None
) -> Iterator[tuple[int, Callable[[], str]]]:
    """Yield the size, and a function that returns the text, of each record that is learned."""
    if tokenizer is None:
        for document in source:
            size = sum(len(piece.text) for piece in document.pieces)
            yield size, partial(_marked, document.pieces)
        return
    from .rows import LEARNED, encoded, marked  # needs NumPy

    for tokens, marks in encoded(source, tokenizer, tally, stops):
        learned = [bool(mark & LEARNED) for mark in marks]
        yield len(tokens), partial(marked, tokens, learned, tokenizer)


def _marked(pieces: Sequence[Piece]) -> str:
    return "".join(f"{BEGIN}{piece.text}{END}" if piece.learned else piece.text for piece in pieces)
