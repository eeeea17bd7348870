"""Records of a corpus as documents: pieces of text, and which of them are to be learned.

A line of a file is ``{"text": ...}``, all of it learned; ``{"prompt": ..., "completion": ...}``, of which the
completion is learned; or ``{"messages": [{"role": ..., "content": ...}, ...]}``, written by the tokenizer's chat
template, of which the assistant's words are.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import UnreadableData

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class Piece(NamedTuple):
    """Text of a document, and whether the model is to learn to write it."""

    text: str
    learned: bool


class Document(NamedTuple):
    """Pieces in order. ``plain``: begun and ended by the tokenizer's own marks, which a chat template writes itself."""

    pieces: tuple[Piece, ...]
    plain: bool


def files(folder: Path, pattern: str) -> list[Path]:
    """Return the files of a corpus, in the order in which they are read."""
    return sorted(folder.glob(pattern))


def data_digest(paths: Sequence[Path]) -> str:
    """Return the sha256 over the names and bytes of files."""
    whole = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def documents(paths: Sequence[Path], tokenizer: Any) -> Iterator[Document]:
    """Yield the documents of files, in order."""
    for record, place in records(paths):
        document = document_of(record, tokenizer, place)
        if document is not None and any(True for _ in named_images(record)):
            raise UnreadableData(f"{place} has an image, and of models that see only Qwen2-VL and Qwen2.5-VL are known")
        if document is not None:
            yield document


def named_images(record: dict[str, Any]) -> Iterator[object]:
    """Yield what a record of messages names as its images, in order."""
    messages = record.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image":
                yield part.get("image")


def records(paths: Sequence[Path]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the records of files with their places; what is none is passed over, as in the corpus's own reader."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    record = json.loads(line)
                except ValueError:
                    continue
                if isinstance(record, dict):
                    yield record, f"{path.name}:{number}"


def document_of(record: dict[str, Any], tokenizer: Any, place: str) -> Document | None:
    """Return a record as a document; None where it has nothing to be learned."""
    match record:
        case {"messages": list(messages)} if messages:
            return Document(tuple(_chat(messages, tokenizer, place)), plain=False)
        case {"prompt": str(prompt), "completion": str(completion)} if completion:
            return Document((Piece(prompt, learned=False), Piece(completion, learned=True)), plain=True)
        case {"text": str(text)} if text:
            return Document((Piece(text, learned=True),), plain=True)
    return None


def _chat(messages: list[Any], tokenizer: Any, place: str) -> Iterator[Piece]:
    """Yield a conversation in pieces, split where the assistant begins and ends."""
    if not tokenizer.chat_template:
        raise UnreadableData(
            f"{place} is a conversation, and the tokenizer has no chat template to write it with: take an instruct "
            "model's tokenizer, or records of prompt and completion"
        )
    written = ""
    try:
        for at, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = _rendered(tokenizer, messages[:at], asked=True)
            after = _rendered(tokenizer, messages[: at + 1], asked=False)
            if not (before.startswith(written) and after.startswith(before)):
                raise UnreadableData(
                    f"{place}: this tokenizer's chat template writes a conversation otherwise once it goes on, so "
                    "that what the assistant said has no place of its own; give each answer as a record of prompt and "
                    "completion"
                )
            yield Piece(before[len(written) :], learned=False)
            yield Piece(after[len(before) :], learned=True)
            written = after
    except (KeyError, TypeError):
        raise UnreadableData(f"{place}: a message has no role or no content") from None


def _rendered(tokenizer: Any, messages: list[Any], *, asked: bool) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=asked))
